//go:build server

package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/rehearsal/proctest"
	"leeway/slackgate"
)

// slow is a deployment whose paid jobs take long enough to be met in flight.
func slow() settings {
	s := quick()
	s.PaidMS, s.PaidP95 = 800, 1200
	s.DeadlineMS, s.ReserveMS = 25_000, 1000
	return s
}

// lost is true for the row of an attempt whose worker went away.
func lost(r *broker.SpendRow) bool { return r.Known == broker.KnownUnknown && r.Result == "lost" }

// TestWorkerKilled: each job of a worker that dies is decided seconds later,
// and what its attempt cost stays on the books as unknown.
func TestWorkerKilled(t *testing.T) {
	t.Parallel()
	d := run(t, slow())
	victim := d.workers[0]
	for range 5 {
		d.admit(client.Job{Class: "paid-only", Text: text})
	}
	d.labs["lab-paid"].busy(2)
	inFlight := d.labs["lab-paid"].attempts()
	victim.kill() // while they are: another worker takes its time to start
	killed := time.Now()
	d.startWorker()
	d.settled(30 * time.Second)

	again := map[string]int64{} // second attempts by job, in ms after the kill
	for _, a := range d.labs["lab-paid"].attempts() {
		for _, s := range d.book.admitted() {
			if a.RequestID == s.verdict.JobID+"-2" {
				again[s.verdict.JobID] = a.ReceivedAtMS - killed.UnixMilli()
			}
		}
	}
	t.Logf("from SIGKILL to the next attempt: %v ms; outcomes %v", again, d.outcomes())
	if len(again) != 2 {
		t.Errorf("%d jobs were attempted again, want the 2 in flight", len(again))
	}
	for id, ms := range again {
		if ms > 15_000 {
			t.Errorf("job %s was decided %d ms after the kill", id, ms)
		}
	}
	if n := d.outcomes()[broker.OutcomeUsable]; n != 5 {
		t.Errorf("outcomes %v: there was time for all", d.outcomes())
	}
	unknown := map[string]broker.SpendRow{}
	for _, r := range d.rows() {
		if lost(&r) {
			unknown[fmt.Sprintf("%s-%d", r.JobID, r.Attempt)] = r
		}
	}
	for _, a := range inFlight {
		if a.Ended != "open" {
			continue
		}
		if r, ok := unknown[a.RequestID]; !ok || r.CostMicro != r.MaxCostMicro || r.CostMicro <= 0 || r.OutputTokens <= 0 {
			t.Errorf("attempt %s was lost and is booked as %+v", a.RequestID, r)
		}
		delete(unknown, a.RequestID)
	}
	if len(unknown) > 0 {
		t.Errorf("rows of attempts that were not lost: %v", unknown)
	}
	d.labs["lab-paid"].busy(0)
	d.audit(rules{})
}

// TestWorkerKilledAlone: with no other worker, what cannot be made any more
// ends as a miss, and the gate says that the pool is down.
func TestWorkerKilledAlone(t *testing.T) {
	t.Parallel()
	s := slow()
	s.DeadlineMS = 5000
	d := run(t, s)
	for range 3 {
		d.admit(client.Job{Class: "paid-only", Text: text})
	}
	d.labs["lab-paid"].busy(2)
	d.workers[0].kill()
	proctest.Eventually(t, 10*time.Second, "pool down", func() error {
		if got := d.submit(client.Job{Class: "paid-only", Text: text}).reason(); got != slackgate.ReasonPoolDown {
			return fmt.Errorf("the gate says %s", got)
		}
		return nil
	})
	d.settled(20 * time.Second)
	for _, s := range d.book.admitted() {
		if s.view.Outcome == broker.OutcomeUsable {
			t.Errorf("usable without a worker: %+v", s.view)
		}
	}
	t.Logf("outcomes %v", d.outcomes())
	d.audit(rules{})
}

// TestAPIKilled: an API that dies in the middle of a flood leaks no slot and
// loses no job that it had acknowledged.
func TestAPIKilled(t *testing.T) {
	d := run(t, quick())
	victim := d.api
	flooded := make(chan struct{})
	go func() {
		defer close(flooded)
		together(8, func(int) {
			for d.submit(client.Job{Text: text}).err == nil {
			}
		})
	}()
	proctest.Eventually(t, 20*time.Second, "flood", func() error {
		if n := len(d.book.all()); n < 60 {
			return fmt.Errorf("%d answers", n)
		}
		return nil
	})
	victim.kill()
	<-flooded
	d.startAPI()
	d.ready()
	d.settled(30 * time.Second)
	unanswered := 0
	for _, s := range d.book.all() {
		if s.err != nil {
			unanswered++
		}
	}
	// Ghosts, admitted and never acknowledged, end too.
	proctest.Eventually(t, 20*time.Second, "nothing in flight", func() error {
		for p, pg := range d.metrics() {
			if n := pg.get(`job_inflight{path="paid"}`) + pg.get(`job_inflight{path="free"}`); n != 0 {
				return fmt.Errorf("%s says %d", p.name, n)
			}
		}
		return nil
	})
	t.Logf("%d answered, %d not; answers %v, outcomes %v", len(d.book.all())-unanswered, unanswered, d.book.reasons(), d.outcomes())
	if len(d.book.admitted()) == 0 || unanswered == 0 {
		t.Error("the kill did not come in the middle")
	}
	for _, s := range d.book.admitted() {
		// On a machine that stands still for a second a promise may break; it
		// must then be told as a miss, not lost.
		if o := s.view.Outcome; o != broker.OutcomeUsable && o != broker.OutcomeExpired && o != broker.OutcomeLate {
			t.Errorf("job %s ended %s %s", s.view.ID, o, s.view.Reason)
		}
	}
	// The slots are free again.
	if v := d.waitFor(d.admit(client.Job{Class: "paid-only", Text: text}), 10*time.Second); v.Outcome != broker.OutcomeUsable {
		t.Errorf("the job after: %+v", v)
	}
	d.audit(rules{unanswered: unanswered})
}

