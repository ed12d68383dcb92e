package slackgate

import (
	"math"
	"slices"
	"sort"
)

// Limits of a ladder.
const (
	// MaxRungs is the largest number of rungs a ladder has.
	MaxRungs = 96
	// MaxWorkers is the largest capacity a ladder is built for; of a larger
	// pool only so much is counted.
	MaxWorkers = 4096

	// exactRungs is how many rungs stand one job apart before the spacing
	// grows.
	exactRungs = 40
	// maxStarts bounds the positions that are laid on the workers one by one.
	maxStarts = 8192
	// neverMS is what a position needs that no worker will ever reach.
	neverMS = math.MaxInt64 / 4
)

// Rung is one mark on the time axis of a pool: of the jobs that are running or
// wait with an urgency before now+WithinMS, there may be at most Max. All running
// jobs count on every rung.
//
// Running and waiting jobs are counted together so that a job claimed between
// the snapshot and the count frees nothing.
type Rung struct {
	// WithinMS counts from now. [Unbounded] on the last rung, which counts
	// every job.
	WithinMS int64
	Max      int64
	// WaitMS is the expected wait at the mark: that of the last place behind Max
	// jobs that needs no more; on the last rung, of the first such place. For
	// the record only.
	WaitMS int64
}

// Ladder says how many jobs a pool can have promised by each mark.
//
// # The model of promises
//
// A pool has slots. Nobody knows when its running jobs will end, but their ages
// and what is believed of a call say when each slot is expected to come free. Lay
// jobs on the slots one after the other, each on the one that comes free first:
// the job in place n then starts at a time that is known with some spread, and
// needs so much slack that the 95th percentile of its wait and its first byte
// together (and, where it counts, of its wait and its hold) fit. That is the need
// of place n, and needs only grow from place to place.
//
// Within a pool the most urgent job goes first. A newcomer therefore stands behind
// all waiting jobs that are due before it, and moves each that is due after it back
// by one place. Two things must hold for it to be promised a place:
//
//   - the need of its own place fits its slack;
//   - every job behind it still has a place whose need fits its slack.
//
// The second would mean to look at every waiting job. It is the same to say: of
// the jobs that are due before a mark m, running ones among them, there may be no
// more than there are places whose need is at most m. So a ladder is a list of
// marks with that number, its rungs, and an admission counts the waiting jobs
// before each mark from the newcomer's own on ([Bound.Check], and the store's
// script, which has the marks from here and only compares). Marks before the
// newcomer's own bind it not: no count there grows.
//
// A ladder depends on the workers and on what is believed about them, never on
// the jobs that wait, so one serves any number of decisions until the running jobs
// change, and its length is bounded whatever the depth of the queue: beyond the
// first [exactRungs] places a rung stands for a group and refuses slightly early.
//
// The zero value is a ladder of a pool that can promise nothing. A ladder is
// read-only between two calls of Build, and then safe for concurrent use.
type Ladder struct {
	rungs  []Rung
	groups []group // per rung, the positions it stands for

	belief   Belief
	need     sum   // first byte after a wait
	hold     sum   // last byte after a wait
	reserve  int64 // of the hold test; Unbounded: none is needed
	serves   int64 // the smallest reserve of a job the hold test is right for
	capacity int
	running  int
	workers  int // workers that are expected to come free
	idle     int
	dispatch float64

	starts   []float64 // mean start of each position; the last round repeats
	perRound float64   // how much later the next round starts
	variance float64   // summed over the running jobs

	// What the running jobs, and each job ahead, add to the variance and the
	// tail of a wait. The workers share the jobs, so that one long job delays
	// the next start by its share only: the work ahead divided by the workers.
	runningVar, aheadVar, aheadTail float64

	residuals residuals
	free      []float64 // scratch: when each worker comes free
	order     []float64 // scratch: the same within a round, sorted
	round     []int     // scratch
}

// group is the positions from one rung's first to end. The first needs need.
type group struct {
	end  int
	need int64
}

