package latency

import (
	"math"
	"math/rand/v2"
	"testing"

	"leeway/slackgate"
)

var declared = slackgate.Fixed(4000)

// of returns a histogram of n calls of ms each, cut or not.
func of(n int, ms int64, cut bool) *Histogram {
	var h Histogram
	for range n {
		h.Add(ms, cut)
	}
	return &h
}

// mix returns a histogram of some calls that ended and some that were cut.
func mix(ended int, ms int64, cut int, cutMS int64) *Histogram {
	h := of(ended, ms, false)
	h.Merge(of(cut, cutMS, true))
	return h
}

func TestEstimateStates(t *testing.T) {
	for _, c := range []struct {
		name     string
		slices   []Slice
		inFlight []int64
		state    slackgate.State
		p95      float64 // and up to one bucket more
		samples  int
		window   int64
	}{
		{"nothing", nil, nil, slackgate.Declared, 4000, 0, 0},
		{"in flight, not late yet", nil, []int64{100, 3900}, slackgate.Declared, 4000, 0, 0},
		{"in flight for long", nil, []int64{9000}, slackgate.NotIdentified, 9000 * 1.2, 0, 0},
		{"in flight, a little late", nil, []int64{4100}, slackgate.NotIdentified, 4200, 0, 0},
		{"in flight, as long as those that ended", []Slice{{0, of(8, 4000, false)}}, []int64{4000}, slackgate.Floored, 4000, 8, 15 * 60_000},
		{"in flight, as long as those that ended late", []Slice{{0, of(8, 6000, false)}}, []int64{6000}, slackgate.Floored, 6000, 8, 15 * 60_000},
		{"in flight, longer than those that ended, not late yet", []Slice{{0, of(8, 2000, false)}}, []int64{3900}, slackgate.Floored, 4000, 8, 15 * 60_000},
		{"in flight, a little longer than those that ended", []Slice{{0, of(8, 4000, false)}}, []int64{4100, 4100}, slackgate.NotIdentified, 4200 - 0.01*4000, 8, 15 * 60_000},
		{"in flight for long, others ended", []Slice{{0, of(8, 4000, false)}}, []int64{9000, 9100}, slackgate.NotIdentified, 9000 * 1.2, 8, 15 * 60_000},
		{"many in flight, as long as those that ended", []Slice{{0, of(60, 1000, false)}}, []int64{1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000}, slackgate.Measured, 1000, 60, 60_000},
		{"one alone in flight for long, others ended", []Slice{{0, of(8, 4000, false)}}, []int64{9000}, slackgate.Floored, 4000, 8, 15 * 60_000},
		{"one in flight for long beside one that was cut", []Slice{{0, mix(8, 1000, 1, 9000)}}, []int64{9000}, slackgate.NotIdentified, 9000 * 1.2, 9, 15 * 60_000},
		{"58 fast calls", []Slice{{0, of(58, 1000, false)}}, nil, slackgate.Floored, 4000, 58, 15 * 60_000},
		{"59 fast calls", []Slice{{0, of(59, 1000, false)}}, nil, slackgate.Measured, 1000, 59, 60_000},
		{"58 slow calls", []Slice{{0, of(58, 9000, false)}}, nil, slackgate.Floored, 9000, 58, 15 * 60_000},
		{"59 slow calls", []Slice{{0, of(59, 9000, false)}}, nil, slackgate.Measured, 9000, 59, 60_000},
		{"all cut", []Slice{{0, of(100, 9000, true)}}, nil, slackgate.NotIdentified, 9000 * 1.2, 100, 60_000},
		{"one cut, none ended", []Slice{{0, of(1, 9000, true)}}, nil, slackgate.NotIdentified, 9000 * 1.2, 1, 15 * 60_000},
		{"one cut beside one that ended", []Slice{{0, mix(1, 100, 1, 9000)}}, nil, slackgate.Floored, 4000, 2, 15 * 60_000},
		{"one cut beside one that ended late", []Slice{{0, mix(1, 6000, 1, 9000)}}, nil, slackgate.Floored, 6000, 2, 15 * 60_000},
		{"two cut beside five that ended", []Slice{{0, mix(5, 100, 2, 9000)}}, nil, slackgate.NotIdentified, 9000 * 1.2, 7, 15 * 60_000},
		{"two cut, then two that ended", []Slice{{0, of(2, 100, false)}, {5000, mix(5, 100, 2, 9000)}}, nil, slackgate.NotIdentified, 9000 * 1.2, 9, 15 * 60_000},
		{"two cut, then three that ended", []Slice{{0, of(3, 100, false)}, {5000, mix(5, 100, 2, 9000)}}, nil, slackgate.Floored, 4000, 10, 15 * 60_000},
		{"two cut, then three that ended late", []Slice{{0, of(3, 9000, false)}, {5000, mix(5, 100, 2, 9000)}}, nil, slackgate.Floored, 9000, 10, 15 * 60_000},
		{"two cut, three that ended, and cut again", []Slice{{0, of(1, 9000, true)}, {5000, of(3, 100, false)}, {10_000, mix(5, 100, 2, 9000)}}, nil, slackgate.NotIdentified, 9000 * 1.2, 11, 15 * 60_000},
		{"many cut of many, then three that ended", []Slice{{0, of(3, 100, false)}, {5000, mix(90, 100, 10, 9000)}}, nil, slackgate.Floored, 4000, 103, 60_000},
		{"few and cut early", []Slice{{0, of(10, 500, true)}}, nil, slackgate.Floored, 4000, 10, 15 * 60_000},
		{"one minute is not enough, five are", []Slice{{0, of(30, 1000, false)}, {100_000, of(29, 1000, false)}}, nil, slackgate.Measured, 1000, 59, 5 * 60_000},
		{"five are not enough", []Slice{{0, of(30, 1000, false)}, {400_000, of(29, 1000, false)}}, nil, slackgate.Measured, 1000, 59, 15 * 60_000},
		{"what is older is not read", []Slice{{0, of(30, 1000, false)}, {900_001, of(29, 9000, false)}}, nil, slackgate.Floored, 4000, 30, 15 * 60_000},
		{"enough in the first minute", []Slice{{60_000, of(59, 1000, false)}, {60_001, of(500, 9000, false)}}, nil, slackgate.Measured, 1000, 59, 60_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			var e Estimator
			for range 2 { // the second reuses memory
				got := e.Estimate(c.slices, c.inFlight, declared)
				if got.State != c.state || got.Samples != c.samples || got.WindowMS != c.window {
					t.Fatalf("%+v, want state %s, %d samples, window %d", got, c.state, c.samples, c.window)
				}
				if got.P95MS < c.p95-1e-6 || got.P95MS > c.p95*Width*1.0001 {
					t.Fatalf("p95 %v, want %v", got.P95MS, c.p95)
				}
				b := slackgate.Belief{FirstByte: got.Dist, Hold: got.Dist}
				if !b.OK() {
					t.Fatalf("cannot be calculated with: %+v", got)
				}
			}
		})
	}
}