// TestWorkerStops: a worker that is told to stop lets its jobs end; told
// twice, it hands them back, and another one finishes them.
func TestWorkerStops(t *testing.T) {
	t.Parallel()
	d := run(t, slow())
	paid := d.labs["lab-paid"]
	first := d.workers[0]
	for range 4 {
		d.admit(client.Job{Class: "paid-only", Text: text})
	}
	paid.busy(2)
	begun := time.Now()
	first.stop()
	t.Logf("one SIGTERM with two jobs in flight: ended after %v", time.Since(begun).Round(time.Millisecond))
	ended := 0
	for _, s := range d.book.admitted() {
		if v := d.view(s.verdict.JobID); v.State == broker.StateDone {
			ended++
			if v.Outcome != broker.OutcomeUsable || v.Attempts != 1 {
				t.Errorf("a job in flight ended %s after %d attempts", v.Outcome, v.Attempts)
			}
		}
	}
	if ended != 2 {
		t.Errorf("%d jobs have ended, want the 2 in flight", ended)
	}

	second := d.startWorker()
	d.opens(slackgate.Paid)
	paid.pace(5000)
	for range 2 { // the two that waited may have begun at the old pace
		d.admit(client.Job{Class: "paid-only", Text: text})
	}
	proctest.Eventually(t, 10*time.Second, "two slow requests in service", func() error {
		open := 0
		for _, a := range paid.attempts() {
			if a.Ended == "open" && time.Now().UnixMilli()-a.ReceivedAtMS > 1500 {
				open++
			}
		}
		if open != 2 {
			return errors.New("not yet")
		}
		return nil
	})
	begun = time.Now()
	second.Signal(syscall.SIGTERM)
	proctest.Eventually(t, 5*time.Second, "worker is stopping", func() error {
		for _, l := range second.lines() {
			if msg, _ := l["msg"].(string); len(msg) > 8 && msg[:8] == "stopping" {
				return nil
			}
		}
		return errors.New("no line says so")
	})
	second.stop()
	t.Logf("a second SIGTERM: ended after %v", time.Since(begun).Round(time.Millisecond))
	if took := time.Since(begun); took > 4*time.Second {
		t.Errorf("two SIGTERMs took %v: the jobs were waited for", took)
	}
	paid.busy(0)
	paid.pace(100)
	d.startWorker()
	d.settled(30 * time.Second)
	twice := 0
	for _, s := range d.book.admitted() {
		if s.view.Outcome != broker.OutcomeUsable {
			t.Errorf("job %s ended %s %s", s.view.ID, s.view.Outcome, s.view.Reason)
		}
		if s.view.Attempts == 2 {
			twice++
		}
	}
	if twice != 2 {
		t.Errorf("%d jobs were attempted twice, want the 2 handed back", twice)
	}
	d.audit(rules{})
}

// TestNoWorker: without a worker the gate says so; one that joins or leaves
// changes its answer within moments.
func TestNoWorker(t *testing.T) {
	t.Parallel()
	d := deploy(t, quick())
	d.startAPI()
	s := d.submit(client.Job{Text: text})
	if s.reason() != slackgate.ReasonPoolDown || s.refusal.Status != http.StatusServiceUnavailable {
		t.Fatalf("without a worker: %+v %v", s.refusal, s.err)
	}
	becomes := func(what string, want slackgate.Reason) {
		t.Helper()
		begun := time.Now()
		proctest.Eventually(t, 6*time.Second, what, func() error {
			if got := d.submit(client.Job{Text: text}).reason(); got != want {
				return fmt.Errorf("the gate says %s, want %s", got, want)
			}
			return nil
		})
		took := time.Since(begun)
		t.Logf("%s: the gate says %s after %v", what, want, took.Round(time.Millisecond))
		if took > 3*time.Second {
			t.Errorf("%s: the gate took %v to notice", what, took)
		}
	}
	free := d.startWorker("LEEWAY_PAID_SLOTS=0")
	becomes("a worker for free joined", slackgate.ReasonFree)
	paid := d.startWorker("LEEWAY_FREE_SLOTS=0")
	becomes("a worker for paid joined", slackgate.ReasonPaid)
	d.settled(20 * time.Second)
	paid.stop()
	becomes("the worker for paid left", slackgate.ReasonFree)
	d.settled(20 * time.Second)
	free.stop()
	becomes("both left", slackgate.ReasonPoolDown)
	d.audit(rules{})
}
