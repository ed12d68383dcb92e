package slackgate

// Bound is what a pool's state must satisfy to take one particular job:
// numbers alone, computed once from the rule, so that the store can check them
// in the atomic step that also records the promise. A pool takes the job when
// it is neither closed nor without workers and
//
//	waiting + running     <  MaxInFlight
//	queue age             <  MaxQueueAgeMS
//	queue age of the class < MaxClassQueueAgeMS
//
// and, where there are Rungs, for each of them
//
//	running + waiting with an urgency before now+WithinMS + 1 <= Max
type Bound struct {
	// Path names the pool; Reject: no pool in this place.
	Path Path
	// MaxInFlight: waiting + running must be below it.
	MaxInFlight int64
	// MaxQueueAgeMS: the queue age must be below it.
	MaxQueueAgeMS int64
	// MaxClassQueueAgeMS: the queue age of the job's class must be below it.
	MaxClassQueueAgeMS int64
	// NeedMS is what the slack was compared with under the seed rule, for the
	// record: MaxQueueAgeMS is worked out from it. With NeedAddsAge the queue
	// age at the time of the check is to be added.
	NeedMS      int64
	NeedAddsAge bool

	// Laddered is set when the rungs bind; with no Rungs then, nothing is
	// admitted.
	Laddered bool
	// First is the index in the ladder of the first rung that binds the job:
	// the first with WithinMS above its slack.
	First int
	// FirstMax stands in the place of that rung's Max.
	FirstMax int64
	// Rungs are the ladder's rungs from First on. They are not to be changed.
	Rungs []Rung

	// What FirstMax is worked out from: [Bound.Admits] compares without it.
	ladder  *Ladder
	slackMS int64
}

// Break says which rung a job would break. The zero value: none.
type Break struct {
	// Rung is the place of the rung in [Ladder.Rungs], counted from 1.
	Rung int
	// Waiting is the number of waiting jobs that count on it.
	Waiting int64
}

// Counter counts the waiting jobs of a pool.
type Counter interface {
	// Before returns how many wait with an urgency before now+atMS. With
	// [Unbounded] it returns how many wait.
	Before(atMS int64) int64
}

// Check counts the waiting jobs at the rungs, as the store's script does, and
// returns the first rung that the job would break. It stops early where even
// all the waiting jobs together are within the rung, because the later ones
// allow more. A ladder that admits nothing gives Rung 1.
func (b *Bound) Check(running int, c Counter) Break {
	if !b.Laddered {
		return Break{}
	}
	all := c.Before(Unbounded)
	for i := range b.Rungs {
		n := c.Before(b.Rungs[i].WithinMS)
		if int64(running)+n+1 > b.max(i) {
			return Break{b.First + i + 1, n}
		}
		if int64(running)+all+1 <= b.max(i) {
			return Break{}
		}
	}
	if len(b.Rungs) == 0 {
		return Break{Rung: 1, Waiting: all}
	}
	return Break{}
}

// max is how many jobs a rung allows this job to be among.
func (b *Bound) max(i int) int64 {
	if i == 0 {
		return b.FirstMax
	}
	return b.Rungs[i].Max
}

// holds reports whether no rung breaks. What can be checked again from the
// state's counts is: the job's own place, and the last rung, which counts all.
func (b *Bound) holds(s *PoolState) bool {
	if !b.Laddered {
		return true
	}
	n := len(b.Rungs)
	return n > 0 && s.Break.Rung == 0 &&
		b.ladder.within(b.First, int64(s.Running)+int64(s.Ahead), b.slackMS) &&
		int64(s.Running)+int64(s.Waiting)+1 <= b.Rungs[n-1].Max
}

// Admits reports whether a pool in state s satisfies the bound. The store's
// script makes the same comparisons.
func (b *Bound) Admits(s *PoolState) bool { return b.open(s) && b.holds(s) }

// open reports whether nothing but the rungs can stand in the way.
func (b *Bound) open(s *PoolState) bool {
	return s.Capacity > 0 && !s.Closed &&
		int64(s.InFlight()) < b.MaxInFlight &&
		s.QueueAgeMS < b.MaxQueueAgeMS &&
		s.ClassQueueAgeMS < b.MaxClassQueueAgeMS
}

