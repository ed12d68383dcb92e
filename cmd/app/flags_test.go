package app_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/broker/flag"
	"leeway/broker/wire"
	"leeway/cmd/app"
	"leeway/rehearsal/pipenet"
	"leeway/slackgate"
)

// second starts another API replica on the same store and returns a client of
// it.
func (w *world) second() *client.Client {
	front := pipenet.Listen()
	api, err := app.StartAPI(app.Options{
		Config: w.stage.Config, Log: app.Logger(w.log, slog.LevelInfo), EmbeddedRedis: w.stage.DialStore, Listener: front, MetricsListener: pipenet.Listen(),
	})
	must(w.t, err)
	transport := &http.Transport{DialContext: front.DialContext, MaxIdleConnsPerHost: 64}
	w.t.Cleanup(func() {
		transport.CloseIdleConnections()
		must(w.t, api.Stop(context.Background()))
	})
	return &client.Client{Base: w.url, HTTP: &http.Client{Transport: transport}}
}

// A flag set through one replica holds for the next decision on every replica:
// no submission sent after the PUT has returned gets a free verdict from
// either.
func TestFlagHoldsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Seed)
		labs[slackgate.Free][0].profile, labs[slackgate.Paid][0].profile = "fixed:50ms", "fixed:50ms"
		cfg.Pools.Free.Limit, cfg.Pools.Free.FirstByteP95MS = 4, 100
		labs[slackgate.Free][0].slots = 4
		w := start(t, cfg, labs)
		replicas := []*client.Client{w.client, w.second()}
		worlds := []*world{w, {t: t, client: replicas[1]}}

		var flipped atomic.Bool
		var free, after atomic.Int64
		var mu sync.Mutex
		var ends []*broker.Job
		var wg sync.WaitGroup
		for n := range 16 {
			wg.Go(func() {
				for range 60 {
					wasFlipped := flipped.Load() // before the submission is sent
					v := worlds[n%2].submit(&client.Job{Text: document})
					if v.Path == slackgate.Free {
						free.Add(1)
						if wasFlipped {
							after.Add(1)
						}
					}
					if v.Path != slackgate.Reject {
						end := worlds[n%2].wait(v.JobID)
						mu.Lock()
						ends = append(ends, end)
						mu.Unlock()
					}
					time.Sleep(20 * time.Millisecond)
				}
			})
		}
		time.Sleep(500 * time.Millisecond)
		a, err := replicas[1].SetFlag(t.Context(), flag.AdmitFree, &wire.FlagChange{Value: "0", Reason: "misses rise while spend falls", By: "on-call"})
		must(t, err)
		flipped.Store(true)
		if a.Flag.Value != "0" || a.Flag.Source != "flag" {
			t.Errorf("the answer shows %+v", a.Flag)
		}
		wg.Wait()
		t.Logf("free verdicts before the flip %d, sent after it %d", free.Load()-after.Load(), after.Load())
		if free.Load() == after.Load() {
			t.Error("free took nothing before the flip: the test shows nothing")
		}
		if after.Load() != 0 {
			t.Errorf("%d submissions sent after the PUT had returned were admitted to free", after.Load())
		}
		w.balance(ends, 0)
	})
}

// A flag may be for one class, and may expire; the audit trail tells it all.
func TestFlagScopeAndExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		cfg.Classes = config.Classes{"summary": {Prefer: config.FreeOnly}, "other": {Prefer: config.FreeOnly}}
		cfg.Worker.PollMS = 100 // much time goes by
		w := start(t, cfg, labs)
		ctx := t.Context()
		set := func(ch wire.FlagChange) {
			ch.Reason = "drill"
			_, err := w.client.SetFlag(ctx, flag.AdmitFree, &ch)
			must(t, err)
		}
		verdict := func(class string) slackgate.Reason {
			return w.submit(&client.Job{Class: class, Text: document, DeadlineMS: 600_000}).Reason
		}
		expect := func(when, class string, want slackgate.Reason) {
			t.Helper()
			if got := verdict(class); got != want {
				t.Errorf("%s: class %s: %s; want %s", when, class, got, want)
			}
		}
		set(wire.FlagChange{Value: "0", Class: "summary"})
		expect("closed for one class", "summary", slackgate.ReasonClosed)
		expect("closed for one class", "other", slackgate.ReasonFree)
		set(wire.FlagChange{Value: "0", ForMS: 60_000})
		expect("closed for a minute", "other", slackgate.ReasonClosed)
		time.Sleep(59 * time.Second)
		expect("just before the minute is over", "other", slackgate.ReasonClosed)
		time.Sleep(2 * time.Second)
		expect("after the minute", "other", slackgate.ReasonFree)
		_, err := w.client.ClearFlag(ctx, flag.AdmitFree, "summary", "on-call", "drill over")
		must(t, err)
		expect("cleared", "summary", slackgate.ReasonFree)

		set(wire.FlagChange{Value: "0"})
		set(wire.FlagChange{Value: "1"}) // two people at once: the last write wins
		expect("the last write wins", "other", slackgate.ReasonFree)
		changes, err := w.client.Audit(ctx, 100)
		must(t, err)
		if len(changes) != 5 || changes[0].To != "1" || changes[0].From != "0" || changes[0].Reason != "drill" {
			t.Errorf("audit trail: %+v", changes)
		}
	})
}

