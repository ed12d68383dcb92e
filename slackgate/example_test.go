package slackgate_test

import (
	"fmt"

	"leeway/slackgate"
)

// pool is a paid pool of two slots whose calls take 1200 ms: one job has run for
// 200 ms and one for 1100.
func pool() slackgate.PoolState {
	ladder := new(slackgate.Ladder)
	ladder.Build(&slackgate.LadderInput{
		Capacity: 2, RunningAgesMS: []int64{200, 1100}, Belief: slackgate.FixedBelief(1200, 1200), ReserveMS: 2000,
	})
	return slackgate.PoolState{Limit: 2, Capacity: 2, Running: 2, FirstByteP95MS: 1200, Ladder: ladder}
}

func ExampleDecide() {
	const now = 1_000_000
	var s slackgate.Snapshot
	s.Pools[slackgate.Paid] = pool()
	policy := slackgate.Policy{Rule: slackgate.Predictive, FreeQueueAgeCutMS: slackgate.Unbounded}
	for _, deadlineInMS := range []int64{15_000, 3200, 1500} {
		r := slackgate.Decide(&s, slackgate.Job{
			DeadlineAtMS: now + deadlineInMS, ReserveMS: 2000, Prefer: [2]slackgate.Path{slackgate.Paid},
		}, policy, now)
		fmt.Printf("due in %5d ms: %-15s slack %5d, need %4d\n", deadlineInMS, r.Reason, r.SlackMS, r.NeedMS[slackgate.Paid])
	}
	// Output:
	// due in 15000 ms: paid            slack 13000, need 1300
	// due in  3200 ms: reject_no_slack slack  1200, need 1300
	// due in  1500 ms: reject_deadline slack  -500, need    0
}

// How many jobs may be promised before each mark: the two that run, and one more
// each time that a slot will have come free 1200 ms earlier.
func ExampleLadder() {
	p := pool()
	for _, r := range p.Ladder.Rungs()[:5] {
		fmt.Printf("of the jobs due before %4d ms: at most %d\n", r.WithinMS, r.Max)
	}
	// Output:
	// of the jobs due before 1300 ms: at most 2
	// of the jobs due before 2200 ms: at most 3
	// of the jobs due before 2500 ms: at most 4
	// of the jobs due before 3400 ms: at most 5
	// of the jobs due before 3700 ms: at most 6
}
