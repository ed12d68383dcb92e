package slackgate

import (
	"testing"

	"pgregory.net/rapid"
)

func TestBudgetBoundaries(t *testing.T) {
	for _, tt := range []struct {
		name   string
		b      Budget
		cost   int64
		admits bool
		retry  int64
		left   int64
	}{
		{"none", Budget{}, MaxBudgetMicro, true, 0, 0},
		{"the last of it", Budget{true, 100, 40, 50}, 10, true, 0, 10},
		{"one too much, reserved", Budget{true, 100, 40, 50}, 11, false, 7, 10},
		{"one too much, spent", Budget{true, 100, 90, 0}, 11, false, 1000, 10},
		{"what is spent is in the way, and what is reserved", Budget{true, 100, 90, 10}, 11, false, 1000, 0},
		{"more than a day's", Budget{true, 100, 0, 0}, 101, false, Unbounded, 100},
		{"all of a day's", Budget{true, 100, 0, 0}, 100, true, 0, 100},
		{"no money, no cost", Budget{true, 0, 0, 0}, 0, true, 0, 0},
		{"no money", Budget{true, 0, 0, 0}, 1, false, Unbounded, 0},
		{"overdrawn, no cost", Budget{true, 10, 11, 0}, 0, false, 1000, 0},
		{"a cost nobody can pay", Budget{true, MaxBudgetMicro, 0, 0}, 1<<63 - 1, false, Unbounded, MaxBudgetMicro},
		{"a negative cost is none", Budget{true, 5, 5, 0}, -7, true, 0, 0},
	} {
		if got := tt.b.Admits(tt.cost); got != tt.admits {
			t.Errorf("%s: admits %t", tt.name, got)
		}
		if got := tt.b.LeftMicro(); got != tt.left {
			t.Errorf("%s: %d left", tt.name, got)
		}
		if tt.admits {
			continue
		}
		// a second before midnight
		if got := tt.b.retryAfterMS(tt.cost, 3*DayMS-1000, 7); got != tt.retry {
			t.Errorf("%s: retry after %d, want %d", tt.name, got, tt.retry)
		}
	}
	if DayLeftMS(2*DayMS) != DayMS || DayLeftMS(2*DayMS-1) != 1 {
		t.Error("midnight belongs to the day it begins")
	}
}

// What a budget's comparison allows never sums to more than its cap.
func TestBudgetIsNeverOverrun(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := Budget{Set: true, CapMicro: rapid.Int64Range(0, 1000).Draw(rt, "cap")}
		for _, cost := range rapid.SliceOf(rapid.Int64Range(0, 300)).Draw(rt, "costs") {
			if b.Admits(cost) {
				b.ReservedMicro += cost
			}
			if settle := rapid.Int64Range(0, b.ReservedMicro).Draw(rt, "settle"); rapid.Bool().Draw(rt, "ends") {
				b.ReservedMicro -= settle
				b.SpentMicro += rapid.Int64Range(0, settle).Draw(rt, "spent") // never more than was reserved
			}
			if b.SpentMicro+b.ReservedMicro > b.CapMicro {
				rt.Fatalf("%+v", b)
			}
		}
	})
}

