package slackgate

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
)

// order is the waiting jobs of a pool by urgency, as the store keeps them.
type order struct {
	nowMS     int64
	urgencies []int64
}

func (o *order) Before(atMS int64) int64 {
	if atMS == Unbounded {
		return int64(len(o.urgencies))
	}
	return int64(sort.Search(len(o.urgencies), func(i int) bool { return o.urgencies[i] >= o.nowMS+atMS }))
}

// ahead counts the jobs that go before one with this urgency.
func (o *order) ahead(urgency int64) int {
	return sort.Search(len(o.urgencies), func(i int) bool { return o.urgencies[i] > urgency })
}

func (o *order) insert(urgency int64) {
	o.urgencies = slices.Insert(o.urgencies, o.ahead(urgency), urgency)
}

// build returns the ladder of an input.
func build(p LadderInput) *Ladder {
	l := new(Ladder)
	l.Build(&p)
	return l
}

// onePool is a snapshot in which only paid may be used, as found at testNow.
func onePool(l *Ladder, o *order, running int, j *Job) *Snapshot {
	var s Snapshot
	s.Pools[Paid] = PoolState{
		Limit: 64, Capacity: 64, Waiting: len(o.urgencies), Running: running,
		FirstByteP95MS: 1, Ladder: l, Ahead: o.ahead(j.UrgencyAtMS()),
	}
	b := Bounds(&s, *j, Policy{FreeQueueAgeCutMS: Unbounded}, j.SlackMS(testNow))
	s.Pools[Paid].Break = b[0].Check(running, o)
	return &s
}

func decideOne(l *Ladder, o *order, running int, j Job) Result {
	return Decide(onePool(l, o, running, &j), j, Policy{FreeQueueAgeCutMS: Unbounded}, testNow)
}

func paidJob(slackMS, reserveMS int64) Job {
	return Job{DeadlineAtMS: testNow + slackMS + reserveMS, ReserveMS: reserveMS, Prefer: [2]Path{Paid}}
}

// Fixed services can be followed by hand: two workers, 1200 ms each.
func TestLadderFixed(t *testing.T) {
	for _, c := range []struct {
		name    string
		running []int64 // ages
		need    []int64 // by jobs ahead
	}{
		{"both free", nil, []int64{1200, 1200, 2400, 2400, 3600, 3600}},
		{"one free", []int64{200}, []int64{1200, 2200, 2400, 3400, 3600}},
		{"none free", []int64{200, 1100}, []int64{1300, 2200, 2500, 3400, 3700}},
		{"one overdue", []int64{1300, 200}, []int64{1300, 2200, 2500, 3400}},
		{"more running than workers", []int64{200, 600, 1100}, []int64{1800, 2200, 3000, 3400}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := build(LadderInput{Capacity: 2, RunningAgesMS: c.running, Belief: FixedBelief(1200, 1200), ReserveMS: 2000})
			j := paidJob(0, 2000)
			for ahead, want := range c.need {
				if got := l.NeedMS(ahead, &j); got != want {
					t.Errorf("%d ahead: need %d, want %d", ahead, got, want)
				}
			}
		})
	}
}

// The need itself is admitted, a millisecond less is not.
func TestPredictiveBoundary(t *testing.T) {
	l := build(LadderInput{Capacity: 2, RunningAgesMS: []int64{200, 1100}, Belief: FixedBelief(1200, 1200), ReserveMS: 2000})
	o := &order{nowMS: testNow}
	for ahead, need := range []int64{1300, 2200, 2500, 3400, 3700} {
		if r := decideOne(l, o, 2, paidJob(need-1, 2000)); r.Reason != ReasonNoSlack || r.NeedMS[Paid] != need {
			t.Fatalf("%d ahead, slack %d: %s, need %d", ahead, need-1, r.Reason, r.NeedMS[Paid])
		}
		r := decideOne(l, o, 2, paidJob(need, 2000))
		if r.Reason != ReasonPaid || r.NeedMS[Paid] != need || r.PredictedWaitMS != need-1200 {
			t.Fatalf("%d ahead, slack %d: %+v", ahead, need, r)
		}
		o.insert(testNow + need)
	}
}

