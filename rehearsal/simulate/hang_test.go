package simulate

import (
	"testing"

	"leeway/slackgate"
)

// hangWorkload is a pool of one backend and what comes for it: on average half a job
// a second for each slot, from before its calls'th call until 150 s after, of jobs
// with a slack of 4 s.
func hangWorkload(slots, calls int) (Workload, Service) {
	s := LognormalService(0.05)
	s.Workers[slackgate.Paid] = slots
	perSecond := 0.5 * float64(slots)
	w := PoissonWorkload(perSecond, int(float64(calls)/perSecond)+150, [2]slackgate.Path{slackgate.Paid})
	made := w.Make
	w.Make = func(seed uint64) []Arrival {
		jobs := made(seed)
		for i := range jobs {
			jobs[i].DeadlineInMS = articleReserveMS + 4000
		}
		return jobs
	}
	return w, s
}

// After however many good calls, one hung call costs what came while it hung and
// little more; several in a row close the pool, but for seconds; and a backend that
// never answers again is left alone after few calls, with few promises broken. The
// figures stand in docs/decisions/0010-cut-calls.md, from 60 seeds.
func TestHungCalls(t *testing.T) {
	const seeds = 6
	for _, c := range []struct {
		slots, calls         int
		oneLoses, fourLose   float64 // usable answers at most, on average
		deadLate, deadBroken float64 // late, and late or dropped, at most
	}{
		{1, 5, 11, 32, 3, 5}, {1, 25, 11, 36, 3, 5}, {1, 60, 10, 45, 4, 6}, {1, 200, 8, 40, 5, 7},
		{2, 5, 7, 45, 4, 6}, {2, 25, 7, 50, 4, 7}, {2, 60, 5, 50, 5, 8}, {2, 200, 5, 50, 7, 10},
	} {
		w, s := hangWorkload(c.slots, c.calls)
		play := func(hangs func(call int) bool, probeMS int64) (usable, late, dropped float64) {
			for seed := range uint64(seeds) {
				o := Run(w, HangingService(s, hangs, probeMS), PredictiveLearns, seed+1)
				usable, late, dropped = usable+float64(o.Usable)/seeds, late+float64(o.Late)/seeds, dropped+float64(o.Dropped)/seeds
			}
			return
		}
		well, lateWell, droppedWell := play(func(int) bool { return false }, 300)
		one, _, _ := play(func(i int) bool { return i == c.calls }, 300)
		four, _, _ := play(func(i int) bool { return i >= c.calls && i < c.calls+4 }, 300)
		_, late, dropped := play(func(i int) bool { return i >= c.calls }, 0)
		late, dropped = late-lateWell, dropped-droppedWell
		t.Logf("%d slots, %3d calls: one hung call costs %4.1f usable of %5.1f, four cost %4.1f; dead: %.1f late, %.1f dropped",
			c.slots, c.calls, well-one, well, well-four, late, dropped)
		if well-one > c.oneLoses || well-four > c.fourLose {
			t.Errorf("%d slots, %d calls: one hung call costs %.1f, four %.1f", c.slots, c.calls, well-one, well-four)
		}
		if late > c.deadLate || late+dropped > c.deadBroken {
			t.Errorf("%d slots, %d calls: a dead backend makes %.1f late and %.1f dropped", c.slots, c.calls, late, dropped)
		}
	}
}
