package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/wire"
	"leeway/slackgate"
)

func (a *api) claim() *broker.Claim {
	a.t.Helper()
	c, _, err := a.store.Claim(context.Background(), slackgate.Paid, 10, time.Minute)
	a.must(err)
	if c == nil {
		a.t.Fatal("nothing to claim")
	}
	return c
}

func (a *api) finish(c *broker.Claim) {
	a.t.Helper()
	_, err := a.store.Finish(context.Background(), c, &broker.Finish{Outcome: broker.OutcomeUsable, Answer: "the answer", FirstByteMS: 5})
	a.must(err)
}

func state(t *testing.T, w *answer) broker.Job {
	t.Helper()
	var v broker.Job
	if err := json.Unmarshal(w.Body.Bytes(), &v); w.Code != 200 || err != nil {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	return v
}

func TestWaitWakesOnTheOutcome(t *testing.T) {
	inAPI(t, "", func(a *api) {
		id := a.admitted(`{"text":"x","deadline_ms":600000}`)
		c := a.claim()
		start := time.Now()
		if v := state(t, a.send(http.MethodGet, "/v1/jobs/"+id, "")); v.State != broker.StateRunning || time.Since(start) != 0 {
			t.Errorf("without ?wait= %+v after %v", v, time.Since(start))
		}
		time.AfterFunc(3300*time.Millisecond, func() { a.finish(c) })
		v := state(t, a.send(http.MethodGet, "/v1/jobs/"+id+"?wait=30s", ""))
		if took := time.Since(start); v.Outcome != broker.OutcomeUsable || v.Answer != "the answer" || took != 3300*time.Millisecond {
			t.Errorf("woke after %v, the job ended after 3.3s: %+v", took, v)
		}
		// Of a job that has ended there is nothing to wait for.
		start = time.Now()
		if state(t, a.send(http.MethodGet, "/v1/jobs/"+id+"?wait=30s", "")); time.Since(start) != 0 {
			t.Errorf("waited %v for an ended job", time.Since(start))
		}
		// Nor of one that is on no record.
		if w := a.send(http.MethodGet, "/v1/jobs/nobody?wait=30s", ""); w.Code != 404 || w.problem.Reason != wire.ReasonNotFound || time.Since(start) != 0 {
			t.Errorf("%d %s after %v", w.Code, w.Body, time.Since(start))
		}
		if n := len(a.ends.byJob); n != 0 {
			t.Errorf("%d waiters left", n)
		}
	})
}

func TestWaitEnds(t *testing.T) {
	inAPI(t, "", func(a *api) {
		id := a.admitted(`{"text":"x","deadline_ms":600000}`)
		start := time.Now()
		if v := state(t, a.send(http.MethodGet, "/v1/jobs/"+id+"?wait=2500ms", "")); v.State != broker.StateWaiting || time.Since(start) != 2500*time.Millisecond {
			t.Errorf("%+v after %v", v, time.Since(start))
		}
		// A notice that got lost is made up for by looking now and then.
		c := a.claim()
		a.group.Go("lost", func(context.Context) error { return nil })
		time.AfterFunc(2200*time.Millisecond, func() {
			a.finish(c)
		})
		for _, conn := range a.redisSubscribers() {
			conn()
		}
		start = time.Now()
		v := state(t, a.send(http.MethodGet, "/v1/jobs/"+id+"?wait=60s", ""))
		if took := time.Since(start); v.Outcome != broker.OutcomeUsable || took > 3200*time.Millisecond {
			t.Errorf("woke after %v: %+v", took, v)
		}
		// The producer goes: its wait ends at once and leaves nothing.
		id = a.admitted(`{"text":"x","deadline_ms":600000}`)
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		start = time.Now()
		a.do(ctx, http.MethodGet, "/v1/jobs/"+id+"?wait=60s", strings.NewReader(""))
		if time.Since(start) != time.Second || len(a.ends.byJob) != 0 {
			t.Errorf("ended after %v, %d waiters left", time.Since(start), len(a.ends.byJob))
		}
	})
}

// redisSubscribers stop the notices from coming.
func (a *api) redisSubscribers() []func() {
	return []func(){func() {
		a.ends.mu.Lock()
		defer a.ends.mu.Unlock()
		a.ends.byJob = map[string]map[chan struct{}]struct{}{}
	}}
}

func TestManyWaitersOneJob(t *testing.T) {
	inAPI(t, "", func(a *api) {
		id := a.admitted(`{"text":"x","deadline_ms":600000}`)
		c := a.claim()
		const n = 20
		got := make(chan broker.Job, n)
		for range n {
			go func() { got <- state(t, a.send(http.MethodGet, "/v1/jobs/"+id+"?wait=60s", "")) }()
		}
		synctest.Wait()
		start := time.Now()
		a.finish(c)
		for range n {
			if v := <-got; v.Outcome != broker.OutcomeUsable || time.Since(start) != 0 {
				t.Errorf("%+v after %v", v, time.Since(start))
			}
		}
	})
}

func TestWaitParameter(t *testing.T) {
	inAPI(t, "limits: {wait_ms: 5000}", func(a *api) {
		id := a.admitted(`{"text":"x"}`)
		for _, v := range []string{"5", "soon", "-1s", "1e9s", "9999999999999h"} {
			if w := a.send(http.MethodGet, "/v1/jobs/"+id+"?wait="+v, ""); w.Code != 400 || w.reason() != "invalid_field wait" {
				t.Errorf("wait=%s: %d %s", v, w.Code, w.Body)
			}
		}
		for _, v := range []string{"", "0", "0s", "5s", "5000ms", "1h"} {
			if w := a.send(http.MethodGet, "/v1/jobs/"+id+"?wait="+v, ""); w.Code != 200 {
				t.Errorf("wait=%s: %d %s", v, w.Code, w.Body)
			}
		}
	})
}

func TestDelete(t *testing.T) {
	inAPI(t, "", func(a *api) {
		del := func(id string, status int, result string) {
			t.Helper()
			w := a.send(http.MethodDelete, "/v1/jobs/"+id, "")
			var got map[string]string
			_ = json.Unmarshal(w.Body.Bytes(), &got)
			if w.Code != status || got["result"] != result {
				t.Errorf("delete: %d %s, want %d %s", w.Code, w.Body, status, result)
			}
		}
		if w := a.send(http.MethodDelete, "/v1/jobs/nobody", ""); w.Code != 404 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		waiting := a.admitted(`{"text":"x","deadline_ms":600000}`)
		del(waiting, 200, "cancelled")
		if v := state(t, a.send(http.MethodGet, "/v1/jobs/"+waiting, "")); v.Outcome != broker.OutcomeCancelled {
			t.Errorf("%+v", v)
		}
		// Its end is logged like any other, a moment later.
		synctest.Wait()
		if l := a.log.jobs(t); len(l) != 1 || l[0]["job_id"] != waiting || l[0]["outcome"] != "cancelled" {
			t.Errorf("log %v", l)
		}
		running := a.admitted(`{"text":"x","deadline_ms":600000}`)
		c := a.claim()
		del(running, 202, "running")
		a.finish(c)
		del(running, 200, "deleted")
		if v := state(t, a.send(http.MethodGet, "/v1/jobs/"+running, "")); v.Answer != "" || v.Outcome != broker.OutcomeUsable {
			t.Errorf("%+v", v)
		}
		late := a.admitted(`{"text":"x","deadline_ms":5000}`)
		time.Sleep(5 * time.Second)
		del(late, 200, "late")
	})
}

// A cancel that the store carried out and whose reply was lost leaves its job a
// log line, and one line only; one that was not carried out leaves none.
func TestCancelWithoutReply(t *testing.T) {
	inAPI(t, "", func(a *api) {
		del := func(path string, status int) {
			t.Helper()
			if w := a.send(http.MethodDelete, path, ""); w.Code != status {
				t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, status)
			}
		}
		set := func(loseOf, refuse string) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.loseOf, a.refuse = loseOf, refuse
		}
		lines := func(want ...string) {
			t.Helper()
			time.Sleep(lostCancelWait)
			synctest.Wait()
			var got []string
			for _, l := range a.log.jobs(t) {
				if l["outcome"] != "cancelled" {
					t.Errorf("%v", l)
				}
				got = append(got, l["job_id"].(string))
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("lines of %v, want %v", got, want)
			}
		}
		first := a.admitted(`{"text":"x","deadline_ms":600000}`)
		set(first, "")
		del("/v1/jobs/"+first, 503)
		del("/v1/jobs/"+first, 200) // and again, as its producer would
		lines(first)

		// Not carried out: the store said so, or the job had another end.
		second := a.admitted(`{"text":"x","deadline_ms":600000}`)
		set("", "OOM command not allowed when used memory > 'maxmemory'.")
		del("/v1/jobs/"+second, 503)
		set("", "")
		lines(first)
		set("nobody", "")
		del("/v1/jobs/nobody", 503)
		lines(first)
		del("/v1/jobs/"+second, 200)
		lines(first, second)
		set(second, "")
		del("/v1/jobs/"+second, 503) // it had ended before
		lines(first, second)

		// A batch's jobs are taken back some in a step.
		s := a.sendLines("/v1/jobs/batch", []string{`{"text":"x","deadline_ms":600000}`, `{"text":"y","deadline_ms":600000}`})
		set(s.lines[1].JobID, "")
		del("/v1/batches/"+s.id, 503)
		all := []string{first, second}
		for _, l := range s.lines {
			all = append(all, l.JobID)
		}
		lines(all...)
	})
}

