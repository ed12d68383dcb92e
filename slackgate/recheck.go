package slackgate

// Recheck is the second part of the decision: what a promised job must still
// have for its pool to go on with it, at the least. It is asked
//
//   - when a worker takes the job, before a backend is called ([Recheck.Passes]);
//   - while the job's pool has no capacity ([Recheck.Waits]).
//
// A job that was admitted by [Decide] and started no later than expected has it:
// what Decide compares with the slack is never less than the expected wait and
// this. A job that has it no longer may go to Decide once more, with the slack
// that is left, if its class lets another pool take it; else it has ended.
type Recheck struct {
	// LeastSlackMS is the least slack. [Unbounded] where the first byte's p95 is
	// not known: no job has that.
	LeastSlackMS int64
	// LeastLeftMS is the least time to the deadline; 0 where the last byte is not
	// promised.
	LeastLeftMS int64
}

// NewRecheck is what a job needs in a pool with these p95s: the first byte must
// fit the slack, the last what is left to the deadline. A hold p95 of 0 leaves
// the last byte out, as firstByteOnly does for a class that counts the first byte
// alone: the seed rule promises no more.
func NewRecheck(firstByteP95MS, holdP95MS int64, firstByteOnly bool) Recheck {
	c := Recheck{LeastSlackMS: firstByteP95MS, LeastLeftMS: holdP95MS}
	if firstByteP95MS <= 0 {
		c.LeastSlackMS = Unbounded
	}
	if firstByteOnly {
		c.LeastLeftMS = 0
	}
	return c
}

// Passes reports whether a job with so much left has what it needs. Exactly as
// much is enough.
func (c Recheck) Passes(slackMS, leftMS int64) bool {
	return slackMS >= c.LeastSlackMS && (c.LeastLeftMS == 0 || leftMS >= c.LeastLeftMS)
}

// CapacityGraceMS is how soon a pool that has no capacity now may have some again:
// a worker that is left without a backend probes its backends that often, and a
// supervisor has a worker that was lost back by then.
const CapacityGraceMS = ProbeEveryMS

// Waits reports whether a job with so much left will still have what it needs once
// its pool, which has no capacity now, may have it again.
func (c Recheck) Waits(slackMS, leftMS int64) bool {
	return c.Passes(satSub(slackMS, CapacityGraceMS), satSub(leftMS, CapacityGraceMS))
}
