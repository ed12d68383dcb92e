//go:build server && accept

package e2e_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"leeway/rehearsal/redistest"
	"leeway/rehearsal/simulate"
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

var (
	durabilityKills = flag.Int("durability.kills", 8, "how often Redis dies under each setting")
	durabilitySeed  = flag.Uint64("durability.seed", 1, "seed of the instants at which Redis dies")
)

var cut = deathOf{"power cut", func(tb testing.TB, s *redistest.Server) {
	tb.Helper()
	cutPower(tb, s)
}}

// everysecLoses is how far back a death may reach under "everysec": Redis lets a
// sync take up to two seconds before it waits for it, and begins one a second.
const everysecLoses = 3 * time.Second

// TestAcceptRedisDies kills Redis, and cuts its power, again and again under
// 200 submissions a second. With "always" no acknowledged job is missing. With
// "everysec" what came last may be, and no more than that; what is left agrees
// with itself.
func TestAcceptRedisDies(t *testing.T) {
	for _, fsync := range []string{"always", "everysec"} {
		for _, how := range []deathOf{killed, cut} {
			t.Run(fsync+" "+how.name, func(t *testing.T) {
				d := dying(t, fsync, startSynced)
				rng := rand.New(rand.NewPCG(*durabilitySeed, 0))
				var sum death
				with := 0
				for range *durabilityKills {
					got := d.die(how, 1500*time.Millisecond+time.Duration(rng.IntN(1000))*time.Millisecond, 500*time.Millisecond)
					sum.acknowledged += got.acknowledged
					sum.missing += got.missing
					sum.before = max(sum.before, got.before)
					if got.missing > 0 {
						with++
					}
				}
				d.balanced()
				unbooked := d.unbooked()
				t.Logf("appendfsync %s, %d times %s: %d jobs acknowledged, %d missing after %d of the deaths, the oldest acknowledged %v before; %d calls without a spend row",
					fsync, *durabilityKills, how.name, sum.acknowledged, sum.missing, with, sum.before.Round(time.Millisecond), unbooked)
				if fsync == "always" && sum.missing+unbooked > 0 {
					t.Errorf("%d acknowledged jobs are missing, %d calls have no spend row", sum.missing, unbooked)
				}
				if sum.before > everysecLoses {
					t.Errorf("a job that was acknowledged %v before the death is missing", sum.before)
				}
			})
		}
	}
}

// unbooked is how many calls the backends saw that have no spend row.
func (d *stack) unbooked() (n int) {
	d.t.Helper()
	booked := map[string]bool{}
	for _, r := range d.rows() {
		booked[fmt.Sprintf("%s-%d", r.JobID, r.Attempt)] = true
	}
	for _, b := range d.labs {
		for _, a := range b.attempts() {
			if !booked[a.RequestID] {
				n++
			}
		}
	}
	return n
}