func TestLedgersAndGate(t *testing.T) {
	inAPI(t, "", func(a *api) {
		for _, ledger := range []string{"spend", "misses"} {
			for query, field := range map[string]string{
				"cursor=nonsense": "cursor", "cursor=-": "cursor", "cursor=99999999999999999999-0": "cursor", "cursor=" + strings.Repeat("1", 65): "cursor",
				"limit=0": "limit", "limit=-1": "limit", "limit=1001": "limit", "limit=x": "limit", "limit=1e2": "limit",
			} {
				if w := a.send(http.MethodGet, "/v1/ledgers/"+ledger+"?"+query, ""); w.Code != 400 || w.reason() != "invalid_field "+field {
					t.Errorf("%s?%s: %d %s", ledger, query, w.Code, w.Body)
				}
			}
			if w := a.send(http.MethodGet, "/v1/ledgers/"+ledger+"?limit=1000&cursor=5-0", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `"rows":[]`) {
				t.Errorf("%s: %d %s", ledger, w.Code, w.Body)
			}
		}
		for range 3 {
			a.submit(`{"text":"x","deadline_ms":1}`)
		}
		var page struct {
			Rows []broker.MissRow `json:"rows"`
			Next string           `json:"next_cursor"`
		}
		w := a.send(http.MethodGet, "/v1/ledgers/misses?limit=2", "")
		if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil || len(page.Rows) != 2 || page.Next == "" {
			t.Fatalf("%s: %v", w.Body, err)
		}
		w = a.send(http.MethodGet, "/v1/ledgers/misses?limit=2&cursor="+page.Next, "")
		if strings.Count(w.Body.String(), `"job_id"`) != 1 || strings.Contains(w.Body.String(), "next_cursor") {
			t.Errorf("second page %s", w.Body)
		}
		// An attempt in flight stands on the first page of the spend ledger.
		a.admitted(`{"text":"x","deadline_ms":600000}`)
		c := a.claim()
		a.must(a.store.OpenSpend(context.Background(), c, &broker.SpendRow{JobID: c.ID, Attempt: 1, Path: slackgate.Paid, Currency: "USD", Priced: true, MaxCostMicro: 7}))
		w = a.send(http.MethodGet, "/v1/ledgers/spend", "")
		if !strings.Contains(w.Body.String(), `"open":[{`) || !strings.Contains(w.Body.String(), `"max_cost_micro":7`) {
			t.Errorf("spend %s", w.Body)
		}
		a.admitted(`{"text":"x","deadline_ms":600000}`)
		var g wire.GateAnswer
		w = a.send(http.MethodGet, "/v1/gate", "")
		if err := json.Unmarshal(w.Body.Bytes(), &g); err != nil || g.Policy != "predictive" || g.Pools["paid"].Capacity != 2 ||
			g.Pools["paid"].Running != 1 || g.Pools["paid"].Waiting != 1 || g.Verdict.Path != slackgate.Paid || g.NowMS == 0 {
			t.Errorf("gate %s: %v\n%s", w.Body, err, a.log.buf.String())
		}
		if w := a.send(http.MethodGet, "/v1/pools", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `"limit":1,"limit_from":"declared","knees":[],"capacity":1,"waiting":0`) {
			t.Errorf("pools %s", w.Body)
		}
	})
}

