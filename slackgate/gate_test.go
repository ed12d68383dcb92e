package slackgate

import (
	"math"
	"testing"
)

// article returns the article's lab: two paid workers at 1200 ms, one free at
// 4000 ms, with the queue state named.
func article(paidInFlight int, freeAgeMS int64) *Snapshot {
	var s Snapshot
	s.Pools[Paid] = PoolState{Limit: 2, Capacity: 2, Running: paidInFlight, FirstByteP95MS: 1200}
	s.Pools[Free] = PoolState{Limit: 1, Capacity: 1, Running: 1, QueueAgeMS: freeAgeMS, ClassQueueAgeMS: freeAgeMS, FirstByteP95MS: 4000}
	return &s
}

const testNow = 1_700_000_000_000

// seedJob has slackMS left at testNow.
func seedJob(slackMS int64) Job {
	return Job{DeadlineAtMS: testNow + 2000 + slackMS, ReserveMS: 2000, Prefer: [2]Path{Paid, Free}}
}

var seedPolicy = Policy{Rule: Seed, FreeQueueAgeCutMS: 3000}

func TestSeedRunbookTable(t *testing.T) {
	for _, c := range []struct {
		name   string
		paid   int
		age    int64
		slack  int64
		reason Reason
	}{
		// Row 1: paid below its limit, any age, slack over the paid p95. The
		// article's table adds the reserve; its code, which wins, has taken the
		// reserve off already.
		{"paid one below limit", 1, 0, 13000, ReasonPaid},
		{"paid empty, free old", 0, 60000, 13000, ReasonPaid},
		{"paid, slack just over its p95", 1, 0, 1201, ReasonPaid},
		{"paid, slack at its p95", 1, 0, 1200, ReasonNoSlack},
		// Row 2: paid at its limit, age under the cut, slack over age + p95.
		{"free, nothing waiting", 2, 0, 13000, ReasonFree},
		{"free, age just under the cut", 2, 2999, 13000, ReasonFree},
		{"free, slack just over need", 2, 1000, 5001, ReasonFree},
		{"free, slack at need", 2, 1000, 5000, ReasonNoSlack},
		{"free, slack just over its p95", 2, 0, 4001, ReasonFree},
		{"free, slack at its p95", 2, 0, 4000, ReasonNoSlack},
		{"paid over its limit", 3, 0, 13000, ReasonFree},
		// Row 3: the cut itself, and above.
		{"free, age at the cut", 2, 3000, 13000, ReasonNoSlack},
		{"free, age over the cut", 2, 3001, 1 << 40, ReasonNoSlack},
		{"the article's snapshot", 2, 8000, 9000, ReasonNoSlack},
		// Row 4: no slack, whatever the pools look like.
		{"slack 1", 0, 0, 1, ReasonNoSlack},
		{"slack 0", 0, 0, 0, ReasonDeadline},
		{"slack -1", 0, 0, -1, ReasonDeadline},
		{"slack 0, all full", 2, 8000, 0, ReasonDeadline},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Decide(article(c.paid, c.age), seedJob(c.slack), seedPolicy, testNow)
			if r.Reason != c.reason || r.SlackMS != c.slack {
				t.Fatalf("got %s with slack %d, want %s with %d", r.Reason, r.SlackMS, c.reason, c.slack)
			}
			want := map[Reason]Path{ReasonPaid: Paid, ReasonFree: Free}[c.reason]
			if r.Path != want || r.Admitted() != (want != Reject) {
				t.Fatalf("path %s (admitted %t), want %s", r.Path, r.Admitted(), want)
			}
		})
	}
}

func TestSeedArticleNumbers(t *testing.T) {
	r := Decide(article(2, 8000), seedJob(9000), seedPolicy, testNow)
	if r.Reason != ReasonNoSlack || r.SlackMS != 9000 || r.NeedMS[Free] != 12000 || r.QueueAgeMS[Free] != 8000 {
		t.Fatalf("%+v", r)
	}
}

