package slackgate

import (
	"testing"

	"pgregory.net/rapid"
)

// drawBelief draws any belief that can be calculated with.
func drawBelief(t *rapid.T) Belief {
	first := rapid.Float64Range(10, 20_000).Draw(t, "first byte p95")
	sigma := rapid.SampledFrom([]float64{0, 0.2, 0.5, 0.8, 1.2}).Draw(t, "sigma")
	more := rapid.SampledFrom([]float64{0, 0.5, 3}).Draw(t, "answer")
	b := Belief{FirstByte: Lognormal(first, sigma), Hold: Lognormal(first*(1+more), sigma)}
	if rapid.Bool().Draw(t, "floored") {
		b.FirstByte.P95MS *= 1.7
	}
	return b
}

func drawInput(t *rapid.T) LadderInput {
	p := LadderInput{
		Capacity:  rapid.IntRange(1, 70).Draw(t, "capacity"),
		Belief:    drawBelief(t),
		ReserveMS: rapid.SampledFrom([]int64{0, 2000, Unbounded}).Draw(t, "reserve"),
		HorizonMS: rapid.SampledFrom([]int64{20_000, 600_000, 0}).Draw(t, "horizon"),
	}
	n := rapid.IntRange(0, p.Capacity+2).Draw(t, "running")
	for range n {
		p.RunningAgesMS = append(p.RunningAgesMS, rapid.Int64Range(0, 30_000).Draw(t, "age"))
	}
	p.DispatchMS = rapid.Int64Range(0, 20).Draw(t, "dispatch")
	return p
}

func drawOrder(t *rapid.T) *order {
	o := &order{nowMS: testNow}
	n := rapid.IntRange(0, 80).Draw(t, "waiting")
	for range n {
		o.insert(testNow + rapid.Int64Range(-1000, 700_000).Draw(t, "urgency"))
	}
	return o
}

// jobFor is a job of a class that the ladder was built for.
func jobFor(p *LadderInput, slackMS int64) Job {
	if p.ReserveMS == Unbounded {
		j := paidJob(slackMS, 500)
		j.FirstByteOnly = true
		return j
	}
	return paidJob(slackMS, p.ReserveMS)
}

func TestMoreSlackNeverRefuses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawInput(t)
		l, o := build(p), drawOrder(t)
		slack := rapid.Int64Range(1, 800_000).Draw(t, "slack")
		more := rapid.Int64Range(1, 100_000).Draw(t, "more")
		a := decideOne(l, o, len(p.RunningAgesMS), jobFor(&p, slack))
		b := decideOne(l, o, len(p.RunningAgesMS), jobFor(&p, slack+more))
		if a.Admitted() && !b.Admitted() {
			t.Fatalf("admitted with %d, refused with %d: %+v %+v", slack, slack+more, a, b)
		}
	})
}

// A refusal says of how much slack it holds.
func TestRefusedUpTo(t *testing.T) {
	var more, checks int
	rapid.Check(t, func(t *rapid.T) {
		p := drawInput(t)
		l, o := build(p), drawOrder(t)
		slack := rapid.Int64Range(1, 100_000).Draw(t, "slack")
		j := jobFor(&p, slack)
		s := onePool(l, o, len(p.RunningAgesMS), &j)
		policy := Policy{FreeQueueAgeCutMS: Unbounded}
		if res := Decide(s, j, policy, testNow); res.Admitted() {
			return
		}
		b := Bounds(s, j, policy, slack)[0]
		upTo := b.RefusedUpToMS(&s.Pools[Paid], &j)
		checks++
		if upTo <= slack {
			return
		}
		more++
		other := rapid.Int64Range(slack+1, min(upTo, 2_000_000)).Draw(t, "other slack")
		for _, slack := range []int64{other, min(upTo, 2_000_000)} {
			if res := decideOne(l, o, len(p.RunningAgesMS), jobFor(&p, slack)); res.Admitted() {
				t.Fatalf("refused up to %d, admitted with %d: %+v", upTo, slack, res)
			}
		}
	})
	if checks == 0 || more*2 < checks {
		t.Errorf("%d of %d refusals hold for more slack", more, checks)
	}
}

func TestLongerQueueNeverAdmits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawInput(t)
		l, o := build(p), drawOrder(t)
		j := jobFor(&p, rapid.Int64Range(1, 800_000).Draw(t, "slack"))
		a := decideOne(l, o, len(p.RunningAgesMS), j)
		o.insert(testNow + rapid.Int64Range(-1000, 700_000).Draw(t, "one more"))
		b := decideOne(l, o, len(p.RunningAgesMS), j)
		if !a.Admitted() && b.Admitted() {
			t.Fatalf("refused, then admitted with one more waiting: %+v %+v", a, b)
		}
	})
}

func TestNeedIsNeverBelowTheP95(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawInput(t)
		l := build(p)
		j := jobFor(&p, 1)
		last := int64(0)
		for _, ahead := range []int{0, 1, 2, 3, 5, 9, 40, 200, 5000} {
			need := l.NeedMS(ahead, &j)
			if float64(need) < p.Belief.FirstByte.P95MS-1e-3 || need < last {
				t.Fatalf("%d ahead: need %d after %d, p95 %v", ahead, need, last, p.Belief.FirstByte.P95MS)
			}
			last = need
		}
		if idle := p.Capacity - len(p.RunningAgesMS); idle > 0 && p.ReserveMS == Unbounded {
			j.FirstByteOnly = true
			if need := l.NeedMS(idle-1, &j); need != ceilMS(p.Belief.FirstByte.P95MS) {
				t.Fatalf("a free worker: need %d, p95 %v", need, p.Belief.FirstByte.P95MS)
			}
		}
	})
}