// A job that could be served in time itself is refused when it would push out
// one that was promised before.
func TestPredictiveKeepsEarlierPromises(t *testing.T) {
	l := build(LadderInput{Capacity: 1, RunningAgesMS: []int64{0}, Belief: FixedBelief(1000, 1000), ReserveMS: 0})
	o := &order{nowMS: testNow}
	patient := paidJob(3000, 0)
	if r := decideOne(l, o, 1, patient); r.Reason != ReasonPaid || r.NeedMS[Paid] != 2000 {
		t.Fatalf("%+v", r)
	}
	o.insert(patient.UrgencyAtMS())
	urgent := paidJob(2500, 0)
	if r := decideOne(l, o, 1, urgent); r.Reason != ReasonPaid || r.NeedMS[Paid] != 2000 {
		t.Fatalf("the first urgent job: %+v", r)
	}
	o.insert(urgent.UrgencyAtMS())
	r := decideOne(l, o, 1, paidJob(2400, 0))
	if r.Reason != ReasonNoSlack || r.NeedMS[Paid] != 2000 || r.BrokenWithinMS[Paid] != 3000 {
		t.Fatalf("the second urgent job: %+v", r)
	}
	if r.RetryAfterMS < 1 {
		t.Fatalf("retry-after %d", r.RetryAfterMS)
	}
}

// With the answer longer than the reserve, the hold decides.
func TestHoldTest(t *testing.T) {
	in := LadderInput{Capacity: 1, Belief: FixedBelief(1200, 4000), ReserveMS: 2000}
	o := &order{nowMS: testNow}
	l := build(in)
	if r := decideOne(l, o, 0, paidJob(1999, 2000)); r.Reason != ReasonNoSlack || r.NeedMS[Paid] != 2000 {
		t.Fatalf("%+v", r)
	}
	if r := decideOne(l, o, 0, paidJob(2000, 2000)); r.Reason != ReasonPaid {
		t.Fatalf("%+v", r)
	}
	in.ReserveMS = Unbounded // first byte only
	l = build(in)
	j := paidJob(1200, 2000)
	j.FirstByteOnly = true
	if r := decideOne(l, o, 0, j); r.Reason != ReasonPaid || r.NeedMS[Paid] != 1200 {
		t.Fatalf("%+v", r)
	}
	if r := decideOne(l, o, 0, paidJob(5000, 2000)); r.Admitted() {
		t.Fatalf("a job that needs its last byte, by a ladder made for none such: %+v", r)
	}
	in.ReserveMS = 0 // a class without any reserve is in play: safe for it too
	l = build(in)
	if r := decideOne(l, o, 0, paidJob(3999, 2000)); r.Reason != ReasonNoSlack {
		t.Fatalf("%+v", r)
	}
}

func TestLadderRefusesNonsense(t *testing.T) {
	good := LadderInput{Capacity: 1, Belief: FixedBelief(1000, 1000)}
	for name, change := range map[string]func(p *LadderInput){
		"no capacity":       func(p *LadderInput) { p.Capacity = 0 },
		"negative capacity": func(p *LadderInput) { p.Capacity = -1 },
		"no belief":         func(p *LadderInput) { p.Belief = Belief{} },
		"NaN":               func(p *LadderInput) { p.Belief.Hold.MeanMS = math.NaN() },
		"NaN variance":      func(p *LadderInput) { p.Belief.Hold.VarMS2 = math.NaN() },
		"infinite":          func(p *LadderInput) { p.Belief.FirstByte.P95MS = math.Inf(1) },
		"negative variance": func(p *LadderInput) { p.Belief.FirstByte.VarMS2 = -1 },
		"negative dispatch": func(p *LadderInput) { p.DispatchMS = -1 },
		"negative reserve":  func(p *LadderInput) { p.ReserveMS = -1 },
		"stuck for ever":    func(p *LadderInput) { p.RunningAgesMS = []int64{math.MaxInt64} },
	} {
		t.Run(name, func(t *testing.T) {
			p := good
			change(&p)
			l := build(p)
			o := &order{nowMS: testNow}
			if r := decideOne(l, o, len(p.RunningAgesMS), paidJob(1<<40, 0)); r.Reason != ReasonGateUnavailable {
				t.Fatalf("%+v", r)
			}
		})
	}
	var zero Ladder
	if r := decideOne(&zero, &order{nowMS: testNow}, 0, paidJob(1<<40, 0)); r.Reason != ReasonGateUnavailable {
		t.Fatalf("%+v", r)
	}
	if r := decideOne(nil, &order{nowMS: testNow}, 0, paidJob(1<<40, 0)); r.Admitted() {
		t.Fatalf("%+v", r)
	}
}

