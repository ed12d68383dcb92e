package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/rehearsal/lab"
	"leeway/slackgate"
)

// The article's second fault, over the whole of Leeway: the primary answers
// after three seconds although its p95 is declared as half a second, callers
// wait 1.5 s, the fallback is healthy. Every one of eight must be served in
// time, by the fallback.
func TestSlowPrimaryFailsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config.Default()
		cfg.Gate.AdmitFree = false
		cfg.Pools.Free.Limit = 0
		cfg.Pools.Paid = config.Pool{Limit: 8, FirstByteP95MS: 500}
		cfg.Classes = config.Classes{"summary": {DeadlineMS: 1500, ReserveMS: new(int64), Prefer: config.PaidOnly}}
		w := start(t, cfg, map[slackgate.Path][]lives{slackgate.Paid: {
			{profile: "fixed:3s", tail: "0", p95: 500},
			{profile: "fixed:100ms", tail: "0", p95: 200},
		}})
		var mu sync.Mutex
		var wg sync.WaitGroup
		var ends []*broker.Job
		var took []time.Duration
		for range 8 {
			wg.Go(func() {
				begin := time.Now()
				v := w.submit(&client.Job{Text: document})
				if v.Path != slackgate.Paid {
					t.Errorf("refused: %s", v.Reason)
					return
				}
				end := w.wait(v.JobID)
				mu.Lock()
				defer mu.Unlock()
				ends, took = append(ends, end), append(took, time.Since(begin))
			})
		}
		wg.Wait()
		slices.Sort(took)
		inTime := 0
		for _, v := range ends {
			if v.Outcome == broker.OutcomeUsable {
				inTime++
			}
		}
		t.Logf("deadline-owned: %d of 8 in time, p50 %v", inTime, took[len(took)/2])
		if inTime != 8 || took[len(took)/2] > 1200*time.Millisecond {
			t.Errorf("in time %d, p50 %v; want 8 and about 1 s", inTime, took[len(took)/2])
		}
		must(t, w.worker.Stop(context.Background())) // a probe of the slow one may be under way
		w.balance(ends, 0)
	})
}

// The article's empty answer: 32 tokens billed and nothing to show. It is
// empty, booked, and no answer.
func TestEmptyAnswerIsBooked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		w := start(t, cfg, labs)
		must(t, w.labs["paid-1"].SetFault(lab.Fault{Name: "reasoning-only"}))
		v := w.submit(&client.Job{Text: document})
		end := w.wait(v.JobID)
		if end.Outcome != broker.OutcomeEmpty || end.Answer != "" {
			t.Errorf("outcome %s with answer %q; want empty and none", end.Outcome, end.Answer)
		}
		settled, _, err := w.client.Spend(t.Context())
		must(t, err)
		if len(settled) != 1 || settled[0].OutputTokens == 0 || settled[0].CostMicro == 0 {
			t.Errorf("spend rows %+v; want one with what was billed", settled)
		}
		w.balance([]*broker.Job{end}, 0)
	})
}

// One backend is drained by name; its pool goes on with the other, and takes
// it back when it is put back.
func TestDrainOneBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		labs[slackgate.Paid] = append(labs[slackgate.Paid], lives{profile: "fixed:800ms", tail: "0"})
		w := start(t, cfg, labs)
		order := func(what string) {
			body, _ := json.Marshal(map[string]string{"reason": "bad answers since the upgrade", "by": "on-call"})
			resp, err := w.http.Post(w.url+"/v1/pools/paid/backends/paid-1/"+what, "application/json", bytes.NewReader(body))
			must(t, err)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s", what, resp.Status)
			}
			time.Sleep(2 * time.Second) // workers listen once a second
		}
		run := func() *broker.Job { return w.wait(w.submit(&client.Job{Text: document}).JobID) }
		ends := []*broker.Job{run()}
		order("drain")
		ends = append(ends, run(), run())
		order("resume")
		ends = append(ends, run())
		want := []string{"paid-1", "paid-2", "paid-2", "paid-1"}
		for i, v := range ends {
			if v.Outcome != broker.OutcomeUsable || v.Backend != want[i] {
				t.Errorf("job %d: %s by %s; want usable by %s", i, v.Outcome, v.Backend, want[i])
			}
		}
		w.balance(ends, 0)
	})
}
