package broker

import (
	"time"

	"leeway/slackgate"
)

// Offer is one job offered to the pools, with the numbers that the gate's rule
// gave for it. Of a job on record only the Spec is read of the submission.
type Offer struct {
	Job *Submission
	// LeftMS is the time left until the deadline at a local instant, At; zero: when
	// the store comes to it.
	LeftMS int64
	At     time.Time
	// ReserveMS is kept back from it for the first byte.
	ReserveMS int64
	// Miss books a miss on path reject instead of offering the job.
	Miss bool
	// Again is set for a job on record that is offered once more.
	Again *Again
	// CostMicro is the most that the job may cost on the paid pool. It is
	// reserved there under the budgets that are set; of each the cap alone is
	// read.
	CostMicro int64
	Budgets   [slackgate.NumBudgets]slackgate.Budget
	// Quota is what the job's producer may submit; of it the limits alone are
	// read.
	Quota slackgate.Quota
	// Bounds are what the pools must satisfy, in the order they are tried.
	Bounds [2]slackgate.Bound
}

// Again is a job on record that is offered to another pool than the one it is in.
// If that takes it, it leaves its claim or its place, keeps its deadline and goes
// into that pool's order.
type Again struct {
	// From is the pool it is in: one that has left it is not offered.
	From slackgate.Path
	// Fence is that of the claim it is held under; 0: it waits.
	Fence int64
	// Revoke ends a job that no pool takes, as revoked.
	Revoke bool
}

// SlackMS is the time left until the first byte is due.
func (o *Offer) SlackMS() int64 { return o.LeftMS - o.ReserveMS }

// Budgeted reports whether any budget binds the job.
func (o *Offer) Budgeted() bool {
	for i := range o.Budgets {
		if o.Budgets[i].Set {
			return true
		}
	}
	return false
}

// OfferResult is what became of one offer, and the state that the store saw when
// it decided.
type OfferResult struct {
	Path slackgate.Path
	// DeadlineAtMS is the job's deadline on the store's clock.
	DeadlineAtMS int64
	// Ticket is set when the job needs a ticket: it was admitted while fewer
	// jobs waited than slots were free. What waits beyond that is claimed by
	// the slots that come free.
	Ticket bool
	// Bound is set when the job's idempotency key was bound before: the job
	// itself is not on record then, BoundTo is.
	Bound   KeyState
	BoundTo string
	Pools   [slackgate.NumPaths]slackgate.PoolState
	// Budgets are the offer's, with what was spent and reserved.
	Budgets [slackgate.NumBudgets]slackgate.Budget
	// Quota is the offer's, with how far it was used before.
	Quota slackgate.Quota
}

// KeyState says how an idempotency key that is bound already was met.
type KeyState string

// The states.
const (
	KeySame     KeyState = "same"     // with the same body
	KeyConflict KeyState = "conflict" // with another body
	BatchGone   KeyState = "gone"     // not the key: the line's batch was cancelled
	OfferLate   KeyState = "late"     // not the key: the offer's numbers were too old when the store came to it
)

// OfferResults is the reply to one call that offers jobs.
type OfferResults struct {
	NowMS int64
	// Stale is set when the store came to the call after the caller had stopped
	// waiting: nothing was done.
	Stale bool
	// FlagsChanged is set when the flags are no longer those that the numbers
	// were computed from: nothing was done.
	FlagsChanged bool
	// WorkersChanged is set when a pool has no longer as many living slots as its
	// ladder was built for: nothing was done.
	WorkersChanged bool
	Jobs           []OfferResult
	// Revoked are the jobs that ended so.
	Revoked []*Job
}

// PoolPolicy is what the store needs to know of a pool beside its own state.
type PoolPolicy struct {
	Limit  int
	Closed bool
	// FirstByteP95MS and Ladder stand in the states that come back; the
	// ladder's rungs are what the store checks. It is nil under the seed rule.
	FirstByteP95MS int64
	Ladder         *slackgate.Ladder
	// Released is GateState.Released of the state the ladder was built from.
	Released int64
	// Refused counts, by producer, submissions to the pool that were refused
	// without asking the store since it was asked last.
	Refused map[string]int64

	// Rungs are the ladder's and Levels the producers' shares of them, as text:
	// see [slackgate.Ladder.AppendRungs]. Written once, they serve many calls.
	Rungs, Levels string
}

// SetShares holds producers to their shares of the ladder's rungs; nil holds
// nobody back.
func (p *PoolPolicy) SetShares(s slackgate.Shares) { p.Levels = string(s.AppendLevels(nil)) }

// SetLadder gives the policy a ladder, built from a state with that many
// released, that is not built anew while the policy is in use.
func (p *PoolPolicy) SetLadder(l *slackgate.Ladder, released int64) {
	p.Ladder, p.Released, p.Rungs = l, released, string(l.AppendRungs(nil))
}

// TakeLadder gives the policy the ladder and the shares of another.
func (p *PoolPolicy) TakeLadder(from *PoolPolicy) {
	p.Ladder, p.Released, p.Rungs, p.Levels = from.Ladder, from.Released, from.Rungs, from.Levels
}

// GateState is what the store says of the pools at one instant.
type GateState struct {
	NowMS int64
	Pools [slackgate.NumPaths]slackgate.PoolState
	// RunningAges are the ages of the running jobs, oldest first, at most 512
	// a pool.
	RunningAges [slackgate.NumPaths][]int64
	// SilentAges are those of them that have had no answer text yet.
	SilentAges [slackgate.NumPaths][]int64
	// Released counts the claims that have come to an end.
	Released [slackgate.NumPaths]int64
	// Demands are how fast each active producer submits.
	Demands [slackgate.NumPaths][]slackgate.Demand
}