func TestRoutes(t *testing.T) {
	inAPI(t, "", func(a *api) {
		for _, tt := range []struct {
			method, path string
			status       int
			reason       string
		}{
			{"GET", "/", 404, wire.ReasonNotFound},
			{"GET", "/v1/jobsXYZ", 404, wire.ReasonNotFound},
			{"POST", "/v1/jobs:batch", 404, wire.ReasonNotFound},
			{"PUT", "/v1/jobs", 405, wire.ReasonMethod},
			{"DELETE", "/livez", 405, wire.ReasonMethod},
		} {
			w := a.send(tt.method, tt.path, "")
			if w.Code != tt.status || w.problem.Reason != tt.reason || strings.Contains(w.Body.String(), `"error":{`) != strings.HasPrefix(tt.path, "/v1/") {
				t.Errorf("%s %s: %d %s", tt.method, tt.path, w.Code, w.Body)
			}
		}
	})
}

// A handler that panics answers 500 as a problem, and its log says why.
func TestPanicInHandler(t *testing.T) {
	inAPI(t, "", func(a *api) {
		cfg := a.Config
		a.Config = nil
		w := a.submit(`{"text":"x"}`)
		a.Config = cfg
		if w.Code != 500 || w.problem.Reason != wire.ReasonInternal || strings.Contains(w.Body.String(), "nil pointer") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if !strings.Contains(a.log.buf.String(), "handler panicked") {
			t.Errorf("log %s", a.log.buf.String())
		}
	})
}