func TestDecideBudgets(t *testing.T) {
	over, under := Budget{true, 100, 95, 0}, Budget{true, 100, 10, 0}
	for _, tt := range []struct {
		name            string
		producer, class Budget
		prefer          [2]Path
		paid, freeAge   int64
		path            Path
		reason          Reason
		limit           Limit
	}{
		{"both reach", under, under, [2]Path{Paid, Free}, 0, 0, Paid, ReasonPaid, ""},
		{"the producer's does not: free", over, under, [2]Path{Paid, Free}, 0, 0, Free, ReasonFree, ""},
		{"the class's does not: free", under, over, [2]Path{Paid, Free}, 0, 0, Free, ReasonFree, ""},
		{"free is too old", over, under, [2]Path{Paid, Free}, 0, 3000, Reject, ReasonBudget, LimitProducerBudget},
		{"paid only", under, over, [2]Path{Paid}, 0, 0, Reject, ReasonBudget, LimitClassBudget},
		{"both do not reach: the producer's is named", over, over, [2]Path{Paid}, 0, 0, Reject, ReasonBudget, LimitProducerBudget},
		{"paid is full as well: not a matter of money", over, over, [2]Path{Paid}, 2, 0, Reject, ReasonNoSlack, ""},
		{"free only", over, over, [2]Path{Free}, 0, 0, Free, ReasonFree, ""},
	} {
		s := article(int(tt.paid), tt.freeAge)
		s.Budgets = [NumBudgets]Budget{tt.producer, tt.class}
		j := seedJob(13_000)
		j.Prefer, j.CostMicro = tt.prefer, 10
		r := Decide(s, j, seedPolicy, testNow)
		if r.Path != tt.path || r.Reason != tt.reason || r.Limit != tt.limit {
			t.Errorf("%s: %+v", tt.name, r)
		}
	}
}

func TestQuota(t *testing.T) {
	for _, tt := range []struct {
		name      string
		q         Quota
		inRate    bool
		remaining int64
		burst     int64
	}{
		{"no limit", Quota{AheadUS: 1 << 40}, true, 0, 0},
		{"one a second, the first", NewQuota(1, 0, 0), true, 0, 1},
		{"one a second, a microsecond early", Quota{IntervalUS: 1e6, AheadUS: 1}, false, 0, 1},
		{"a burst of three, the last", Quota{IntervalUS: 1e6, ToleranceUS: 2e6, AheadUS: 2e6}, true, 0, 3},
		{"a burst of three, one too many", Quota{IntervalUS: 1e6, ToleranceUS: 2e6, AheadUS: 2e6 + 1}, false, 0, 3},
		{"a burst of three, the first", NewQuota(1, 3, 0), true, 2, 3},
		{"faster than the clock", NewQuota(1e9, 1, 0), true, 0, 1},
	} {
		if got := tt.q.InRate(); got != tt.inRate {
			t.Errorf("%s: in rate %t", tt.name, got)
		}
		if r, b := tt.q.Remaining(), tt.q.Burst(); r != tt.remaining || b != tt.burst {
			t.Errorf("%s: %d remaining of %d", tt.name, r, b)
		}
	}
	for inFlight, want := range map[int64]bool{0: true, 1: true, 2: false, 3: false} {
		if q := (Quota{MaxInFlight: 2, InFlight: inFlight}); q.HasRoom() != want {
			t.Errorf("room for another beside %d: %t", inFlight, !want)
		}
	}
}

func TestDecideQuota(t *testing.T) {
	for _, tt := range []struct {
		name   string
		q      Quota
		slack  int64
		reason Reason
		limit  Limit
		retry  int64
	}{
		{"within both", Quota{IntervalUS: 1e6, MaxInFlight: 1}, 13_000, ReasonPaid, "", 0},
		{"too fast", Quota{IntervalUS: 1e6, AheadUS: 2500}, 13_000, ReasonRate, LimitRate, 3},
		{"too fast, and without slack", Quota{IntervalUS: 1e6, AheadUS: 1}, 0, ReasonRate, LimitRate, 1},
		{"too many, and without slack", Quota{MaxInFlight: 1, InFlight: 1}, 0, ReasonDeadline, "", 0},
		{"too many", Quota{MaxInFlight: 1, InFlight: 1}, 13_000, ReasonRate, LimitInFlight, 1000},
	} {
		s := article(0, 0)
		s.Quota = tt.q
		r := Decide(s, seedJob(tt.slack), seedPolicy, testNow)
		if r.Reason != tt.reason || r.Limit != tt.limit || r.RetryAfterMS != tt.retry {
			t.Errorf("%s: %+v", tt.name, r)
		}
	}
}
