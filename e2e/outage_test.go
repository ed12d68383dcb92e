//go:build server

package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/rehearsal/proctest"
	"leeway/slackgate"
)

// every calls f n times on schedule, whatever the calls do, and waits for all.
func every(d time.Duration, n int, f func(i int)) {
	var wg sync.WaitGroup
	start := time.Now()
	for i := range n {
		<-time.After(time.Until(start.Add(time.Duration(i) * d)))
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// bound is how long any answer may take while Redis does not answer, with
// all the room that a busy machine needs; the bound configured is the default.
const (
	bound     = 3 * time.Second
	defaultMS = 250
)

// whileAway checks how the API answers without its store.
func (d *stack) whileAway() (slowest time.Duration) {
	d.t.Helper()
	s := d.submit(client.Job{Text: text})
	if s.refusal == nil || s.reason() != slackgate.ReasonGateUnavailable || s.refusal.Status != http.StatusServiceUnavailable {
		d.t.Errorf("a submission without a store: %+v %+v %v", s.verdict, s.refusal, s.err)
	}
	slowest = s.took
	live := call(d.t, http.MethodGet, d.client.Base+"/livez", "", "")
	if live.status != http.StatusOK {
		d.t.Errorf("/livez: %d", live.status)
	}
	ready := call(d.t, http.MethodGet, d.client.Base+"/readyz", "", "")
	if ready.status != http.StatusServiceUnavailable {
		d.t.Errorf("/readyz: %d %s", ready.status, ready.body)
	}
	for _, r := range []response{live, ready} {
		slowest = max(slowest, r.took)
	}
	if slowest > bound {
		d.t.Errorf("an answer without a store took %v", slowest)
	}
	return slowest
}

// TestRedisRestarts: Redis dies under load and comes back with its AOF. Ours go
// on by themselves, and no acknowledged job is missing.
func TestRedisRestarts(t *testing.T) {
	t.Parallel()
	s := quick()
	s.PaidMS, s.PaidP95 = 300, 600
	s.DeadlineMS, s.ReserveMS = 6000, 500
	s.RedisMS = defaultMS
	// What is acknowledged is on disk: under "everysec" a crash that comes
	// while a sync is under way may take the last moments with it.
	d := run(t, s, "--appendfsync", "always")
	d.api.outage, d.workers[0].outage = true, true
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		every(50*time.Millisecond, 120, func(int) { d.submit(client.Job{Text: text}) })
	}()
	proctest.Eventually(t, 10*time.Second, "load", func() error {
		if n := len(d.book.admitted()); n < 8 {
			return fmt.Errorf("%d admitted", n)
		}
		return nil
	})
	before := len(d.book.admitted())
	d.redis.Kill()
	var slowest time.Duration
	for range 5 {
		slowest = max(slowest, d.whileAway())
	}
	d.redis.Run()
	back := time.Now()
	d.ready()
	t.Logf("slowest answer while Redis was dead %v; ready %v after it was back",
		slowest.Round(time.Millisecond), time.Since(back).Round(time.Millisecond))
	<-loaded
	proctest.Eventually(t, 10*time.Second, "admissions afterwards", func() error {
		if s := d.submit(client.Job{Text: text}); !s.admitted() {
			return fmt.Errorf("%s", s.reason())
		}
		return nil
	})
	d.settled(40 * time.Second)
	away := d.book.reasons()[slackgate.ReasonGateUnavailable]
	t.Logf("%d admitted before; answers %v, outcomes %v", before, d.book.reasons(), d.outcomes())
	// An answer of 503 may hide an admission whose reply was lost with Redis.
	d.audit(rules{unanswered: away, uncalled: lost})
}

// generated is how often the backends were called for a job.
func (d *stack) generated(s *submission) (n int) {
	d.t.Helper()
	for _, b := range d.labs {
		for _, a := range b.attempts() {
			if strings.HasPrefix(a.RequestID, s.verdict.JobID+"-") {
				n++
			}
		}
	}
	return n
}

// TestStopWhileRedisStandsStill: a worker that is told to stop while Redis stands
// still ends, and what it could not book is in its log and is closed later.
func TestStopWhileRedisStandsStill(t *testing.T) {
	t.Parallel()
	s := slow()
	s.PaidMS, s.RedisMS, s.GraceMS = 500, defaultMS, 1000
	d := run(t, s)
	d.api.outage, d.workers[0].outage = true, true
	d.admit(client.Job{Class: "paid-only", Text: text})
	d.labs["lab-paid"].busy(1)
	d.redis.Pause()
	begun := time.Now()
	d.workers[0].Stop() // fails after 30 s
	t.Logf("stopped after %v with a grace of 1 s", time.Since(begun).Round(time.Millisecond))
	if !strings.Contains(d.workers[0].Out.String(), `"msg":"not booked`) {
		t.Error("the log does not say what was not booked")
	}
	d.redis.Resume()
	d.startWorker()
	d.ready()
	d.opens(slackgate.Paid)
	d.settled(40 * time.Second)
	d.audit(rules{})
}

// pausedJobs complete while Redis stands still.
const pausedJobs = 20

// TestRedisPauses: Redis stops answering for 4 s, without closing a connection,
// just as jobs complete. It is no crash: no job runs twice, and what was
// answered 503 was not admitted behind the producer's back.
func TestRedisPauses(t *testing.T) {
	t.Parallel()
	s := slow()
	s.PaidSlots, s.PaidMS, s.RedisMS = pausedJobs, 500, defaultMS
	d := run(t, s)
	d.api.outage, d.workers[0].outage = true, true
	for range pausedJobs {
		d.admit(client.Job{Class: "paid-only", Text: text})
	}
	d.labs["lab-paid"].busy(pausedJobs)
	d.redis.Pause()
	begun := time.Now()
	var slowest time.Duration
	for time.Since(begun) < 4*time.Second {
		slowest = max(slowest, d.whileAway())
	}
	d.redis.Resume()
	back := time.Now()
	d.ready()
	t.Logf("slowest answer while Redis was paused %v; ready %v after it went on",
		slowest.Round(time.Millisecond), time.Since(back).Round(time.Millisecond))
	d.settled(40 * time.Second)
	again := 0
	for _, s := range d.book.admitted() {
		if s.view.Outcome != broker.OutcomeUsable {
			t.Errorf("job %s ended %s (%s %s): there was time", s.view.ID, s.view.Outcome, s.view.Cause, s.view.Reason)
		}
		again += d.generated(s) - 1
	}
	t.Logf("%d of %d jobs generated twice; outcomes %v", again, pausedJobs, d.outcomes())
	if again > 0 {
		t.Errorf("%d jobs were generated twice; their worker never went away", again)
	}
	d.audit(rules{})
}