// Nonsense is refused with the field's name, and changes nothing.
func TestFlagNonsense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		w := start(t, cfg, labs)
		for _, tt := range []struct{ flag, body, field string }{
			{"ADMIT_FREE", `{"value": "maybe", "reason": "x"}`, "value"},
			{"ADMIT_FREE", `{"reason": "x"}`, "value"},
			{"ADMIT_FREE", `{"value": "0"}`, "reason"},
			{"ADMIT_FREE", `{"value": "0", "reason": "x", "for_ms": -1}`, "for_ms"},
			{"ADMIT_FREE", `{"value": "0", "reason": "x", "class": "nobody"}`, "class"},
			{"RESERVE_MS", `{"value": "-1", "reason": "x"}`, "value"},
			{"RESERVE_MS", `{"value": "1e9", "reason": "x"}`, "value"},
			{"GATE_POLICY", `{"value": "always", "reason": "x"}`, "value"},
			{"FREE_QUEUE_AGE_CUT_MS", `{"value": "3s", "reason": "x"}`, "value"},
			{"ADMIT_FREE", `{"value": "0", "reason": "x", "why": "y"}`, "why"},
		} {
			req, err := http.NewRequest(http.MethodPut, w.url+"/v1/flags/"+tt.flag, strings.NewReader(tt.body))
			must(t, err)
			req.Header.Set("Content-Type", "application/json")
			resp, err := w.http.Do(req)
			must(t, err)
			raw, err := io.ReadAll(resp.Body)
			must(t, err)
			_ = resp.Body.Close()
			var p struct {
				Field string `json:"field"`
			}
			must(t, json.Unmarshal(raw, &p))
			if resp.StatusCode != http.StatusBadRequest || p.Field != tt.field {
				t.Errorf("%s %s: %d, field %q; want 400 naming %s", tt.flag, tt.body, resp.StatusCode, p.Field, tt.field)
			}
		}
		changes, err := w.client.Audit(t.Context(), 100)
		must(t, err)
		if len(changes) != 0 {
			t.Errorf("nonsense left %d changes in the audit trail", len(changes))
		}
	})
}

// Draining free offers its waiting jobs to paid where their class allows both;
// paid is not drained ahead of it; resuming opens the pool again.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		cfg.Classes = config.Classes{
			"summary": {Prefer: config.FreeFirst},
			"cheap":   {Prefer: config.FreeOnly, DeadlineMS: 60_000},
		}
		w := start(t, cfg, labs)
		var ids []string
		for _, class := range []string{"summary", "summary", "cheap"} {
			v := w.submit(&client.Job{Class: class, Text: document})
			if v.Path != slackgate.Free {
				t.Fatalf("class %s: %s", class, v.Reason)
			}
			ids = append(ids, v.JobID)
			time.Sleep(50 * time.Millisecond)
		}
		ctx := t.Context()
		if _, err := w.client.Drain(ctx, "paid", "", &wire.Order{Reason: "drill"}); err == nil || !strings.Contains(err.Error(), "out_of_order") {
			t.Errorf("paid drained ahead of free: %v", err)
		}
		p, err := w.client.Drain(ctx, "free", "", &wire.Order{Reason: "drill"})
		must(t, err)
		if p.Pools["free"].State != "draining" {
			t.Errorf("free is %s", p.Pools["free"].State)
		}
		if v := w.submit(&client.Job{Class: "cheap", Text: document}); v.Reason != slackgate.ReasonClosed {
			t.Errorf("a newcomer to the draining pool: %s", v.Reason)
		}
		var ends []*broker.Job
		for _, id := range ids {
			ends = append(ends, w.wait(id))
		}
		for i, want := range []slackgate.Path{slackgate.Free, slackgate.Paid, slackgate.Free} {
			if ends[i].Outcome != broker.OutcomeUsable || ends[i].Path != want {
				t.Errorf("job %d: %s on %s; want usable on %s", i, ends[i].Outcome, ends[i].Path, want)
			}
		}
		p, err = w.client.Pools(ctx)
		must(t, err)
		if p.Pools["free"].State != "drained" {
			t.Errorf("free is %s with nothing left in it", p.Pools["free"].State)
		}
		_, err = w.client.Drain(ctx, "paid", "", &wire.Order{Reason: "drill"})
		must(t, err)
		for _, pool := range []string{"paid", "free"} {
			_, err = w.client.Resume(ctx, pool, "", &wire.Order{Reason: "drill over"})
			must(t, err)
		}
		v := w.submit(&client.Job{Class: "cheap", Text: document})
		if v.Path != slackgate.Free {
			t.Fatalf("after resume: %s", v.Reason)
		}
		ends = append(ends, w.wait(v.JobID))
		w.balance(ends, 0)
	})
}

