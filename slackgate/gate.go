// Package slackgate decides at the door whether a job can still be answered in
// time, and by which pool.
//
// It is pure: a [Snapshot], a [Job] and a [Policy] go in, a [Result] comes out.
// There is no clock, no Redis and no HTTP here, and nothing in it may import
// any of them. The admission API, a job that is re-routed and the simulator all
// call [Decide]. What was promised is looked at again by [Recheck]: when a worker
// takes the job, before a backend is called, and when its pool has lost its capacity.
//
// All times are milliseconds. Instants (names ending in AtMS, and NowMS) are on
// one clock, that of the store the snapshot was read from; everything else is a
// duration.
package slackgate

import "math"

// Path is where a decision sends a job.
type Path uint8

// The paths. Reject is the zero value, so that a result nobody filled in
// admits nothing.
const (
	Reject Path = iota
	Paid
	Free

	// NumPaths is the number of paths, for arrays indexed by Path.
	NumPaths = 3
)

// Paths lists every path that has a pool.
var Paths = [...]Path{Paid, Free}

// String returns the path's name as it stands in metrics, logs and JSON.
func (p Path) String() string {
	switch p {
	case Paid:
		return "paid"
	case Free:
		return "free"
	case Reject:
		return "reject"
	}
	return "unknown"
}

// Other is the other pool; Reject for what is none.
func (p Path) Other() Path {
	switch p {
	case Paid:
		return Free
	case Free:
		return Paid
	case Reject:
	}
	return Reject
}

// MarshalText implements [encoding.TextMarshaler].
func (p Path) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]. An unknown name is an
// [UnknownNameError].
func (p *Path) UnmarshalText(text []byte) error {
	for _, q := range [...]Path{Reject, Paid, Free} {
		if string(text) == q.String() {
			*p = q
			return nil
		}
	}
	return &UnknownNameError{Kind: "path", Name: string(text)}
}

// Reason says why a decision went the way it did. The set is closed: metrics
// use reasons as label values.
type Reason string

// The reasons. The first two admit; of the others GateUnavailable and PoolDown
// mean that the gate cannot promise anything now (HTTP 503), the rest that the
// job was refused (HTTP 429).
const (
	ReasonPaid            Reason = "paid"
	ReasonFree            Reason = "free"
	ReasonDeadline        Reason = "reject_deadline"
	ReasonNoSlack         Reason = "reject_no_slack"
	ReasonClosed          Reason = "reject_closed"
	ReasonBudget          Reason = "reject_budget"
	ReasonShare           Reason = "reject_share"
	ReasonRate            Reason = "reject_rate"
	ReasonGateUnavailable Reason = "gate_unavailable"
	ReasonPoolDown        Reason = "pool_down"
)

// Reasons lists the closed set.
var Reasons = [...]Reason{
	ReasonPaid, ReasonFree, ReasonDeadline, ReasonNoSlack, ReasonClosed,
	ReasonBudget, ReasonShare, ReasonRate, ReasonGateUnavailable, ReasonPoolDown,
}

// Unavailable reports whether the reason means "cannot say now" rather than
// "refused".
func (r Reason) Unavailable() bool {
	return r == ReasonGateUnavailable || r == ReasonPoolDown
}

// UnknownNameError reports a name outside a closed set.
type UnknownNameError struct {
	Kind string // what was being named: "path", "policy", "preference"
	Name string
}

func (e *UnknownNameError) Error() string {
	return "slackgate: unknown " + e.Kind + " " + quote(e.Name)
}

// quote shortens and quotes a name from outside.
func quote(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "..."
	}
	return `"` + s + `"`
}

// Rule is the name of a decision rule.
type Rule uint8

// The rules.
const (
	// Predictive compares predicted wait plus first byte with the slack, per
	// pool, and lets both pools queue.
	Predictive Rule = iota
	// Seed is the articles' gate to the letter.
	Seed
)

// String returns the rule's name.
func (r Rule) String() string {
	if r == Seed {
		return "seed"
	}
	return "predictive"
}

