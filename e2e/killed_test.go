//go:build server

package e2e_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/rehearsal/proctest"
)

// TestWorkerKilledWith64InFlight: a worker dies with 64 calls open. Each of its
// jobs is decided within seconds: those with slack are answered in time by the
// worker that is left, those without are missed and told so.
func TestWorkerKilledWith64InFlight(t *testing.T) {
	t.Parallel()
	const n, hasty = 64, 8
	s := quick()
	s.PaidSlots, s.PaidMS, s.PaidP95 = n, 2500, 3000
	s.DeadlineMS, s.ReserveMS = 60_000, 1000
	d := run(t, s)
	victim := d.workers[0]
	together(n, func(i int) {
		job := client.Job{Class: "paid-only", Text: text}
		if i < hasty { // too little to begin again once the lease has lapsed
			job.DeadlineMS = 5500
		}
		d.submit(job)
	})
	if got := len(d.book.admitted()); got != n {
		t.Fatalf("%d admitted: %v", got, d.book.reasons())
	}
	paid := d.labs["lab-paid"]
	proctest.Eventually(t, 20*time.Second, "all have been called", func() error {
		if got := len(paid.attempts()); got < n {
			return fmt.Errorf("%d have", got)
		}
		return nil
	})
	open := 0
	for _, a := range paid.attempts() {
		if a.Ended == "open" {
			open++
		}
	}
	victim.kill()
	killed := time.Now()
	d.startWorker()
	d.settled(60 * time.Second)

	// A job is decided when it is called again, or has ended.
	decided := map[string]int64{} // ms after the kill
	for _, a := range paid.attempts() {
		for _, s := range d.book.admitted() {
			if a.RequestID == s.verdict.JobID+"-2" {
				decided[s.verdict.JobID] = a.ReceivedAtMS - killed.UnixMilli()
			}
		}
	}
	again := len(decided)
	for _, s := range d.book.admitted() {
		if v := s.view; decided[v.ID] == 0 {
			if at := v.AcceptedAtMS + v.ElapsedMS - killed.UnixMilli(); at > 0 { // else it had ended before
				decided[v.ID] = at
			}
		}
		if v := s.view; s.job.DeadlineMS == 0 && v.Outcome != broker.OutcomeUsable {
			t.Errorf("job %s had time and ended %s (%s %s)", v.ID, v.Outcome, v.Cause, v.Reason)
		}
	}
	var ms []int64
	for _, at := range decided {
		ms = append(ms, at)
	}
	slices.Sort(ms)
	if len(ms) < n/2 || again < n/2-hasty {
		t.Fatalf("%d jobs were in flight at the kill, and %d were called again: too few to tell", len(ms), again)
	}
	p95 := ms[len(ms)*95/100]
	t.Logf("%d calls open at the kill; outcomes %v; %d jobs called again; from SIGKILL to the decision: median %d ms, p95 %d ms, longest %d ms",
		open, d.outcomes(), again, ms[len(ms)/2], p95, ms[len(ms)-1])
	if p95 > 15_000 {
		t.Errorf("the p95 is %d ms: asynq's own recovery is no faster than that", p95)
	}
	paid.busy(0)
	d.audit(rules{})
}