// RefusedUpToMS is the most slack with which a pool in state s, which has refused
// job j under this bound, is sure to refuse a job that is like j otherwise. It
// may be less than what is true; [Unbounded] where slack does not matter.
//
// Whoever has more slack stands behind no fewer jobs, so that it too needs what
// j's place needs; and a rung that breaks for j breaks for everybody that it
// binds, but for the first of the rungs, which each job's own need stretches.
func (b *Bound) RefusedUpToMS(s *PoolState, j *Job) int64 {
	switch {
	case b.Path == Reject || s.Capacity <= 0 || s.Closed || s.ClassQueueAgeMS >= b.MaxClassQueueAgeMS:
		return Unbounded
	case b.ladder == nil || len(b.Rungs) == 0:
		return b.slackMS
	}
	if need, _ := b.ladder.needAndWait(s.position(int64(s.Ahead)), j); need > b.slackMS {
		return need - 1
	}
	if i := s.Break.Rung - 1; i > b.First && i < len(b.ladder.rungs) {
		return b.ladder.rungs[i-1].WithinMS - 1
	}
	return b.slackMS
}

// Bounds returns what each pool must look like to take a job with slackMS
// left, in the order in which the pools are tried. With no slack there is no
// such pool. The p95s and ladders are taken from s; nothing else of it is
// read.
func Bounds(s *Snapshot, j Job, p Policy, slackMS int64) [2]Bound {
	var bounds [2]Bound
	if slackMS <= 0 {
		return bounds
	}
	for i := range bounds {
		b := &bounds[i]
		b.set(s, &j, &p, i, slackMS)
		if b.ladder != nil {
			b.FirstMax = b.ladder.firstMax(b.First, slackMS)
		}
	}
	return bounds
}

// set works out the zero bound for the place'th pool tried. It leaves FirstMax
// out: finding that number costs a search, comparing with it does not need one.
func (b *Bound) set(s *Snapshot, j *Job, p *Policy, place int, slackMS int64) {
	if p.Rule == Seed {
		b.setSeed(s, j, p, place, slackMS)
		return
	}
	path := j.Prefer[place]
	if path != Paid && path != Free || place == 1 && path == j.Prefer[0] {
		return
	}
	b.Path, b.Laddered = path, true
	b.MaxInFlight, b.MaxQueueAgeMS, b.MaxClassQueueAgeMS = Unbounded, Unbounded, Unbounded
	if path == Free {
		b.MaxClassQueueAgeMS = p.FreeQueueAgeCutMS
	}
	if l := s.Pools[path].Ladder; l != nil {
		b.ladder, b.slackMS = l, slackMS
		b.First = l.bind(j, slackMS)
		b.Rungs = l.rungs[b.First:]
	}
}

// setSeed is the article's rule: paid below its limit if slack > p95, then free
// if the age is below the cut and age + p95 < slack. The article's order is
// fixed; a class can only leave a pool out.
func (b *Bound) setSeed(s *Snapshot, j *Job, p *Policy, place int, slackMS int64) {
	path := Paths[place]
	if !j.may(path) {
		return
	}
	p95 := s.Pools[path].FirstByteP95MS
	b.Path, b.NeedMS = path, p95
	b.MaxInFlight, b.MaxQueueAgeMS, b.MaxClassQueueAgeMS = Unbounded, Unbounded, Unbounded
	switch {
	case path == Free:
		b.MaxQueueAgeMS, b.NeedAddsAge = min(p.FreeQueueAgeCutMS, satSub(slackMS, p95)), true
	case slackMS <= p95:
		b.MaxInFlight = 0
	default:
		b.MaxInFlight = int64(s.Pools[path].Limit)
	}
}

// may reports whether the class lets the job use the pool.
func (j *Job) may(p Path) bool { return j.Prefer[0] == p || j.Prefer[1] == p }

// retryAfterMS is how long the refused job would have to wait, were nothing
// else to come, until the pool can take it with as much slack as it has now.
// [Unbounded] if that will never be or cannot be said. A pool that its own
// measurement has closed to the job is probed meanwhile.
//
// A position's need falls by a millisecond a millisecond while the workers
// work. So what the first place behind the counted jobs needs more than the
// mark gives is the time to wait.
func (b *Bound) retryAfterMS(s *PoolState, j *Job, slackMS int64) int64 {
	if len(b.Rungs) == 0 || s.ClassQueueAgeMS >= b.MaxClassQueueAgeMS {
		return Unbounded
	}
	l, at := s.Ladder, slackMS
	if l.belief.NeedMS(j) > slackMS {
		return l.belief.reopensInMS(j, slackMS)
	}
	behind := s.position(max(s.Break.Waiting, int64(s.Ahead)))
	if i := s.Break.Rung - 1; i > b.First && i < len(l.rungs) {
		at = l.rungs[i-1].WithinMS // what the last of the jobs that rung i allows needs
	}
	return max(1, l.at(behind, l.reserve)-at)
}
