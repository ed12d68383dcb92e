package slackgate

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestRecheck(t *testing.T) {
	for _, tt := range []struct {
		name            string
		firstP95, hold  int64
		firstByteOnly   bool
		slackMS, leftMS int64
		want            bool
	}{
		{"exactly the p95s are enough", 1200, 3200, false, 1200, 3200, true},
		{"a millisecond short of the first byte", 1200, 3200, false, 1199, 3200, false},
		{"a millisecond short of the last byte", 1200, 3200, false, 1200, 3199, false},
		{"the class counts the first byte alone", 1200, 3200, true, 1200, 1200, true},
		{"the last byte is not promised", 1200, 0, false, 1200, 1200, true},
		{"the last byte is not promised, the first does not fit", 1200, 0, false, 1199, 9000, false},
		{"nothing is known of the pool", 0, 3200, false, 9000, 9000, false},
		{"nothing is known of the pool, and no slack is left", 0, 0, false, 0, 0, false},
		{"a p95 that cannot be", -1, 0, false, 5, 5, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := NewRecheck(tt.firstP95, tt.hold, tt.firstByteOnly).Passes(tt.slackMS, tt.leftMS); got != tt.want {
				t.Errorf("passes: %t, want %t", got, tt.want)
			}
		})
	}
}

func TestWaits(t *testing.T) {
	for _, tt := range []struct {
		name            string
		slackMS, leftMS int64
		want            bool
	}{
		{"the grace and the p95s are exactly there", CapacityGraceMS + 1200, CapacityGraceMS + 3200, true},
		{"a millisecond short of the first byte", CapacityGraceMS + 1199, CapacityGraceMS + 3200, false},
		{"a millisecond short of the last byte", CapacityGraceMS + 1200, CapacityGraceMS + 3199, false},
		{"it would pass now, and not after the grace", 1200, 3200, false},
		{"no slack can be less", math.MinInt64, math.MinInt64, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := NewRecheck(1200, 3200, false).Waits(tt.slackMS, tt.leftMS); got != tt.want {
				t.Errorf("waits: %t, want %t", got, tt.want)
			}
		})
	}
}

// A job that was admitted and waits as long as expected passes the re-check.
func TestAnAdmittedJobPassesTheRecheckAfterTheExpectedWait(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		l, o := build(in), drawOrder(t)
		j := jobFor(&in, rapid.Int64Range(1, 100_000).Draw(t, "slack"))
		r := decideOne(l, o, len(in.RunningAgesMS), j)
		if !r.Admitted() {
			return
		}
		const rounding = 1 // of the wait, the p95 and the need, each up to a whole millisecond
		taken := testNow + r.PredictedWaitMS - rounding
		c := NewRecheck(ceilMS(in.Belief.FirstByte.P95MS), ceilMS(in.Belief.Hold.P95MS), j.FirstByteOnly)
		if slack, left := j.SlackMS(taken), j.DeadlineAtMS-taken; !c.Passes(slack, left) {
			t.Fatalf("%+v: slack %d and %d left when a worker takes it, %+v", r, slack, left, c)
		}
	})
}
