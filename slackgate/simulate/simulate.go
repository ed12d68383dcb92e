// Package simulate plays whole workloads through the slack gate in virtual
// time, and works out the best that any schedule could have done.
//
// It calls the same decision function as the admission API; only the store, the
// workers and the backends are made up.
package simulate

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"

	"leeway/slackgate"
)

// Policy is a way to run the gate and the queues behind it.
type Policy struct {
	Name string
	Rule slackgate.Rule
	// Recheck drops a job whose slack is below the first-byte p95 when a
	// worker takes it.
	Recheck bool
	// ListOrder keeps the waiting jobs in order of arrival, as a plain list
	// would, instead of by urgency.
	ListOrder bool
	// Rescue offers a job that the re-check would drop in the free pool to the
	// paid one.
	Rescue bool
	// Cut ends a call that can no longer be usable: without a first byte when
	// that is due, or at the deadline, as Leeway's workers do. The article's
	// workers wait to the end.
	Cut bool
	// Learn measures first byte and hold during the run, from the declared p95
	// on. Otherwise the service's own numbers are believed throughout.
	Learn bool
}

// The policies of the table.
var (
	SeedNoRecheck    = Policy{Name: "seed, no re-check", Rule: slackgate.Seed}
	SeedRecheck      = Policy{Name: "seed", Rule: slackgate.Seed, Recheck: true}
	ListOrder        = Policy{Name: "list order", Rule: slackgate.Predictive, Recheck: true, Cut: true, ListOrder: true}
	Predictive       = Policy{Name: "predictive", Rule: slackgate.Predictive, Recheck: true, Cut: true, Rescue: true}
	PredictiveLearns = Policy{Name: "predictive, learning", Rule: slackgate.Predictive, Recheck: true, Cut: true, Rescue: true, Learn: true}
)

// Workers is the number of workers of each pool in every run: the article's.
var Workers = [slackgate.NumPaths]int{slackgate.Paid: 2, slackgate.Free: 1}

// ClassCount counts the jobs of one class.
type ClassCount struct{ Offered, Usable int }

// Outcome is what became of one run.
type Outcome struct {
	Offered, AdmittedPaid, AdmittedFree, Rejected int
	// Usable: first byte by deadline - reserve, last byte by the deadline.
	// Late: a backend was called in vain. Dropped: admitted, but no backend
	// was called. Late and dropped together are the misses.
	Usable, Late, Dropped int
	// WastedMS is worker time spent on jobs that were not usable.
	WastedMS int64
	// PaidCalls counts the calls of the paid backend.
	PaidCalls int
	// RejectWaitMS is how long the jobs that got no answer waited to be told:
	// nothing for a reject at the door, the time waited for a drop.
	RejectWaitMS int64
	// UnderP95 counts backend calls made with less slack than the p95 believed.
	UnderP95 int
	Classes  []ClassCount
}

// Admitted is the number of promises made.
func (o *Outcome) Admitted() int { return o.AdmittedPaid + o.AdmittedFree }

// Missed is the number of promises broken.
func (o *Outcome) Missed() int { return o.Late + o.Dropped }

// MeanRejectMS is the mean time until a job without an answer was told.
func (o *Outcome) MeanRejectMS() float64 {
	n := o.Rejected + o.Dropped
	if n == 0 {
		return 0
	}
	return float64(o.RejectWaitMS) / float64(n)
}

// startMS is the clock at the start of a run: the gate takes no instant of 0.
const startMS = 1_000_000

// waiting is one job in a pool's order.
type waiting struct {
	urgency int64
	job     int
}

// call is one job on a worker.
type call struct {
	job                 int
	startMS             int64
	firstByteMS, doneMS int64 // instants
	firstNoted          bool  // the learner knows the first byte
	cut                 bool  // ended before its time, in vain
}

// pool is one pool's workers and queue.
type pool struct {
	path    slackgate.Path
	queue   []waiting // in the order in which they will be taken
	running []call
	ages    []int64
	ladder  slackgate.Ladder
	belief  slackgate.Belief
	learner *learner
	nowMS   int64
	list    bool
}

// Before implements [slackgate.Counter].
func (p *pool) Before(atMS int64) int64 {
	if atMS == slackgate.Unbounded || p.list {
		return int64(len(p.queue))
	}
	limit := p.nowMS + atMS
	return int64(sort.Search(len(p.queue), func(i int) bool { return p.queue[i].urgency >= limit }))
}

// run is one run in progress.
type run struct {
	policy  Policy
	service *Service
	jobs    []Arrival
	first   [][slackgate.NumPaths]int64 // drawn per job and pool
	hold    [][slackgate.NumPaths]int64
	pools   [slackgate.NumPaths]*pool
	reserve int64
	horizon int64
	out     Outcome
}