// LadderInput is what a ladder is built from.
type LadderInput struct {
	// Capacity is the number of living slots.
	Capacity int
	// RunningAgesMS are the ages of the running jobs. More of them than Capacity
	// (a worker died) is possible: those expected to end last are kept.
	RunningAgesMS []int64
	// Belief is what is believed about first byte and hold.
	Belief Belief
	// DispatchMS is how long a worker that came free takes to claim the next
	// job.
	DispatchMS int64
	// ReserveMS is the smallest reserve among the classes that count the last
	// byte too; Unbounded if there is none. The hold test then asks of every
	// job that the p95 of wait + hold fits slack + ReserveMS, which is exact
	// with one class and on the safe side with several. A job with a smaller
	// reserve, unless it counts the first byte alone, is refused.
	ReserveMS int64
	// HorizonMS is the longest slack a job can have. Defaults to 24 hours.
	// The last rung bounds everything at what fits before the horizon.
	HorizonMS int64
}

// Build computes the ladder, reusing its memory. An input whose numbers cannot
// be calculated with gives a ladder that admits nothing.
func (l *Ladder) Build(p *LadderInput) {
	l.rungs, l.groups = l.rungs[:0], l.groups[:0]
	l.starts = l.starts[:0]
	l.capacity, l.running = p.Capacity, len(p.RunningAgesMS)
	l.workers, l.idle = 0, 0
	l.belief = p.Belief
	l.reserve, l.serves = p.ReserveMS, p.ReserveMS
	l.variance = 0
	if p.Capacity <= 0 || !p.Belief.OK() || p.DispatchMS < 0 || p.ReserveMS < 0 {
		return
	}
	l.dispatch = float64(p.DispatchMS)
	l.need = newSum(p.Belief.FirstByte)
	l.hold = newSum(p.Belief.Hold)
	if l.hold == l.need {
		l.reserve, l.serves = Unbounded, 0 // the last byte comes with the first
	}
	l.layOut(min(p.Capacity, MaxWorkers), p.RunningAgesMS)
	if l.workers == 0 {
		return
	}
	w := float64(l.workers)
	l.runningVar = l.variance / (w * w)
	l.aheadVar = l.belief.Hold.VarMS2 / (w * w)
	l.aheadTail = l.hold.tail / (w * w * w)
	horizon := p.HorizonMS
	if horizon <= 0 {
		horizon = 24 * 3600 * 1000
	}
	l.cut(horizon)
}

// layOut works out when each position in the waiting order starts: the workers
// take one job each per round, in the order in which they come free, a worker
// joining in the round in which it first comes free.
func (l *Ladder) layOut(capacity int, ages []int64) {
	l.residuals.set(l.belief.Hold)
	m := l.belief.Hold.MeanMS + l.dispatch
	l.perRound = m
	l.free = l.free[:0]
	for _, age := range ages {
		r := l.residuals.at(float64(age))
		l.free = append(l.free, r.mean+l.dispatch)
		l.variance += r.variance
	}
	if len(l.free) > capacity {
		slices.Sort(l.free)
		l.free = l.free[len(l.free)-capacity:]
	}
	l.idle = capacity - len(l.free)
	for range l.idle {
		l.free = append(l.free, 0)
	}
	slices.Sort(l.free)
	// A worker that is not expected back for very long is not counted on. For
	// few workers that is thousands of holds, for many it is a handful.
	longest := m * float64(max(8, maxStarts/capacity-2))
	for len(l.free) > 0 && l.free[len(l.free)-1] >= longest {
		l.free = l.free[:len(l.free)-1]
	}
	l.workers = len(l.free)
	if l.workers == 0 {
		return
	}
	rounds := int(l.free[l.workers-1] / m)
	// Sorted by the time within a round: round n is then the subsequence of
	// the workers that have joined by it.
	l.order, l.round = l.order[:0], l.round[:0]
	for _, f := range l.free {
		n := math.Floor(f / m)
		l.order = append(l.order, f-n*m)
		l.round = append(l.round, int(n))
	}
	sort.Sort((*byTime)(l))
	for n := 0; n <= rounds; n++ {
		for i, b := range l.order {
			if l.round[i] <= n {
				l.starts = append(l.starts, b+float64(n)*m)
			}
		}
	}
}

