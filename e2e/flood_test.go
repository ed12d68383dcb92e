//go:build server

package e2e_test

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/rehearsal/proctest"
	"leeway/slackgate"
)

// TestExactBound: 32 callers at once, through two API processes, on a pool
// limited to 8 under the articles' gate: 8 are admitted and 24 are told at once.
func TestExactBound(t *testing.T) {
	t.Parallel()
	s := quick()
	s.Policy = "seed"
	s.PaidSlots, s.PaidMS, s.PaidP95 = 8, 1000, 1500
	s.DeadlineMS, s.ReserveMS = 10_000, 0
	d := deploy(t, s)
	d.env = []string{"ADMIT_FREE=false"}
	d.startWorker()
	d.startAPI()
	one := d.client
	d.startAPI()
	two := d.client
	d.ready()
	const callers = 32
	subs := make([]*submission, callers)
	together(callers, func(i int) {
		subs[i] = d.submitTo([]*client.Client{one, two}[i%2], client.Job{Text: text})
	})
	var slowest time.Duration
	for _, s := range subs {
		if !s.admitted() && (s.refusal == nil || s.refusal.Status != http.StatusTooManyRequests) {
			t.Errorf("answer %+v %v", s.refusal, s.err)
		}
		slowest = max(slowest, s.took)
	}
	if n := d.book.reasons()[slackgate.ReasonPaid]; n != 8 {
		t.Errorf("%d admitted, want 8: %v", n, d.book.reasons())
	}
	t.Logf("answers %v, the slowest after %v", d.book.reasons(), slowest.Round(time.Millisecond))
	d.settled(20 * time.Second)
	d.audit(rules{})
}

// floodFor is how long producers submit as fast as they are answered.
const floodFor = 2 * time.Second

// TestFlood: sixteen producers submit as fast as they are answered, many times
// more than can be served. The most are refused, at once; what was admitted
// before and meanwhile is answered in time.
func TestFlood(t *testing.T) {
	s := quick()
	s.PaidSlots, s.PaidMS, s.PaidP95 = 8, 300, 1500
	s.DeadlineMS, s.ReserveMS, s.RedisMS = 8000, 500, defaultMS
	d := run(t, s)
	for range 8 {
		d.admit(client.Job{Class: "paid-only", Text: text})
	}
	end := time.Now().Add(floodFor)
	together(16, func(int) {
		for time.Now().Before(end) {
			d.submit(client.Job{Class: "paid-only", Text: text})
		}
	})
	var told []time.Duration
	for _, s := range d.book.all() {
		if !s.admitted() {
			told = append(told, s.took)
			if s.refusal == nil || s.refusal.Status != http.StatusTooManyRequests {
				t.Errorf("answer %+v %v", s.refusal, s.err)
			}
		}
	}
	slices.Sort(told)
	admitted := len(d.book.admitted())
	t.Logf("%d submissions in %v: %d admitted; refusals told after %v in the middle and %v at the 99th percentile",
		len(d.book.all()), floodFor, admitted, told[len(told)/2].Round(time.Millisecond), told[len(told)*99/100].Round(time.Millisecond))
	if len(told) < 2*admitted {
		t.Errorf("%d refused and %d admitted: that is no flood", len(told), admitted)
	}
	if p99 := told[len(told)*99/100]; p99 > bound {
		t.Errorf("the 99th percentile of the refusals took %v", p99)
	}
	d.settled(40 * time.Second)
	if usable := d.outcomes()[broker.OutcomeUsable]; usable < admitted*95/100 {
		t.Errorf("outcomes %v of %d admitted", d.outcomes(), admitted)
	}
	d.audit(rules{})
}

// TestProducerGone: a producer that goes while it waits changes nothing.
func TestProducerGone(t *testing.T) {
	t.Parallel()
	s := quick()
	s.PaidMS, s.PaidP95, s.DeadlineMS = 500, 1000, 10_000
	d := run(t, s)
	j := d.admit(client.Job{Text: text})
	d.labs["lab-paid"].busy(1)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if v, err := d.client.Get(ctx, j.verdict.JobID, 10*time.Second); err == nil {
		t.Errorf("the wait was answered: %+v", v)
	}
	if v := d.waitFor(j, 10*time.Second); v.Outcome != broker.OutcomeUsable || v.Attempts != 1 {
		t.Errorf("outcome %+v", v)
	}
	d.audit(rules{})
}

// TestPoison: a job that takes its worker down is offered twice more and then
// set aside; each time stands in the spend ledger, and the pool goes on.
func TestPoison(t *testing.T) {
	t.Parallel()
	s := slow()
	s.PaidSlots, s.DeadlineMS = 1, 60_000
	d := deploy(t, s)
	paid := d.labs["lab-paid"]
	paid.pace(50_000)
	d.startAPI()
	w := d.startWorker()
	d.opens(slackgate.Paid)
	j := d.admit(client.Job{Class: "paid-only", Text: text})
	for n := range 3 {
		if n > 0 {
			w = d.startWorker()
		}
		proctest.Eventually(t, 15*time.Second, "the job is taken", func() error { return d.taken(j, n+1) })
		w.kill()
	}
	d.startWorker()
	v := d.waitFor(j, 15*time.Second)
	if v.Outcome != broker.OutcomeFailed || v.Cause != broker.CauseWorkerLost || v.Attempts != 3 {
		t.Errorf("a poison job ended %s, %s after %d attempts", v.Outcome, v.Cause, v.Attempts)
	}
	for _, r := range d.rows() {
		if r.JobID == j.verdict.JobID && (!lost(&r) || r.CostMicro != r.MaxCostMicro) {
			t.Errorf("a lost attempt is booked as %+v", r)
		}
	}
	paid.pace(100)
	d.opens(slackgate.Paid)
	if v := d.waitFor(d.admit(client.Job{Class: "paid-only", Text: text}), 15*time.Second); v.Outcome != broker.OutcomeUsable {
		t.Errorf("the job after it: %+v", v)
	}
	d.audit(rules{})
}