// Run plays a workload through a policy. The seed, from 1, fixes arrivals and
// service times, whatever the policy.
func Run(w Workload, s Service, p Policy, seed uint64) Outcome {
	jobs := w.Make(seed)
	r := &run{policy: p, service: &s, jobs: jobs, reserve: slackgate.Unbounded}
	r.first, r.hold = draw(jobs, &s, seed)
	r.out.Offered = len(jobs)
	r.out.Classes = make([]ClassCount, max(1, len(w.Classes)))
	for i := range jobs {
		r.reserve = min(r.reserve, jobs[i].ReserveMS)
		r.horizon = max(r.horizon, jobs[i].DeadlineMS)
	}
	for _, path := range slackgate.Paths {
		r.pools[path] = &pool{path: path, belief: s.Belief[path], list: p.ListOrder}
		if p.Learn {
			r.pools[path].learner = newLearner(&s.Belief[path])
			r.pools[path].belief = r.pools[path].learner.belief(startMS, nil)
		}
	}
	r.play()
	return r.out
}

// draw fixes every job's service times in every pool.
func draw(jobs []Arrival, s *Service, seed uint64) (first, hold [][slackgate.NumPaths]int64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	first = make([][slackgate.NumPaths]int64, len(jobs))
	hold = make([][slackgate.NumPaths]int64, len(jobs))
	for i := range jobs {
		for _, path := range slackgate.Paths {
			first[i][path], hold[i][path] = s.Draw(rng, path, &jobs[i])
		}
	}
	return first, hold
}

// play advances from event to event: at one instant workers come free and take
// the next job before anything new is offered.
func (r *run) play() {
	next := 0
	for {
		now := int64(math.MaxInt64)
		if next < len(r.jobs) {
			now = startMS + r.jobs[next].AtMS
		}
		for _, path := range slackgate.Paths {
			for i := range r.pools[path].running {
				now = min(now, r.pools[path].running[i].doneMS)
			}
		}
		if now == math.MaxInt64 {
			return
		}
		for _, path := range slackgate.Paths {
			r.finish(r.pools[path], now)
			r.claim(r.pools[path], now)
		}
		for next < len(r.jobs) && startMS+r.jobs[next].AtMS == now {
			r.submit(next, now)
			next++
		}
	}
}

// finish ends the calls that are due.
func (r *run) finish(p *pool, now int64) {
	p.running = slices.DeleteFunc(p.running, func(c call) bool {
		if c.doneMS > now {
			return false
		}
		j := &r.jobs[c.job]
		deadline := r.deadline(c.job)
		if !c.cut && c.firstByteMS <= deadline-j.ReserveMS && c.doneMS <= deadline {
			r.out.Usable++
			r.out.Classes[j.Class].Usable++
		} else {
			r.out.Late++
			r.out.WastedMS += c.doneMS - c.startMS
		}
		if p.learner != nil {
			if !c.firstNoted {
				early := c.firstByteMS > c.doneMS
				p.learner.gotFirst(min(c.firstByteMS, c.doneMS)-c.startMS, c.doneMS, early)
			}
			p.learner.gotLast(c.doneMS-c.startMS, c.doneMS, c.cut)
		}
		return true
	})
}

// deadline is a job's deadline on the run's clock.
func (r *run) deadline(job int) int64 { return startMS + r.jobs[job].AtMS + r.jobs[job].DeadlineMS }

// claim puts waiting jobs on free workers.
func (r *run) claim(p *pool, now int64) {
	for len(p.running) < Workers[p.path] && len(p.queue) > 0 {
		w := p.queue[0]
		p.queue = p.queue[1:]
		p.refresh(now)
		var hold int64
		if r.policy.Rule == slackgate.Predictive {
			hold = ceil(p.belief.Hold.P95MS)
		}
		fits := slackgate.StillFits(w.urgency-now, r.deadline(w.job)-now, ceil(p.belief.FirstByte.P95MS), hold)
		switch {
		case fits:
		case !r.policy.Recheck:
			r.out.UnderP95++
		case r.rescue(p, w.job, now):
			continue
		default:
			r.out.Dropped++
			r.out.RejectWaitMS += now - startMS - r.jobs[w.job].AtMS
			continue
		}
		if p.path == slackgate.Paid {
			r.out.PaidCalls++
		}
		p.running = append(p.running, r.call(p.path, w, now))
	}
}