// A call in flight counts as cut at its age: many that hang raise the p95
// before one has ended.
func TestInFlightCounts(t *testing.T) {
	var e Estimator
	s := []Slice{{0, of(60, 1000, false)}}
	if got := e.Estimate(s, []int64{300, 600}, declared); got.State != slackgate.Measured || got.P95MS > 1011 {
		t.Fatalf("%+v", got)
	}
	hung := []int64{8000, 8000, 8000, 8000, 8000, 8000}
	if got := e.Estimate(s, hung, declared); got.P95MS < 8000 {
		t.Fatalf("%+v", got)
	}
}

// As a call in flight grows old, what is believed grows with it and does not
// leap: in each millisecond by two and the width of a bucket at most.
func TestInFlightGrows(t *testing.T) {
	for name, s := range map[string][]Slice{
		"nothing ended":                 nil,
		"few ended, one was cut":        {{0, mix(7, 2000, 1, 9000)}},
		"few ended":                     {{0, of(7, 4000, false)}},
		"few ended, of several lengths": {{0, of(5, 2500, false)}, {0, of(2, 5200, false)}},
		"longer than declared":          {{0, of(7, 6000, false)}},
	} {
		t.Run(name, func(t *testing.T) {
			var e Estimator
			was := e.Estimate(s, nil, declared).P95MS
			for age := range int64(20_000) {
				got := e.Estimate(s, []int64{age, age}, declared).P95MS
				if got < was-1e-6 || got > was*Width*1.0001+2 {
					t.Fatalf("at an age of %d ms the p95 goes from %.0f to %.0f", age, was, got)
				}
				was = got
			}
			if want := 19_999 * NotIdentifiedFactor; math.Abs(was-want) > 1e-6 {
				t.Fatalf("a call that hangs: %.0f, want %.0f", was, want)
			}
		})
	}
}

