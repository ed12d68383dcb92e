package app_test

import (
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/rehearsal/lab"
	"leeway/rehearsal/stage"
	"leeway/slackgate"
)

// slowness is how long what is sent to the store takes to arrive, between two
// bounds; while both are 0, no time.
type slowness struct {
	from, to atomic.Int64 // ms
}

func (s *slowness) set(from, to int64) { s.from.Store(from); s.to.Store(to) }

// over has connections arrive late.
func (s *slowness) over(dial stage.Dial) stage.Dial {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		server, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		near, far := net.Pipe()
		var answered atomic.Bool // what comes before an answer is the rest of a long command
		pass := func(to, from net.Conn, before func()) {
			defer func() { _, _ = to.Close(), from.Close() }()
			buf := make([]byte, 256<<10)
			for {
				n, err := from.Read(buf)
				if err != nil {
					return
				}
				before()
				if _, err := to.Write(buf[:n]); err != nil {
					return
				}
			}
		}
		rng := rand.New(rand.NewPCG(1, 2))
		go pass(server, far, func() {
			if from, to := s.from.Load(), s.to.Load(); answered.Swap(false) && to > 0 {
				time.Sleep(ms(from + rng.Int64N(to-from+1)))
			}
		})
		go pass(far, server, func() { answered.Store(true) })
		return near, nil
	}
}

// mostAtOnce is the most calls that a backend had at once.
func mostAtOnce(l *lab.Server) (most int) {
	attempts, _ := l.Attempts(0)
	for _, a := range attempts {
		n := 0
		for _, b := range attempts {
			if b.ReceivedAtMS <= a.ReceivedAtMS && a.ReceivedAtMS < b.EndAtMS {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// A store that takes 50 to 200 ms for every call makes decisions slower and no
// worse. What is promised at a rate that the slots keep up with is kept; under a
// flood the gate counts with what each call between two jobs takes at least, and
// what was promised too much is dropped before a backend is called.
// No pool is called beyond its slots, and the books balance. A store that takes
// longer than its time limit is a 503 within it, and mends by itself.
func TestSlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		store := &slowness{}
		w := startWith(t, cfg, labs, stage.Options{OverStore: store.over})
		job := func(int) *client.Job { return &client.Job{Text: document} }
		time.Sleep(2 * time.Second)
		_, before := w.offerAt(4, 0, job) // scripts and connections are there
		allUsable(t, before)
		time.Sleep(2 * time.Second)
		store.set(50, 200)
		time.Sleep(2 * time.Second)
		verdicts, ends := w.offerAt(20, time.Second, job)
		for _, v := range verdicts {
			if v.Path == slackgate.Reject {
				t.Errorf("refused with slots idle: %+v", v)
			}
		}
		allUsable(t, ends)

		verdicts, flood := w.offerAt(40, 250*time.Millisecond, job)
		admitted := 0
		for _, v := range verdicts {
			if v.Reason.Unavailable() {
				t.Errorf("%+v", v)
			}
			if v.Path != slackgate.Reject {
				admitted++
			}
		}
		usable := 0
		for _, v := range flood {
			switch {
			case v.Outcome == broker.OutcomeUsable:
				usable++
			case v.Outcome != broker.OutcomeExpired || v.Attempts > 0:
				t.Errorf("job %s: %s (%s) after %d attempts", v.ID, v.Outcome, v.Cause, v.Attempts)
			}
		}
		t.Logf("of a flood of %d, %d were admitted and %d usable", len(verdicts), admitted, usable)
		// Ten seconds of two slots and the slack after them, at most 2.2 s a job.
		if len(flood) != admitted || usable < 20 {
			t.Errorf("%d admitted, %d ends, %d usable", admitted, len(flood), usable)
		}
		for name, slots := range map[string]int{"paid-1": 2, "free-1": 1} {
			if most := mostAtOnce(w.labs[name].Server); most > slots {
				t.Errorf("%s was called %d times at once, its pool has %d slots", name, most, slots)
			}
		}
		w.balance(slices.Concat(before, ends, flood), 0)

		store.set(400, 600)
		time.Sleep(time.Second)
		for range 5 {
			asked := time.Now()
			if v := w.submit(job(0)); v.Reason != slackgate.ReasonGateUnavailable {
				t.Errorf("a store beyond its time limit: %+v", v)
			}
			if took := time.Since(asked); took > cfg.RedisTimeout() {
				t.Errorf("told after %v", took)
			}
			resp, err := w.http.Get(w.url + "/readyz")
			must(t, err)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("/readyz: %d", resp.StatusCode)
			}
		}
		store.set(0, 0)
		time.Sleep(3 * time.Second)
		v := w.submit(job(0))
		if v.Path == slackgate.Reject {
			t.Fatalf("afterwards: %+v", v)
		}
		allUsable(t, []*broker.Job{w.wait(v.JobID)})
	})
}
