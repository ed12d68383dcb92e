package slackgate

import (
	"testing"

	"pgregory.net/rapid"
)

func TestLevel(t *testing.T) {
	for _, tt := range []struct {
		name  string
		room  float64
		wants []float64
		want  int64
	}{
		{"room for all", 10, []float64{3, 7}, Unbounded},
		{"one wants a little more", 10, []float64{3, 7.1}, 7},
		{"a flood beside one with little", 20, []float64{4, 1000}, 16},
		{"two floods", 21, []float64{1000, 2000}, 11},
		{"what two leave goes to the third", 30, []float64{5, 100, 5}, 20},
		{"no room", 0, []float64{1, 1}, 1},
	} {
		if got := level(tt.room, tt.wants); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

// One alone is not held back; of several each may have a fair part at least,
// and levels never fall along the ladder.
func TestSharesProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var l Ladder
		l.Build(&LadderInput{
			Capacity: rapid.IntRange(1, 20).Draw(rt, "capacity"), Belief: FixedBelief(1000, 1000),
			ReserveMS: 2000, HorizonMS: 600_000,
		})
		var demands []Demand
		for range rapid.IntRange(0, 6).Draw(rt, "producers") {
			demands = append(demands, Demand(rapid.Float64Range(0, 1).Draw(rt, "demand")))
		}
		s := l.Shares(demands)
		if len(demands) < 2 {
			if s != nil {
				rt.Fatalf("%v for %d", s, len(demands))
			}
			return
		}
		for i, r := range l.Rungs() {
			if fair := r.Max / int64(len(demands)); s[i] < fair || s[i] < 1 || i > 0 && s[i] < s[i-1] {
				rt.Fatalf("rung %d (%+v): level %d, the one before %d, fair %d", i, r, s[i], s[max(i-1, 0)], fair)
			}
		}
		held := rapid.Int64Range(0, 50).Draw(rt, "held")
		b := s.Check(&l, 0, func(int64) int64 { return held })
		if (b.Rung > 0) != (held+1 > s[0]) {
			rt.Fatalf("%d held of a level of %d: %+v", held, s[0], b)
		}
	})
}

func TestDecideShare(t *testing.T) {
	s := article(0, 0)
	s.Pools[Paid].Share = Break{Rung: 1, Waiting: 3}
	if r := Decide(s, seedJob(13_000), seedPolicy, testNow); r.Reason != ReasonFree {
		t.Errorf("free still takes it: %+v", r)
	}
	s.Pools[Free].Share = Break{Rung: 1, Waiting: 3}
	if r := Decide(s, seedJob(13_000), seedPolicy, testNow); r.Reason != ReasonShare || r.RetryAfterMS == 0 {
		t.Errorf("%+v", r)
	}
}
