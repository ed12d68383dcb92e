package slackgate

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// loaded is two pools of busy workers, and a job that must be told whether it
// can stand among the waiting.
func loaded(workers, waiting int, slackMS int64) (*Snapshot, Job, *order) {
	rng := rand.New(rand.NewPCG(7, 7))
	ages := make([]int64, workers)
	for i := range ages {
		ages[i] = rng.Int64N(1500)
	}
	b := Belief{FirstByte: Lognormal(1200, 0.5), Hold: Lognormal(2400, 0.5)}
	j := Job{DeadlineAtMS: testNow + slackMS + 2000, ReserveMS: 2000, Prefer: [2]Path{Paid, Free}}
	o := &order{nowMS: testNow}
	for i := range waiting {
		o.urgencies = append(o.urgencies, testNow+int64(i)*600_000/int64(waiting))
	}
	var s Snapshot
	for _, path := range Paths {
		l := build(LadderInput{Capacity: workers, RunningAgesMS: ages, Belief: b, ReserveMS: 2000})
		s.Pools[path] = PoolState{Limit: workers, Capacity: workers, Waiting: waiting, Running: workers, FirstByteP95MS: 1200, Ladder: l, Ahead: o.ahead(j.UrgencyAtMS())}
	}
	bounds := Bounds(&s, j, Policy{FreeQueueAgeCutMS: Unbounded}, slackMS)
	for i := range bounds {
		s.Pools[bounds[i].Path].Break = bounds[i].Check(workers, o)
	}
	return &s, j, o
}

// A refusal asks both pools, an admission the first: like is to be compared
// with like. 64 workers cannot keep a million promises of ten minutes.
func BenchmarkDecide(b *testing.B) {
	for _, c := range []struct {
		verdict Path
		waiting int
		slackMS int64
	}{
		{Paid, 0, 13_000}, {Paid, 100, 13_000}, {Paid, 10_000, 13_000},
		{Reject, 0, 1300}, {Reject, 100, 1300}, {Reject, 1_000_000, 13_000},
	} {
		b.Run(fmt.Sprintf("%s, 64 workers, %d waiting", c.verdict, c.waiting), func(b *testing.B) {
			s, j, _ := loaded(64, c.waiting, c.slackMS)
			b.ReportAllocs()
			for b.Loop() {
				sink = Decide(s, j, Policy{FreeQueueAgeCutMS: Unbounded}, testNow)
			}
			if sink.Path != c.verdict {
				b.Fatalf("%+v", sink)
			}
		})
	}
}

// BenchmarkBoundAndCheck is what the store's side costs, in Go.
func BenchmarkBoundAndCheck(b *testing.B) {
	for _, waiting := range []int{0, 100, 10_000, 1_000_000} {
		b.Run(fmt.Sprintf("64 workers, %d waiting", waiting), func(b *testing.B) {
			s, j, o := loaded(64, waiting, 13_000)
			b.ReportAllocs()
			for b.Loop() {
				bounds := Bounds(s, j, Policy{FreeQueueAgeCutMS: Unbounded}, 13_000)
				for i := range bounds {
					s.Pools[bounds[i].Path].Break = bounds[i].Check(64, o)
				}
			}
		})
	}
}

func BenchmarkLadder(b *testing.B) {
	for _, workers := range []int{1, 2, 64, 512} {
		b.Run(fmt.Sprintf("%d workers", workers), func(b *testing.B) {
			p := LadderInput{Capacity: workers, Belief: Belief{FirstByte: Lognormal(1200, 0.5), Hold: Lognormal(2400, 0.5)}, ReserveMS: 2000}
			for i := range workers {
				p.RunningAgesMS = append(p.RunningAgesMS, int64(i*37%2000))
			}
			var l Ladder
			b.ReportAllocs()
			for b.Loop() {
				l.Build(&p)
			}
		})
	}
}

func TestPredictiveAllocatesNothing(t *testing.T) {
	s, j, o := loaded(64, 5000, 13_000)
	l, p := s.Pools[Paid].Ladder, LadderInput{Capacity: 64, RunningAgesMS: make([]int64, 64), Belief: FixedBelief(900, 1000)}
	l.Build(&p)
	if n := testing.AllocsPerRun(50, func() {
		bounds := Bounds(s, j, Policy{FreeQueueAgeCutMS: Unbounded}, 13_000)
		for i := range bounds {
			s.Pools[bounds[i].Path].Break = bounds[i].Check(64, o)
		}
		sink = Decide(s, j, Policy{FreeQueueAgeCutMS: Unbounded}, testNow)
		l.Build(&p)
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