// call is what a worker's call comes to.
func (r *run) call(path slackgate.Path, w waiting, now int64) call {
	by := r.service.slowness(now - startMS)
	c := call{
		job: w.job, startMS: now,
		firstByteMS: now + int64(float64(r.first[w.job][path])*by),
		doneMS:      now + int64(float64(r.hold[w.job][path])*by),
	}
	if !r.policy.Cut {
		return c
	}
	end := r.deadline(w.job)
	if c.firstByteMS > w.urgency {
		end = w.urgency
	}
	if end = max(end, now); c.doneMS > end {
		c.doneMS, c.cut = end, true
	}
	return c
}

func ceil(x float64) int64 { return int64(math.Ceil(x - 1e-6)) }

// rescue offers a job that fails the free pool's re-check to the paid one, with
// the time it has left.
func (r *run) rescue(p *pool, job int, now int64) bool {
	if !r.policy.Rescue || p.path != slackgate.Free {
		return false
	}
	return r.offer(job, [2]slackgate.Path{slackgate.Paid}, now) != slackgate.Reject
}

// submit puts one new job to the gate.
func (r *run) submit(job int, now int64) {
	r.out.Classes[r.jobs[job].Class].Offered++
	switch r.offer(job, r.jobs[job].Prefer, now) {
	case slackgate.Reject:
		r.out.Rejected++
	case slackgate.Paid:
		r.out.AdmittedPaid++
	case slackgate.Free:
		r.out.AdmittedFree++
	}
}

// offer asks the gate about a job and, if it is admitted, queues it.
func (r *run) offer(i int, prefer [2]slackgate.Path, now int64) slackgate.Path {
	job := slackgate.Job{DeadlineMS: r.deadline(i), ReserveMS: r.jobs[i].ReserveMS, Prefer: prefer}
	policy := slackgate.Policy{Rule: r.policy.Rule, FreeQueueAgeCutMS: slackgate.Unbounded}
	if policy.Rule == slackgate.Seed {
		policy.FreeQueueAgeCutMS = slackgate.ArticleFreeQueueAgeCutMS
	}
	urgency := job.UrgencyMS()
	var snap slackgate.Snapshot
	for _, path := range slackgate.Paths {
		snap.Pools[path] = r.state(r.pools[path], urgency, now)
	}
	bounds := slackgate.Bounds(&snap, job, policy, job.SlackMS(now))
	for k := range bounds {
		if b := &bounds[k]; b.Path != slackgate.Reject {
			p := r.pools[b.Path]
			snap.Pools[b.Path].Break = b.Check(len(p.running), p)
		}
	}
	res := slackgate.Decide(&snap, job, policy, now)
	if res.Path != slackgate.Reject {
		p := r.pools[res.Path]
		p.queue = slices.Insert(p.queue, p.place(urgency), waiting{urgency, i})
		r.claim(p, now)
	}
	return res.Path
}

// place is where in the order a newcomer goes.
func (p *pool) place(urgency int64) int {
	if p.list {
		return len(p.queue)
	}
	return sort.Search(len(p.queue), func(i int) bool { return p.queue[i].urgency > urgency })
}

// refresh brings ages and, when learning, the belief up to now.
func (p *pool) refresh(now int64) {
	p.nowMS = now
	p.ages = p.ages[:0]
	for i := range p.running {
		p.ages = append(p.ages, now-p.running[i].startMS)
	}
	if p.learner == nil {
		return
	}
	for i := range p.running {
		if c := &p.running[i]; !c.firstNoted && c.firstByteMS <= now {
			c.firstNoted = true
			p.learner.gotFirst(c.firstByteMS-c.startMS, c.firstByteMS, false)
		}
	}
	p.belief = p.learner.belief(now, p.running)
}

// state is a pool as the store would report it.
func (r *run) state(p *pool, urgency, now int64) slackgate.PoolState {
	p.refresh(now)
	s := slackgate.PoolState{
		Limit: Workers[p.path], Capacity: Workers[p.path],
		Waiting: len(p.queue), Running: len(p.running), Ahead: p.place(urgency),
		FirstByteP95MS: ceil(p.belief.FirstByte.P95MS),
	}
	for i := range p.queue {
		s.QueueAgeMS = max(s.QueueAgeMS, now-startMS-r.jobs[p.queue[i].job].AtMS)
	}
	s.ClassQueueAgeMS = s.QueueAgeMS
	if r.policy.Rule == slackgate.Predictive {
		p.ladder.Build(&slackgate.Plan{
			Capacity: Workers[p.path], RunningMS: p.ages, Belief: p.belief,
			ReserveMS: r.reserve, HorizonMS: r.horizon,
		})
		s.Ladder = &p.ladder
	}
	return s
}
