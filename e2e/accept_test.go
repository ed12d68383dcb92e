//go:build server && accept

package e2e_test

import (
	"testing"
	"time"

	"leeway/slackgate/simulate"
)

// TestAcceptDeclaredWorkload runs the articles' workload live, twice: 8 jobs a
// second for 90 s, deadline 15 s, reserve 2 s, paid 2 x 1200 ms, free 1 x
// 4000 ms.
func TestAcceptDeclaredWorkload(t *testing.T) {
	w := workload{every: 125 * time.Millisecond, jobs: 720, deadlineMS: 15_000, reserveMS: 2000, paidMS: 1200, freeMS: 4000}
	sim := simulate.Run(simulate.DeclaredWorkload(), simulate.FixedService(0), simulate.Predictive, 1)
	for _, name := range []string{"first", "second"} {
		t.Run(name, func(t *testing.T) {
			s := quick()
			s.PaidMS, s.PaidP95, s.FreeMS, s.FreeP95 = w.paidMS, w.paidMS, w.freeMS, w.freeMS
			s.DeadlineMS, s.ReserveMS = w.deadlineMS, w.reserveMS
			d := run(t, s)
			r := d.play(w)
			t.Logf("live: %d offered, %d admitted: %d usable, %d late, %d expired, %d otherwise; simulated %d usable, %d late, %d dropped; any schedule: at most %d",
				w.jobs, r.admitted, r.usable, r.late, r.expired, r.other, sim.Usable, sim.Late, sim.Dropped, w.best())
			if r.usable < 180 {
				t.Errorf("%d usable, want at least 180 of %d", r.usable, w.best())
			}
			if 100*r.late > r.admitted {
				t.Errorf("%d late of %d admitted, want at most 1 %%", r.late, r.admitted)
			}
			if r.undecided > 0 {
				t.Errorf("%d submissions got no decision", r.undecided)
			}
			d.audit(rules{})
		})
	}
}

// TestAcceptKills is the chaos run over 5,000 submissions, or over as many as
// -chaos.jobs says: whatever is killed, ledgers balance and the backends' own
// logs match the spend rows one to one.
func TestAcceptKills(t *testing.T) {
	if *chaosJobs == 0 {
		*chaosJobs, *chaosRate = 5000, 20
	}
	runChaos(t)
}
