//go:build server

package e2e_test

import (
	"slices"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
)

// TestSlowPrimary plays the second article's fault over real processes, at
// three times its times so that a busy machine does not decide: the primary
// takes nine seconds although its p95 is declared as one and a half, callers
// wait 4.5 s, the second backend is healthy. All eight are served in time,
// which no count of attempts would have done.
func TestSlowPrimary(t *testing.T) {
	t.Parallel()
	s := quick()
	s.Spare = true
	s.PaidSlots, s.PaidP95 = 8, 1500
	s.DeadlineMS, s.ReserveMS = 4500, 0
	d := run(t, s)
	d.labs["lab-paid"].pace(9000) // the spare stays as it is
	together(8, func(int) { d.admit(client.Job{Class: "paid-only", Text: documents(t)[0]}) })
	d.settled(20 * time.Second)
	var took []int64
	inTime := 0
	for _, j := range d.book.admitted() {
		took = append(took, j.view.ElapsedMS)
		if j.view.Outcome == broker.OutcomeUsable {
			inTime++
		}
	}
	slices.Sort(took)
	t.Logf("deadline-owned: %d of 8 in time, p50 %d ms", inTime, took[len(took)/2])
	if inTime != 8 {
		t.Errorf("%d of 8 in time: %v ms", inTime, took)
	}
	d.labs["lab-paid"].busy(0)
	d.audit(rules{})
}