func TestSeedCutZeroClosesFree(t *testing.T) {
	p := seedPolicy
	p.FreeQueueAgeCutMS = 0
	if r := Decide(article(2, 0), seedJob(13000), p, testNow); r.Reason != ReasonNoSlack {
		t.Fatal(r.Reason)
	}
	p.FreeQueueAgeCutMS = 1
	if r := Decide(article(2, 0), seedJob(13000), p, testNow); r.Reason != ReasonFree {
		t.Fatal(r.Reason)
	}
	p.FreeQueueAgeCutMS = Unbounded
	if r := Decide(article(2, 1<<40), seedJob(1<<41), p, testNow); r.Reason != ReasonFree {
		t.Fatal(r.Reason)
	}
}

// Whatever the gate cannot read or is told is closed, it does not admit to.
func TestFailClosed(t *testing.T) {
	both := [2]Path{Paid, Free}
	for _, c := range []struct {
		name   string
		change func(s *Snapshot, j *Job, p *Policy, now *int64)
		reason Reason
	}{
		{"as it is", func(*Snapshot, *Job, *Policy, *int64) {}, ReasonPaid},
		{"zero snapshot", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) { *s = Snapshot{} }, ReasonGateUnavailable},
		{"negative limit", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) { s.Pools[Paid].Limit = -1 }, ReasonGateUnavailable},
		{"negative capacity", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) { s.Pools[Paid].Capacity = -1 }, ReasonGateUnavailable},
		{"negative waiting", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) { s.Pools[Free].Waiting = -1 }, ReasonGateUnavailable},
		{"negative running", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) { s.Pools[Free].Running = -1 }, ReasonGateUnavailable},
		{"negative age", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) { s.Pools[Free].QueueAgeMS = -1 }, ReasonGateUnavailable},
		{"negative class age", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) { s.Pools[Free].ClassQueueAgeMS = -1 }, ReasonGateUnavailable},
		{"no p95", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) { s.Pools[Paid].FirstByteP95MS = 0 }, ReasonGateUnavailable},
		{"negative p95", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) { s.Pools[Free].FirstByteP95MS = -1 }, ReasonGateUnavailable},
		{"waiting beyond counting", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) { s.Pools[Paid].Waiting = math.MaxInt }, ReasonGateUnavailable},
		{"age beyond counting", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) { s.Pools[Free].QueueAgeMS = math.MaxInt64 }, ReasonGateUnavailable},
		{"negative ahead", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) { s.Pools[Free].Ahead = -1 }, ReasonGateUnavailable},
		{"negative rung", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) { s.Pools[Free].Break.Rung = -1 }, ReasonGateUnavailable},
		{"negative count", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) { s.Pools[Free].Break.Waiting = -1 }, ReasonGateUnavailable},
		{"negative reserve", func(_ *Snapshot, j *Job, _ *Policy, _ *int64) { j.ReserveMS = -1 }, ReasonGateUnavailable},
		{"negative cut", func(_ *Snapshot, _ *Job, p *Policy, _ *int64) { p.FreeQueueAgeCutMS = -1 }, ReasonGateUnavailable},
		{"no clock", func(_ *Snapshot, _ *Job, _ *Policy, now *int64) { *now = 0 }, ReasonGateUnavailable},
		{"clock below zero", func(_ *Snapshot, _ *Job, _ *Policy, now *int64) { *now = -5 }, ReasonGateUnavailable},
		{"unreadable pool the class may not use", func(s *Snapshot, j *Job, _ *Policy, _ *int64) {
			j.Prefer = [2]Path{Paid, Reject}
			s.Pools[Free] = PoolState{}
		}, ReasonPaid},
		{"no pool allowed", func(_ *Snapshot, j *Job, _ *Policy, _ *int64) { j.Prefer = [2]Path{} }, ReasonPoolDown},
		{"paid down", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) { s.Pools[Paid].Capacity = 0 }, ReasonFree},
		{"both down", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) {
			s.Pools[Paid].Capacity, s.Pools[Free].Capacity = 0, 0
		}, ReasonPoolDown},
		{"paid closed", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) { s.Pools[Paid].Closed = true }, ReasonFree},
		{"both closed", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) {
			s.Pools[Paid].Closed, s.Pools[Free].Closed = true, true
		}, ReasonClosed},
		{"one closed, one down", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) {
			s.Pools[Paid].Closed, s.Pools[Free].Capacity = true, 0
		}, ReasonClosed},
		{"one closed, one full", func(s *Snapshot, _ *Job, _ *Policy, _ *int64) {
			s.Pools[Paid].Closed, s.Pools[Free].QueueAgeMS = true, 9000
		}, ReasonNoSlack},
		{"deadline at the end of time", func(_ *Snapshot, j *Job, _ *Policy, _ *int64) { j.DeadlineAtMS = math.MaxInt64 }, ReasonPaid},
		{"deadline at the beginning of time", func(_ *Snapshot, j *Job, _ *Policy, _ *int64) { j.DeadlineAtMS = math.MinInt64 }, ReasonDeadline},
		{"reserve without end", func(_ *Snapshot, j *Job, _ *Policy, _ *int64) { j.ReserveMS = math.MaxInt64 }, ReasonDeadline},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, j, p, now := article(0, 0), seedJob(13000), seedPolicy, int64(testNow)
			j.Prefer = both
			c.change(s, &j, &p, &now)
			r := Decide(s, j, p, now)
			if r.Reason != c.reason {
				t.Fatalf("got %s, want %s", r.Reason, c.reason)
			}
			if r.Admitted() != (c.reason == ReasonPaid || c.reason == ReasonFree) {
				t.Fatalf("admitted %t with %s", r.Admitted(), r.Reason)
			}
		})
	}
}