// What an admission was compared with is within its slack, and the decision is
// the same as that of the comparisons the store's script makes, rung by rung
// and without any of the short cuts.
func TestDecisionAgreesWithTheScript(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawInput(t)
		l, o := build(p), drawOrder(t)
		j := jobFor(&p, rapid.Int64Range(1, 800_000).Draw(t, "slack"))
		// A job may have been claimed since the ladder was built.
		running := len(p.RunningAgesMS)
		if len(o.urgencies) > 0 && rapid.Bool().Draw(t, "claimed") {
			running++
			o.urgencies = o.urgencies[1:]
		}
		slack := j.SlackMS(testNow)
		b := Bounds(onePool(l, o, running, &j), j, Policy{FreeQueueAgeCutMS: Unbounded}, slack)[0]
		script := len(l.Rungs()) > 0
		for i, r := range l.Rungs() {
			if r.WithinMS <= slack {
				continue
			}
			most := r.Max
			if i == b.First {
				most = b.FirstMax
			}
			if int64(running)+o.Before(r.WithinMS)+1 > most {
				script = false
			}
		}
		r := decideOne(l, o, running, j)
		if r.Admitted() != script {
			t.Fatalf("decision %+v, script %t", r, script)
		}
		if r.Admitted() && r.NeedMS[Paid] > slack {
			t.Fatalf("admitted with a need of %d and a slack of %d", r.NeedMS[Paid], slack)
		}
		if !r.Admitted() && r.NeedMS[Paid] <= slack && r.BrokenWithinMS[Paid] <= slack {
			t.Fatalf("refused without a reason: %+v", r)
		}
	})
}

// The rungs that stand for groups are on the safe side of the exact rule: every
// job admitted by them keeps each waiting job within what its place needs.
func TestRungsAreOnTheSafeSide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawInput(t)
		l, o := build(p), &order{nowMS: testNow}
		running := len(p.RunningAgesMS)
		for range rapid.IntRange(1, 150).Draw(t, "offers") {
			j := jobFor(&p, rapid.Int64Range(1, 90_000).Draw(t, "slack"))
			if r := decideOne(l, o, running, j); r.Admitted() {
				o.insert(j.UrgencyAtMS())
			}
		}
		for i, u := range o.urgencies {
			if need := l.at(i, l.reserve); need > u-testNow {
				t.Fatalf("job %d of %d has %d ms and needs %d", i, len(o.urgencies), u-testNow, need)
			}
		}
	})
}

// If services are what was predicted, no promise is ever broken, whatever
// arrives.
func TestPromisesHoldWhenServicesAreAsPredicted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.Int64Range(50, 3000).Draw(t, "first byte")
		hold := first + rapid.Int64Range(0, 3000).Draw(t, "answer")
		workers := rapid.IntRange(1, 5).Draw(t, "workers")
		reserve := rapid.Int64Range(0, 2000).Draw(t, "reserve")
		type running struct{ started int64 }
		var busy []running
		o := &order{}
		l := new(Ladder)
		now := int64(testNow)
		advance := func(to int64) {
			for {
				for len(busy) < workers && len(o.urgencies) > 0 {
					u := o.urgencies[0]
					o.urgencies = o.urgencies[1:]
					if now+first > u || now+hold > u+reserve {
						t.Fatalf("started at %d with %d left: first byte %d, hold %d", now-testNow, u-now, first, hold)
					}
					busy = append(busy, running{now})
				}
				if len(busy) == 0 || busy[0].started+hold > to {
					now = to
					return
				}
				now = busy[0].started + hold
				busy = busy[1:]
			}
		}
		for range rapid.IntRange(1, 120).Draw(t, "offers") {
			advance(now + rapid.Int64Range(0, 800).Draw(t, "gap"))
			ages := make([]int64, len(busy))
			for i := range busy {
				ages[i] = now - busy[i].started
			}
			l.Build(&LadderInput{Capacity: workers, RunningAgesMS: ages, Belief: FixedBelief(first, hold), ReserveMS: reserve})
			o.nowMS = now
			slack := rapid.Int64Range(1, 30_000).Draw(t, "slack")
			j := Job{DeadlineAtMS: now + slack + reserve, ReserveMS: reserve, Prefer: [2]Path{Paid}}
			s := PoolState{Limit: workers, Capacity: workers, Waiting: len(o.urgencies), Running: len(busy), FirstByteP95MS: first, Ladder: l, Ahead: o.ahead(j.UrgencyAtMS())}
			var snap Snapshot
			snap.Pools[Paid] = s
			b := Bounds(&snap, j, Policy{FreeQueueAgeCutMS: Unbounded}, slack)
			snap.Pools[Paid].Break = b[0].Check(len(busy), o)
			if r := Decide(&snap, j, Policy{FreeQueueAgeCutMS: Unbounded}, now); r.Admitted() {
				o.insert(j.UrgencyAtMS())
			}
		}
		advance(now + 100_000)
	})
}
