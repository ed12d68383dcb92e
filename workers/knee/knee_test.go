package knee

import (
	"math"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func exactly(v float64) Spread { return Spread{v, v, v} }

// at is a step without spread and without failures; a p95 of 0 is not known.
func at(n int, tokens, p95 float64) Step {
	return Step{Concurrent: n, TokensPerS: exactly(tokens), FirstByteP95MS: exactly(p95)}
}

func TestFind(t *testing.T) {
	fails := func(s Step, share float64) Step {
		s.FailedShare = share
		return s
	}
	for _, tt := range []struct {
		name    string
		steps   []Step
		limit   int
		reached bool
	}{
		{"the article's table, by the gain alone", []Step{at(1, 189, 0), at(8, 433, 0), at(32, 474, 0)}, 8, true},
		{"the article's table, 3.3 times the latency", []Step{at(1, 189, 100), at(8, 433, 350), at(32, 474, 3.3*350)}, 8, true},
		{"a gain of exactly 10 % is worth it", []Step{at(1, 100, 0), at(2, 110.00001, 0), at(4, 120, 0)}, 2, true},
		{"a gain below 10 % is not", []Step{at(1, 100, 0), at(2, 109.9, 0), at(4, 200, 0)}, 1, true},
		{"p95 at the bound stands", []Step{at(4, 100, 100), at(8, 150, 174.9), at(16, 160, 400)}, 8, true},
		{"p95 above it climbs, whatever is gained", []Step{at(4, 100, 100), at(8, 150, 175.1), at(16, 220, 180)}, 4, true},
		{"two doublings at once are counted as two", []Step{at(1, 100, 100), at(4, 122, 300), at(8, 124, 600)}, 4, true},
		{"nothing gained while p95 stands is no reason either", []Step{at(1, 100, 50), at(2, 200, 50), at(4, 201, 50)}, 2, true},
		{"slots: flat, then a queue", []Step{at(1, 100, 100), at(2, 200, 100), at(4, 400, 101), at(8, 410, 480)}, 4, true},
		{"every load stands", []Step{at(1, 100, 100), at(2, 200, 100), at(4, 400, 101)}, 4, false},
		{"a load that is turned away is beyond", []Step{at(1, 100, 100), at(2, 200, 100), fails(at(4, 390, 100), 0.02)}, 2, true},
		{"one in a hundred may fail", []Step{at(1, 100, 100), at(2, 200, 100), fails(at(4, 390, 100), 0.01)}, 4, false},
		{"all of them fail", []Step{at(1, 100, 100), fails(at(2, 0, 0), 1)}, 1, true},
		{"the first knee counts", []Step{at(1, 100, 100), at(2, 105, 190), at(4, 300, 190)}, 1, true},
		{
			"a climb within the noise is none",
			[]Step{
				{Concurrent: 1, TokensPerS: exactly(100), FirstByteP95MS: Spread{5, 3, 12}},
				{Concurrent: 2, TokensPerS: exactly(190), FirstByteP95MS: Spread{10, 9, 11}},
				{Concurrent: 4, TokensPerS: exactly(195), FirstByteP95MS: Spread{40, 38, 41}},
			}, 2, true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Find(tt.steps)
			if err != nil {
				t.Fatal(err)
			}
			if got.Limit != tt.limit || got.Reached != tt.reached || len(got.Changes) != len(tt.steps)-1 {
				t.Errorf("limit %d, reached %v, %+v; want %d, %v", got.Limit, got.Reached, got.Changes, tt.limit, tt.reached)
			}
		})
	}
}

func TestFindRefuses(t *testing.T) {
	for name, steps := range map[string][]Step{
		"nothing":             nil,
		"one load":            {at(1, 100, 0)},
		"no load":             {at(0, 100, 0), at(1, 100, 0)},
		"falling":             {at(2, 100, 0), at(1, 100, 0)},
		"the same twice":      {at(2, 100, 0), at(2, 100, 0)},
		"no throughput":       {at(1, 0, 0), at(2, 100, 0)},
		"not a number":        {at(1, math.NaN(), 0), at(2, 100, 0)},
		"broken from the out": {{Concurrent: 1, TokensPerS: exactly(1), FailedShare: 0.5}, at(2, 100, 0)},
	} {
		if r, err := Find(steps); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// The knee is one of the loads measured, the rule does not care for units, and
// loads beyond the knee do not move it.
func TestFindProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 8).Draw(t, "steps")
		var steps, scaled []Step
		load := 0
		for range n {
			load += rapid.IntRange(1, 20).Draw(t, "more")
			s := at(load, rapid.Float64Range(1, 1000).Draw(t, "tokens"), rapid.Float64Range(1, 1000).Draw(t, "p95"))
			steps = append(steps, s)
			scaled = append(scaled, at(load, 4*s.TokensPerS.Median, 8*s.FirstByteP95MS.Median))
		}
		r, err := Find(steps)
		if err != nil {
			t.Fatal(err)
		}
		if k, err := Find(scaled); err != nil || k.Limit != r.Limit || k.Reached != r.Reached {
			t.Fatalf("in other units %+v instead of %+v, %v", k, r, err)
		}
		for i, s := range steps {
			if s.Concurrent != r.Limit {
				continue
			}
			if !r.Reached && i != n-1 {
				t.Fatalf("no knee, and yet %d of %+v", r.Limit, steps)
			}
			if r.Reached {
				if k, err := Find(steps[:i+2]); err != nil || k.Limit != r.Limit {
					t.Fatalf("without the loads beyond it %+v, %v", k, err)
				}
			}
			return
		}
		t.Fatalf("%d is none of the loads", r.Limit)
	})
}