func lognormalSlices(rng *rand.Rand, n, perSlice int, factor func(slice int) float64) []Slice {
	var s []Slice
	for i := range n {
		h := new(Histogram)
		for range perSlice {
			h.Add(int64(500*factor(i)*math.Exp(0.5*rng.NormFloat64())), false)
		}
		s = append(s, Slice{AgeMS: int64(i) * SliceMS, Calls: h})
	}
	return s
}

// Eight calls after a slowdown by three are nearly always enough to believe in
// it; in steady weather a change is hardly ever seen.
func TestChange(t *testing.T) {
	var e Estimator
	rng := rand.New(rand.NewPCG(5, 5))
	const trials = 300
	found, sum, false1 := 0, 0.0, 0
	for range trials {
		slow := lognormalSlices(rng, 12, 8, func(i int) float64 {
			if i == 0 {
				return 3
			}
			return 1
		})
		if got := e.Estimate(slow, nil, declared); got.Change > 1 {
			found++
			sum += math.Log(got.Change)
		}
		if got := e.Estimate(lognormalSlices(rng, 12, 8, func(int) float64 { return 1 }), nil, declared); got.Change != 1 {
			false1++
		}
	}
	t.Logf("found %d of %d slowdowns by 3, on average %.2f; %d changes seen where there were none", found, trials, math.Exp(sum/float64(found)), false1)
	if found < trials*9/10 || false1 > trials/50 {
		t.Error("too few or too many")
	}
	if m := math.Exp(sum / float64(found)); m < 2.7 || m > 3.3 {
		t.Errorf("the slowdown is believed to be %.2f", m)
	}
}

// A change the other way is found too, and a p95 that was measured follows.
func TestChangeBack(t *testing.T) {
	var e Estimator
	rng := rand.New(rand.NewPCG(6, 6))
	s := lognormalSlices(rng, 12, 10, func(i int) float64 {
		if i < 2 {
			return 1
		}
		return 4
	})
	got := e.Estimate(s, nil, declared)
	if got.Change > 0.5 || got.P95MS > 1800 {
		t.Fatalf("%+v", got)
	}
}

// Equal services are no change, however little they vary.
func TestNoChangeAmongEqualCalls(t *testing.T) {
	var e Estimator
	s := []Slice{{0, of(40, 1210, false)}, {5000, of(40, 1200, false)}, {10_000, of(40, 1190, false)}}
	if got := e.Estimate(s, []int64{1199}, declared); got.Change != 1 {
		t.Fatalf("%+v", got)
	}
}

// Neither is a single call, however long it hung or hangs, among however many that
// did not; two are, of a backend whose calls all take the same time.
func TestNoChangeByOneCall(t *testing.T) {
	var e Estimator
	for _, ended := range []int{8, 25, 60, 200} {
		early := Slice{10_000, of(ended, 400, false)}
		for _, more := range []int{0, 1, 3, 10} {
			got := e.Estimate([]Slice{{0, mix(more, 400, 1, 13_000)}, early}, nil, declared)
			if got.Change != 1 {
				t.Errorf("one of %d was cut: a change by %.1f is seen", ended+more+1, got.Change)
			}
		}
		if got := e.Estimate([]Slice{early}, []int64{13_000}, declared); got.Change != 1 {
			t.Errorf("one hangs after %d: a change by %.1f is seen", ended, got.Change)
		}
		if got := e.Estimate([]Slice{{0, of(2, 13_000, true)}, early}, nil, declared); got.Change == 1 {
			t.Errorf("two were cut after %d: no change is seen", ended)
		}
	}
}

func TestMomentsFollowTheSamples(t *testing.T) {
	var e Estimator
	got := e.Estimate([]Slice{{0, of(2000, 1000, false)}}, nil, declared)
	if math.Abs(got.MeanMS-1000) > 20 {
		t.Fatalf("%+v", got)
	}
	got = e.Estimate([]Slice{{0, of(2, 1000, false)}}, nil, declared)
	if got.MeanMS < 3000 {
		t.Fatalf("two calls outweigh what is declared: %+v", got)
	}
}

func BenchmarkEstimate(b *testing.B) {
	rng := rand.New(rand.NewPCG(5, 5))
	s := lognormalSlices(rng, 12, 100, func(int) float64 { return 1 })
	var e Estimator
	b.ReportAllocs()
	for b.Loop() {
		e.Estimate(s, []int64{100, 200}, declared)
	}
}
