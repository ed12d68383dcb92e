package slackgate

import (
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

func TestReoffer(t *testing.T) {
	p95s := [NumPaths]int64{Paid: 1200, Free: 4000}
	for _, tt := range []struct {
		name    string
		path    Path
		p95s    [NumPaths]int64
		reroute bool
		want    int64
	}{
		{"paid needs its own p95", Paid, p95s, false, 1200},
		{"nothing is re-routed from paid", Paid, p95s, true, 1200},
		{"free needs its own p95", Free, p95s, false, 4000},
		{"paid may take it from free", Free, p95s, true, 1200},
		{"paid would need more", Free, [NumPaths]int64{Paid: 9000, Free: 4000}, true, 4000},
		{"nothing is known of paid", Free, [NumPaths]int64{Free: 4000}, true, 4000},
		{"nothing is known of either", Free, [NumPaths]int64{}, true, Unbounded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, want := Reoffer(tt.path, tt.p95s, tt.reroute), (Recheck{LeastSlackMS: tt.want}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
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