// byTime sorts the workers by the time within a round at which they come free.
type byTime Ladder

func (t *byTime) Len() int           { return len(t.order) }
func (t *byTime) Less(i, j int) bool { return t.order[i] < t.order[j] }
func (t *byTime) Swap(i, j int) {
	t.order[i], t.order[j] = t.order[j], t.order[i]
	t.round[i], t.round[j] = t.round[j], t.round[i]
}

// wait returns mean, variance and tail of the wait of the job with ahead jobs
// before it.
func (l *Ladder) wait(ahead int) (mean, variance, tail float64) {
	if n := len(l.starts); ahead < n {
		mean = l.starts[ahead]
	} else {
		beyond := uint64(ahead - n)
		rounds := beyond / uint64(l.workers)
		at := n - l.workers + int(beyond-rounds*uint64(l.workers))
		mean = l.starts[at] + float64(rounds+1)*l.perRound
	}
	if ahead < l.idle {
		return mean, 0, 0
	}
	return mean, l.runningVar + float64(ahead)*l.aheadVar, float64(ahead) * l.aheadTail
}

// sum is the last leg after a wait.
type sum struct {
	Dist
	tail float64
}

func newSum(d Dist) sum { return sum{d, d.tail()} }

// p95 is the 95th percentile of wait + last leg: with nothing to wait for that
// of the last leg itself, and never below it.
func (s *sum) p95(mean, variance, tail float64) float64 {
	if mean == 0 && variance == 0 {
		return s.P95MS
	}
	q := mean + s.MeanMS
	if v := variance + s.VarMS2; v > 0 {
		q += z95*math.Sqrt(v) + (tail+s.tail)/v
	}
	// A wait as long as expected must leave the p95 that is asked for when a
	// worker takes the job. Of consistent numbers the quantile is never less.
	return max(q, mean+s.P95MS)
}

// at is the slack a job needs with ahead jobs before it.
func (l *Ladder) at(ahead int, reserve int64) int64 {
	if l.workers == 0 {
		return neverMS
	}
	mean, variance, tail := l.wait(ahead)
	return l.after(mean, variance, tail, reserve)
}

// after is the slack a job needs behind a wait.
func (l *Ladder) after(mean, variance, tail float64, reserve int64) int64 {
	need := l.need.p95(mean, variance, tail)
	if reserve != Unbounded {
		need = max(need, l.hold.p95(mean, variance, tail)-float64(reserve))
	}
	return ceilMS(need)
}

// ceilMS rounds up to whole milliseconds, forgiving the last bits of a float.
func ceilMS(x float64) int64 {
	if x >= neverMS {
		return neverMS
	}
	return int64(math.Ceil(x - 1e-6))
}

// cut divides the positions into rungs: one each at first, then in groups
// that span a constant ratio of time, so that their number is bounded. A group
// is on the safe side: all of it must fit where its first position stands.
func (l *Ladder) cut(horizon int64) {
	first, need, reached := 0, l.at(0, l.reserve), int64(0)
	for need <= horizon && len(l.rungs) < exactRungs {
		end, next := l.lastWithin(first, need)
		l.add(first, end, need, need)
		first, need, reached = end+1, next, need
	}
	left := MaxRungs - 1 - len(l.rungs)
	ratio := math.Pow(float64(horizon)/float64(max(reached, 1)), 1/float64(left-1))
	for need <= horizon && len(l.rungs) < MaxRungs-1 {
		end, next := l.lastWithin(first, min(max(need, int64(float64(reached)*ratio)), horizon))
		reached = l.at(end, l.reserve)
		l.add(first, end, need, reached)
		first, need = end+1, next
	}
	l.add(first, first, need, Unbounded)
}

func (l *Ladder) add(first, end int, need, at int64) {
	l.rungs = append(l.rungs, Rung{
		WithinMS: at, Max: int64(l.running) + int64(first), WaitMS: l.WaitMS(end),
	})
	l.groups = append(l.groups, group{end, need})
}

