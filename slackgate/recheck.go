package slackgate

// Recheck is the second part of the decision: what a promised job must still
// have for its pool to go on with it, at the least. It is asked
//
//   - when a worker takes the job, before a backend is called ([NewRecheck]);
//   - when the job's worker was lost, before it goes back into the pool's order
//     ([Reoffer]).
//
// A job that was admitted by [Decide] and started no later than expected has it:
// what Decide compares with the slack is never less than the expected wait and
// this. A job that has it no longer may go to Decide once more, with the slack
// that is left, if its class lets another pool take it; else it has ended.
//
// It is two numbers, so that the store can compare with them where it mends what
// a crash left behind.
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

// Reoffer is what a job needs to go back into a pool's order. The last byte is
// left to the re-check that the next worker makes. With reroute, where the class
// lets paid take what free can no longer make, it is enough that paid can.
func Reoffer(path Path, firstByteP95MS [NumPaths]int64, reroute bool) Recheck {
	c := NewRecheck(firstByteP95MS[path], 0, true)
	if reroute && path == Free {
		paid := NewRecheck(firstByteP95MS[Paid], 0, true)
		c.LeastSlackMS = min(c.LeastSlackMS, paid.LeastSlackMS)
	}
	return c
}

// Passes reports whether a job with so much left has what it needs. Exactly as
// much is enough.
func (c Recheck) Passes(slackMS, leftMS int64) bool {
	return slackMS >= c.LeastSlackMS && (c.LeastLeftMS == 0 || leftMS >= c.LeastLeftMS)
}