func TestSlackSaturates(t *testing.T) {
	for _, c := range []struct{ deadline, reserve, now, want int64 }{
		{100, 10, 50, 40},
		{math.MaxInt64, 0, -1, math.MaxInt64},
		{math.MinInt64, 0, 1, math.MinInt64},
		{math.MinInt64, math.MaxInt64, 1, math.MinInt64},
		{math.MaxInt64, math.MaxInt64, math.MaxInt64, -math.MaxInt64},
	} {
		if got := (Job{DeadlineAtMS: c.deadline, ReserveMS: c.reserve}).SlackMS(c.now); got != c.want {
			t.Errorf("deadline %d, reserve %d, now %d: slack %d, want %d", c.deadline, c.reserve, c.now, got, c.want)
		}
	}
}

func TestNames(t *testing.T) {
	for _, p := range []Path{Reject, Paid, Free} {
		text, _ := p.MarshalText()
		var q Path
		if err := q.UnmarshalText(text); err != nil || q != p {
			t.Errorf("%s: %v, %v", text, q, err)
		}
	}
	for _, r := range []Rule{Predictive, Seed} {
		text, _ := r.MarshalText()
		var q Rule
		if err := q.UnmarshalText(text); err != nil || q != r {
			t.Errorf("%s: %v, %v", text, q, err)
		}
	}
	var p Path
	if err := p.UnmarshalText([]byte("Paid")); err == nil {
		t.Error("a path in another case was taken")
	}
	var r Rule
	if err := r.UnmarshalText(nil); err == nil {
		t.Error("an empty rule was taken")
	}
	if Path(9).String() != "unknown" {
		t.Error(Path(9).String())
	}
}

func TestSeedAllocatesNothing(t *testing.T) {
	s, j := article(2, 0), seedJob(13000)
	if n := testing.AllocsPerRun(100, func() { sink = Decide(s, j, seedPolicy, testNow) }); n != 0 {
		t.Fatalf("%v allocations a decision", n)
	}
}

var sink Result