// lastWithin returns the last position from first on that needs at most at,
// and what the next one needs. Position first does need at most at.
func (l *Ladder) lastWithin(first int, at int64) (last int, next int64) {
	lo, needLo, step, need := 0, at, 1, int64(0)
	for step < 1<<40 {
		if need = l.at(first+step, l.reserve); need > at {
			break
		}
		lo, needLo = step, need
		step *= 2
	}
	lo, next = l.search(first, lo, step, at, needLo, need)
	return first + lo, next
}

// search returns the largest d, from lo to hi-1, for which position first+d
// needs at most at, and what position first+d+1 needs. Position first+lo needs
// needLo, which is not more than at; position first+hi needs needHi, which is.
// The needs grow nearly evenly, so it looks where the place ought to be first.
func (l *Ladder) search(first, lo, hi int, at, needLo, needHi int64) (int, int64) {
	for try := 0; hi-lo > 1; try++ {
		mid := int(uint(lo+hi) / 2)
		if needHi > needLo && try < 4 {
			guess := lo + int(float64(hi-lo)*float64(at-needLo)/float64(needHi-needLo))
			mid = min(max(guess+try%2, lo+1), hi-1)
		}
		if need := l.at(first+mid, l.reserve); need <= at {
			lo, needLo = mid, need
		} else {
			hi, needHi = mid, need
		}
	}
	return lo, needHi
}

// Rungs returns the ladder's marks in ascending order. The caller must not
// change them.
func (l *Ladder) Rungs() []Rung { return l.rungs }

// Capacity is the number of living slots the ladder was built for. With any other
// it says nothing.
func (l *Ladder) Capacity() int { return l.capacity }

// Running is the number of running jobs the ladder was built from.
func (l *Ladder) Running() int { return l.running }

// Belief is what the ladder was built from.
func (l *Ladder) Belief() *Belief { return &l.belief }

// bind returns the index of the first rung that binds a job with slackMS left:
// one past the last if it cannot be admitted.
func (l *Ladder) bind(j *Job, slackMS int64) int {
	if !j.FirstByteOnly && j.ReserveMS < l.serves {
		return len(l.rungs)
	}
	lo, hi := 0, len(l.rungs)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if l.rungs[mid].WithinMS > slackMS {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// firstMax is what stands in the place of Max of rung i, the first that binds a
// job with slackMS left: exact for the job's own place where the rung itself
// stands for a group.
func (l *Ladder) firstMax(i int, slackMS int64) int64 {
	if i == len(l.rungs) {
		return 0
	}
	most := l.rungs[i].Max
	from, g := int(most)-l.running, l.groups[i]
	if g.end > from && g.need <= slackMS {
		d, _ := l.search(from, 0, g.end-from, slackMS, g.need, l.rungs[i].WithinMS)
		most += int64(d) + 1
	}
	return most
}

// within reports whether before+1 jobs are at most firstMax of rung i: whether
// the place behind the jobs before, running ones included, needs no more than
// slackMS. The needs of places never fall.
func (l *Ladder) within(i int, before, slackMS int64) bool {
	most, g := l.rungs[i].Max, &l.groups[i]
	if before < most {
		return true
	}
	place := before - int64(l.running)
	return place < int64(g.end) && g.need <= slackMS && l.at(int(place), l.reserve) <= slackMS
}

// NeedMS is the slack that job j needs in the pool with ahead jobs before it:
// the 95th percentile of wait and first byte and, unless the class counts the
// first byte alone, that of wait and hold less the reserve.
func (l *Ladder) NeedMS(ahead int, j *Job) int64 {
	need, _ := l.needAndWait(ahead, j)
	return need
}

// WaitMS is the expected wait for a worker with ahead jobs before it.
func (l *Ladder) WaitMS(ahead int) int64 {
	if l.workers == 0 {
		return neverMS
	}
	mean, _, _ := l.wait(max(ahead, 0))
	return ceilMS(mean)
}

func (l *Ladder) needAndWait(ahead int, j *Job) (need, wait int64) {
	if l.workers == 0 {
		return neverMS, neverMS
	}
	reserve := j.ReserveMS
	if j.FirstByteOnly {
		reserve = Unbounded
	}
	mean, variance, tail := l.wait(max(ahead, 0))
	return l.after(mean, variance, tail, reserve), ceilMS(mean)
}