// A reload gives a pool other backends while the old one's jobs end; one with a
// mistake changes nothing.
func TestReloadWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		labs[slackgate.Paid] = append(labs[slackgate.Paid], lives{profile: "fixed:800ms", tail: "0"})
		w := start(t, cfg, labs)
		first := w.submit(&client.Job{Text: document})
		time.Sleep(200 * time.Millisecond)

		next := *cfg
		next.Pools.Paid.Backends = []config.Backend{cfg.Pools.Paid.Backends[1]}
		bad := next
		bad.Listen = "127.0.0.1:1"
		if err := w.worker.Reload(&bad); err == nil {
			t.Error("a reload that moves the listener went through")
		}
		must(t, w.worker.Reload(&next))
		must(t, w.api.Reload(&next))
		second := w.submit(&client.Job{Text: document})
		ends := []*broker.Job{w.wait(first.JobID), w.wait(second.JobID)}
		for i, want := range []string{"paid-1", "paid-2"} {
			if ends[i].Outcome != broker.OutcomeUsable || ends[i].Backend != want {
				t.Errorf("job %d: %s by %s; want usable by %s", i, ends[i].Outcome, ends[i].Backend, want)
			}
		}
		w.balance(ends, 0)
	})
}

// A producer's key opens the producers' routes, the on-call's all of them; no
// key and a wrong one open none, and nothing of a key stands in the log.
func TestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		cfg.Access = config.Access{
			Producers: []config.Key{{Name: "nightly", KeySHA256: sum("producer-key")}, {Name: "other", KeySHA256: sum("other-key")}},
			OnCall:    []config.Key{{Name: "on-call", KeySHA256: sum("oncall-key")}},
		}
		w := start(t, cfg, labs)
		status := func(method, path, key, body string) int {
			req, err := http.NewRequest(method, w.url+path, bytes.NewBufferString(body))
			must(t, err)
			if key != "" {
				req.Header.Set("Authorization", "Bearer "+key)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := w.http.Do(req)
			must(t, err)
			_ = resp.Body.Close()
			return resp.StatusCode
		}
		flip := `{"value": "1", "reason": "drill"}`
		for _, tt := range []struct {
			method, path, key, body string
			want                    int
		}{
			{"GET", "/livez", "", "", 200},
			{"GET", "/v1/gate", "", "", 401},
			{"GET", "/v1/gate", "wrong", "", 401},
			{"GET", "/v1/gate", "producer-key", "", 200},
			{"PUT", "/v1/flags/ADMIT_FREE", "producer-key", flip, 403},
			{"PUT", "/v1/flags/ADMIT_FREE", "oncall-key", flip, 200},
			{"GET", "/v1/ledgers/spend", "producer-key", "", 403},
			{"GET", "/v1/ledgers/spend", "oncall-key", "", 200},
			{"POST", "/v1/jobs", "", `{"text": "x"}`, 401},
		} {
			if got := status(tt.method, tt.path, tt.key, tt.body); got != tt.want {
				t.Errorf("%s %s with key %q: %d; want %d", tt.method, tt.path, tt.key, got, tt.want)
			}
		}
		own := *w.client
		own.Key = "producer-key"
		v, err := own.Submit(t.Context(), &client.Job{Text: document})
		must(t, err)
		if got := status("GET", "/v1/jobs/"+v.JobID, "other-key", ""); got != 404 {
			t.Errorf("another producer's job: %d; want 404", got)
		}
		if got := status("DELETE", "/v1/jobs/"+v.JobID, "other-key", ""); got != 404 {
			t.Errorf("cancelling another producer's job: %d; want 404", got)
		}
		end, err := own.Wait(t.Context(), v.JobID)
		must(t, err)
		if end.Producer != "nightly" {
			t.Errorf("the job's producer is %q; want the key's owner", end.Producer)
		}
		w.log.mu.Lock()
		defer w.log.mu.Unlock()
		for _, key := range []string{"producer-key", "other-key", "oncall-key", sum("oncall-key")} {
			if strings.Contains(w.log.buf.String(), key) {
				t.Errorf("the log holds %q", key)
			}
		}
	})
}

func sum(key string) string {
	h := sha256.Sum256([]byte(key))
	return hex.EncodeToString(h[:])
}