// MarshalText implements [encoding.TextMarshaler].
func (r Rule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (r *Rule) UnmarshalText(text []byte) error {
	switch string(text) {
	case "seed":
		*r = Seed
	case "predictive":
		*r = Predictive
	default:
		return &UnknownNameError{Kind: "policy", Name: string(text)}
	}
	return nil
}

// Unbounded marks a bound that is not set.
const Unbounded = math.MaxInt64

// Job is what the gate needs to know of a job.
type Job struct {
	// DeadlineAtMS is when the last byte is due.
	DeadlineAtMS int64
	// ReserveMS is kept back from the deadline: the first byte is due
	// ReserveMS before it. At least 0.
	ReserveMS int64
	// Prefer is the order in which the class wants the pools tried. A place
	// holding Reject is skipped, so that {Paid, Reject} is "paid only".
	Prefer [2]Path
	// FirstByteOnly is set when the class counts the first byte alone.
	FirstByteOnly bool
	// CostMicro is the most that the job may cost on the paid pool, over all
	// attempts that may be made for it. At least 0.
	CostMicro int64
	// Spread, in [0, 1), is the job's place among those refused with it: it
	// spreads their retry-after by up to a quarter, so that they do not come
	// back together. Not part of the decision.
	Spread float64
}

// SlackMS is deadline - now - reserve. Zero or less: nothing can be promised.
// It saturates instead of overflowing.
func (j Job) SlackMS(nowMS int64) int64 {
	return satSub(satSub(j.DeadlineAtMS, nowMS), j.ReserveMS)
}

// UrgencyAtMS is the instant at which the first byte is due; within a pool the
// smallest goes first.
func (j Job) UrgencyAtMS() int64 { return satSub(j.DeadlineAtMS, j.ReserveMS) }

func satSub(a, b int64) int64 {
	c := a - b
	if (a >= 0) != (b >= 0) && (c >= 0) != (a >= 0) {
		if a >= 0 {
			return math.MaxInt64
		}
		return math.MinInt64
	}
	return c
}

// PoolState is one pool as the store saw it.
type PoolState struct {
	// Limit is the largest number of jobs that may run at once, from
	// configuration. Under the seed rule it bounds what is admitted and
	// unfinished in the paid pool.
	Limit int
	// Capacity is the number of slots of workers with a live heartbeat, at
	// most Limit. 0: the pool is down.
	Capacity int
	// Waiting and Running count the pool's promises.
	Waiting, Running int
	// QueueAgeMS is how long the oldest waiting job has waited; 0 with
	// nothing waiting.
	QueueAgeMS int64
	// ClassQueueAgeMS is the same among the newcomer's class alone.
	ClassQueueAgeMS int64
	// FirstByteP95MS is the pool's 95th percentile of the first byte. Above 0.
	FirstByteP95MS int64
	// Closed is set while a flag or a drain closes the pool to newcomers.
	Closed bool

	// Ladder is what the predictive rule knows of the pool's workers; nil:
	// nothing, and it cannot decide. The seed rule does not read it.
	Ladder *Ladder
	// Ahead counts the waiting jobs that go before this one: those with an
	// urgency at or before its own. At most Waiting.
	Ahead int
	// Break is what [Bound.Check], or the script that does the same, found on
	// the ladder for this job.
	Break Break
	// Share is the rung on which the job's producer has its fair share of the
	// pool already, and its jobs there; see [Shares.Check].
	Share Break
}

// InFlight is what is admitted and unfinished.
func (s *PoolState) InFlight() int { return s.Waiting + s.Running }

// position is the place of a job with ahead others before it on a ladder that
// was built a moment ago: what was claimed since stands before it too, and what
// has ended no longer does.
func (s *PoolState) position(ahead int64) int {
	return max(0, int(ahead)+s.Running-s.Ladder.running)
}

// readable reports whether the numbers can be trusted at all. What is beyond
// 2^53 cannot have passed through the store's script unharmed, and would
// overflow in a sum.
func (s *PoolState) readable() bool {
	for _, n := range [...]int64{
		int64(s.Limit), int64(s.Capacity), int64(s.Waiting), int64(s.Running), int64(s.Ahead),
		int64(s.Break.Rung), s.Break.Waiting, s.QueueAgeMS, s.ClassQueueAgeMS, s.FirstByteP95MS,
	} {
		if n < 0 || n > 1<<53 {
			return false
		}
	}
	return s.FirstByteP95MS > 0
}

// Snapshot is the state a decision is made from.
type Snapshot struct {
	// Pools is indexed by Path; the entry for Reject is unused.
	Pools [NumPaths]PoolState
	// Budgets are those of the job's producer and of its class.
	Budgets [NumBudgets]Budget
	// Quota is what the job's producer may submit.
	Quota Quota
}

// Policy is the operator's side of a decision.
type Policy struct {
	Rule Rule
	// FreeQueueAgeCutMS closes the free pool to a newcomer once the oldest
	// waiting job is this old: under the seed rule the oldest in the pool, as
	// in the article, under the predictive one the oldest of the newcomer's
	// class. 0 closes free at once; Unbounded never does.
	FreeQueueAgeCutMS int64
}
