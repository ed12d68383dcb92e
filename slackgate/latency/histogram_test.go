package latency

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestBucketBounds(t *testing.T) {
	for _, c := range []struct {
		ms   float64
		want int
	}{
		{math.Inf(-1), 0}, {-1, 0}, {0, 0}, {1, 0}, {math.NaN(), 0},
		{1.0101, 1}, {7 * 24 * 3600 * 1000, 2032}, {1e300, Buckets - 1}, {math.Inf(1), Buckets - 1},
	} {
		if got := Bucket(c.ms); got != c.want {
			t.Errorf("%v ms: bucket %d, want %d", c.ms, got, c.want)
		}
	}
	for b := range Buckets - 1 {
		if lo, hi := edge(b), edge(b+1); Bucket(lo*1.0001) != b || Bucket(hi*0.9999) != b {
			t.Fatalf("bucket %d does not hold %v to %v", b, lo, hi)
		}
	}
}

func TestFields(t *testing.T) {
	var h Histogram
	for _, c := range []struct {
		ms  int64
		cut bool
		n   int64
	}{{1200, false, 3}, {1200, true, 2}, {1, false, 1}, {math.MaxInt64, true, 1}} {
		if err := h.AddField(Field(c.ms, c.cut), c.n); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.AddField(SumField, 3601); err != nil {
		t.Fatal(err)
	}
	if h.Samples() != 7 || h.done[Bucket(1200)] != 3 || h.cut[Bucket(1200)] != 2 || h.cut[Buckets-1] != 1 || h.doneMS != 3601 {
		t.Fatalf("%d samples", h.Samples())
	}
	for _, field := range []string{"", "d", "x5", "d2048", "d-1", "d 1", "d1e3", "d99999999", "c12x", "D5", "summ"} {
		if err := h.AddField(field, 1); err == nil {
			t.Errorf("%q was taken", field)
		}
	}
	for _, n := range []int64{-1, MaxCount + 1, math.MinInt64} {
		if err := h.AddField("d5", n); err == nil {
			t.Errorf("a count of %d was taken", n)
		}
	}
	if err := h.AddField(SumField, -1); err == nil {
		t.Error("a negative sum was taken")
	}
	if h.Samples() != 7 {
		t.Fatal("a refused field was counted")
	}
}

// An error names the bucket in few words, whatever came in.
func FuzzAddField(f *testing.F) {
	f.Add("d712", int64(3))
	f.Add("c0", int64(-1))
	f.Add("sum", int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, field string, count int64) {
		var h Histogram
		if err := h.AddField(field, count); err != nil && len(err.Error()) > 200 {
			t.Fatalf("the error is %d bytes long", len(err.Error()))
		}
		ms, _ := h.Quantile(0.95)
		mean, variance := h.Moments()
		if !(ms >= 0 && mean >= 0 && variance >= 0) {
			t.Fatalf("%v %v %v", ms, mean, variance)
		}
	})
}

func TestQuantileWithoutCuts(t *testing.T) {
	var h Histogram
	if ms, ok := h.Quantile(0.95); ms != 0 || ok {
		t.Fatalf("empty: %v, %t", ms, ok)
	}
	for i := range int64(100) {
		h.Add((i+1)*100, false)
	}
	for _, c := range []struct{ p, want float64 }{{0.5, 5000}, {0.95, 9500}, {0.951, 9600}, {0.01, 100}, {0.99, 9900}} {
		ms, ok := h.Quantile(c.p)
		if !ok || ms < c.want || ms > c.want*Width*1.0001 {
			t.Errorf("%v: %v (%t), want %v or one percent more", c.p, ms, ok, c.want)
		}
	}
}

// Worked by hand: at risk 5, 4, 2: S = 4/5, 3/5 after 200 (4 at risk), then one
// cut at 300, then 400 with 2 at risk: 3/10, then nothing more identified.
func TestKaplanMeierByHand(t *testing.T) {
	var h Histogram
	h.Add(100, false)
	h.Add(200, false)
	h.Add(300, true)
	h.Add(400, false)
	h.Add(500, true)
	for _, c := range []struct {
		p  float64
		ms float64
		ok bool
	}{{0.2, 100, true}, {0.21, 200, true}, {0.4, 200, true}, {0.41, 400, true}, {0.7, 400, true}, {0.71, 500, false}} {
		ms, ok := h.Quantile(c.p)
		if ok != c.ok || ms < c.ms || ms > c.ms*Width*1.0001 {
			t.Errorf("%v: %v (%t), want %v (%t)", c.p, ms, ok, c.ms, c.ok)
		}
	}
}