func TestFreeQueueAgeCutByClass(t *testing.T) {
	l := build(LadderInput{Capacity: 1, Belief: FixedBelief(1000, 1000)})
	var s Snapshot
	s.Pools[Free] = PoolState{Limit: 1, Capacity: 1, FirstByteP95MS: 1000, Ladder: l, QueueAgeMS: 90_000, ClassQueueAgeMS: 2999}
	j := Job{DeadlineAtMS: testNow + 60_000, Prefer: [2]Path{Free}}
	for _, c := range []struct {
		cut  int64
		want Reason
	}{{Unbounded, ReasonFree}, {3000, ReasonFree}, {2999, ReasonNoSlack}, {0, ReasonNoSlack}} {
		if r := Decide(&s, j, Policy{FreeQueueAgeCutMS: c.cut}, testNow); r.Reason != c.want || c.want == ReasonNoSlack && r.RetryAfterMS != 0 {
			t.Errorf("cut %d: %+v", c.cut, r)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	l := build(LadderInput{Capacity: 1, RunningAgesMS: []int64{400}, Belief: FixedBelief(1000, 1000)})
	o := &order{nowMS: testNow}
	for range 3 {
		o.insert(testNow + 50_000)
	}
	// Three ahead and 600 ms to go: need 4600. In 1600 ms it is 3000.
	o2 := &order{nowMS: testNow}
	for i := range int64(3) {
		o2.insert(testNow + 1600 + i*1000)
	}
	r := decideOne(l, o2, 1, paidJob(4000, 0))
	if r.Reason != ReasonNoSlack || r.NeedMS[Paid] != 4600 || r.RetryAfterMS != 600 {
		t.Fatalf("%+v", r)
	}
	j := paidJob(4000, 0)
	j.Spread = 0.5
	if r := decideOne(l, o2, 1, j); r.RetryAfterMS != 675 {
		t.Fatalf("spread: %+v", r)
	}
	for _, bad := range []float64{-1, 1, math.NaN(), math.Inf(1)} {
		j.Spread = bad
		if r := decideOne(l, o2, 1, j); r.RetryAfterMS != 600 {
			t.Fatalf("spread %v: %+v", bad, r)
		}
	}
	// Less than even an idle worker needs: waiting cannot help.
	if r := decideOne(l, o2, 1, paidJob(999, 0)); r.RetryAfterMS != 0 {
		t.Fatalf("%+v", r)
	}
	if r := decideOne(l, o2, 1, paidJob(1000, 0)); r.RetryAfterMS == 0 {
		t.Fatalf("%+v", r)
	}
}

// A pool that is closed by what was measured says when its probes may have reopened
// it; one that is closed by what is declared does not.
func TestRetryAfterWhileClosed(t *testing.T) {
	for _, c := range []struct {
		name           string
		state          State
		declared, hold float64
		want           int64
	}{
		{"not identified", NotIdentified, 1000, 1000, 9000},
		{"measured", Measured, 1000, 1000, 9000},
		{"declared as long", Measured, 4001, 4001, 0},
		{"declared with as long a hold", Floored, 1000, 6001, 0},
		{"declared to hold as long as fits", Floored, 1000, 6000, 9000},
		{"nothing measured", Declared, 0, 0, 0},
	} {
		b := FixedBelief(4001, 6000)
		b.State, b.DeclaredFirstByteMS, b.DeclaredHoldMS = c.state, c.declared, c.hold
		l := build(LadderInput{Capacity: 1, Belief: b, ReserveMS: 2000})
		r := decideOne(l, &order{nowMS: testNow}, 0, paidJob(4000, 2000))
		if r.Reason != ReasonNoSlack || r.RetryAfterMS != c.want {
			t.Errorf("%s: %s, to come again in %d ms, want %d", c.name, r.Reason, r.RetryAfterMS, c.want)
		}
	}
}

// The rungs are few, ascending, and the last counts everything.
func TestRungs(t *testing.T) {
	ages := make([]int64, 512)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range ages {
		ages[i] = rng.Int64N(1200)
	}
	for _, c := range []struct{ capacity, running int }{{1, 0}, {1, 1}, {2, 2}, {64, 10}, {64, 64}, {512, 512}, {512, 0}, {4, 12}} {
		for _, b := range []Belief{FixedBelief(1200, 1200), {FirstByte: Lognormal(1200, 0.8), Hold: Lognormal(5000, 1)}} {
			l := build(LadderInput{Capacity: c.capacity, RunningAgesMS: ages[:c.running], Belief: b, ReserveMS: 2000, HorizonMS: 24 * 3600 * 1000})
			r := l.Rungs()
			if len(r) < 10 || len(r) > MaxRungs {
				t.Errorf("%+v: %d rungs", c, len(r))
			}
			if r[0].Max != int64(c.running) || r[len(r)-1].WithinMS != Unbounded {
				t.Errorf("%+v: first %+v, last %+v", c, r[0], r[len(r)-1])
			}
			for i := 1; i < len(r); i++ {
				if r[i].WithinMS <= r[i-1].WithinMS || r[i].Max <= r[i-1].Max || r[i].WaitMS < r[i-1].WaitMS {
					t.Errorf("%+v: rung %d %+v after %+v", c, i, r[i], r[i-1])
				}
			}
		}
	}
}

// FuzzDecide throws any numbers at the decision: it must not panic, and never
// admit without slack.
func FuzzDecide(f *testing.F) {
	f.Add(int64(13000), int64(2000), int64(testNow), 2, 2, 5, int64(0), int64(1200), 1200.0, 0.0, 1200.0, int64(300), true)
	f.Add(int64(math.MaxInt64), int64(0), int64(1), 1, 1, math.MaxInt, int64(0), int64(1), 1e9, 1e18, 1e-9, int64(math.MaxInt64), false)
	f.Fuzz(func(t *testing.T, deadline, reserve, now int64, capacity, running, waiting int, age, p95 int64, mean, variance, q float64, ran int64, seed bool) {
		b := Belief{FirstByte: Dist{mean, variance, q}, Hold: Dist{mean, variance, q}}
		l := build(LadderInput{Capacity: capacity % 600, RunningAgesMS: []int64{ran}, Belief: b, ReserveMS: reserve})
		var s Snapshot
		for _, path := range Paths {
			s.Pools[path] = PoolState{Limit: capacity, Capacity: capacity, Waiting: waiting, Running: running, Ahead: waiting, QueueAgeMS: age, FirstByteP95MS: p95, Ladder: l}
		}
		p := Policy{FreeQueueAgeCutMS: Unbounded}
		if seed {
			p.Rule = Seed
		}
		r := Decide(&s, Job{DeadlineAtMS: deadline, ReserveMS: reserve, Prefer: [2]Path{Paid, Free}}, p, now)
		if r.Admitted() && r.SlackMS <= 0 || r.RetryAfterMS < 0 {
			t.Fatalf("%+v", r)
		}
	})
}