func TestMeanIsExactWithoutCuts(t *testing.T) {
	var h Histogram
	for range 100 {
		h.Add(1200, false)
	}
	if mean, variance := h.Moments(); math.Abs(mean-1200) > 1e-6 || variance > 1e-3 {
		t.Fatalf("mean %v, variance %v", mean, variance)
	}
}

func TestMergeRemoveShift(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a, b, sum Histogram
		for range rapid.IntRange(0, 30).Draw(t, "n") {
			h := &a
			if rapid.Bool().Draw(t, "b") {
				h = &b
			}
			h.Add(rapid.Int64Range(1, 1e7).Draw(t, "ms"), rapid.Bool().Draw(t, "cut"))
		}
		sum.Merge(&a)
		sum.Merge(&b)
		if sum.Samples() != a.Samples()+b.Samples() || sum.doneMS != a.doneMS+b.doneMS {
			t.Fatal("the sum is not the sum")
		}
		sum.remove(&b)
		if sum.done != a.done || sum.cut != a.cut || sum.samples != a.samples || sum.doneMS != a.doneMS {
			t.Fatal("what was added and removed left a trace")
		}
		sum.Reset()
		if sum != (Histogram{}) {
			t.Fatal("a reset left a trace")
		}
		sum.mergeShifted(&a, 100)
		if q, _ := a.Quantile(0.5); sum.Samples() > 0 && q < 1e8 {
			if s, _ := sum.Quantile(0.5); math.Abs(s/q-math.Exp(100*logWidth)) > 1e-6 {
				t.Fatalf("median %v, shifted %v", q, s)
			}
		}
	})
}

// The contrast that the estimate is for: true p95 4.0 s, 200 calls, those over a
// timeout cut. Counting the cut ones as cut finds the p95; dropping them makes
// a pool that runs into its timeout look fast.
func TestKaplanMeierAgainstDroppingTimeouts(t *testing.T) {
	const (
		trials, calls, sigma = 601, 200, 0.5
		p95                  = 4000.0
	)
	median := p95 / math.Exp(1.6448536269514722*sigma)
	rng := rand.New(rand.NewPCG(20, 26))
	var kept, dropped []float64
	unidentified := 0
	for range trials {
		var all, finished Histogram
		for range calls {
			ms := median * math.Exp(sigma*rng.NormFloat64())
			if ms > p95 { // the timeout cuts 5 %
				all.Add(int64(p95), true)
				continue
			}
			all.Add(int64(ms), false)
			finished.Add(int64(ms), false)
		}
		ms, ok := all.Quantile(0.95)
		if !ok {
			unidentified++
			ms = math.Inf(1) // it lies above whatever was seen
		}
		kept = append(kept, ms)
		ms, _ = finished.Quantile(0.95)
		dropped = append(dropped, ms)
	}
	slices.Sort(kept)
	slices.Sort(dropped)
	km, naive := kept[trials/2], dropped[trials/2]
	t.Logf("true p95 %.0f ms: Kaplan-Meier %.0f ms (%.1f %% of %d trials not identified), without the cut calls %.0f ms",
		p95, km, 100*float64(unidentified)/trials, trials, naive)
	if math.Abs(km/p95-1) > 0.03 {
		t.Errorf("the median estimate is %.0f ms, more than 3 %% from %.0f", km, p95)
	}
	if math.Abs(naive-3360) > 60 {
		t.Errorf("dropping timeouts gives %.0f ms, expected about 3360", naive)
	}
}

// Calls cut at random times, as by short deadlines, must not bend it either.
func TestKaplanMeierWithRandomCuts(t *testing.T) {
	const trials, calls, sigma, p95 = 501, 200, 0.5, 4000.0
	median := p95 / math.Exp(1.6448536269514722*sigma)
	rng := rand.New(rand.NewPCG(3, 3))
	var got []float64
	cut := 0
	for range trials {
		var h Histogram
		for range calls {
			ms := median * math.Exp(sigma*rng.NormFloat64())
			if rng.Float64() < 0.05 {
				ms *= rng.Float64()
				cut++
				h.Add(int64(ms), true)
				continue
			}
			h.Add(int64(ms), false)
		}
		ms, ok := h.Quantile(0.95)
		if !ok {
			ms = math.Inf(1)
		}
		got = append(got, ms)
	}
	slices.Sort(got)
	if ms := got[trials/2]; math.Abs(ms/p95-1) > 0.03 {
		t.Errorf("the median estimate is %.0f ms with %d calls cut", ms, cut)
	}
}

func ExampleHistogram() {
	var h Histogram
	for range 19 {
		h.Add(1000, false)
	}
	h.Add(3000, true) // cut after 3 s: it took at least as long
	_, identified := h.Quantile(0.96)
	fmt.Println(h.Samples(), identified)
	// Output: 20 false
}
