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
	// AdmitAll asks no gate: each job goes to the pool of its class in which it
	// would be served first, and waits there however long that takes.
	AdmitAll bool
}

// The policies of the table.
var (
	SeedNoRecheck    = Policy{Name: "seed, no re-check", Rule: slackgate.Seed}
	SeedRecheck      = Policy{Name: "seed", Rule: slackgate.Seed, Recheck: true}
	ListOrder        = Policy{Name: "list order", Rule: slackgate.Predictive, Recheck: true, Cut: true, ListOrder: true}
	Predictive       = Policy{Name: "predictive", Rule: slackgate.Predictive, Recheck: true, Cut: true, Rescue: true}
	PredictiveLearns = Policy{Name: "predictive, learning", Rule: slackgate.Predictive, Recheck: true, Cut: true, Rescue: true, Learn: true}
)

// NoAdmission refuses nothing and drops nothing, as a plain queue does.
var NoAdmission = Policy{Name: "no admission", ListOrder: true, AdmitAll: true}

// Workers is the number of workers of each pool: the article's. A [Service] may
// name others.
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
	// IdleWhileWaitingMS is how long, summed over slots, a slot stood idle
	// while a job that it could have taken waited in the same pool of another
	// shard. 0 without shards.
	IdleWhileWaitingMS int64
	Classes            []ClassCount
}

// JobRun is what became of one job of a run. Instants count from the start of
// the run, in milliseconds; those of what did not happen are -1.
type JobRun struct {
	// Result is what the gate said when the job was submitted. Of the pools'
	// ages it holds those of the snapshot.
	Result slackgate.Result
	// Path is the pool that had the job last; a rescue changes it.
	Path                              slackgate.Path
	ClaimedAtMS, FirstAtMS, EndedAtMS int64
	// Usable, Late and Dropped: at most one is set, none of a refused job.
	Usable, Late, Dropped bool
	Fate                  Fate
	// Backend and Attempts are those of the call, where the service says.
	Backend  string
	Attempts int
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
	fate                Fate
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
	workers int
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
	shards  []*shard
	choice  chooser
	reserve int64
	horizon int64
	out     Outcome
	seen    []JobRun
}

// Run plays a workload through a policy. The seed, from 1, fixes arrivals and
// service times, whatever the policy.
func Run(w Workload, s Service, p Policy, seed uint64) Outcome {
	o, _ := Replay(w, s, p, seed)
	return o
}

// Replay is [Run] with what became of each job, in the order of the arrivals.
func Replay(w Workload, s Service, p Policy, seed uint64) (Outcome, []JobRun) {
	return replay(w, s, p, Sharding{Shards: 1, Choices: 1}, seed)
}

// replay plays a run whose sharding has been checked.
func replay(w Workload, s Service, p Policy, over Sharding, seed uint64) (Outcome, []JobRun) {
	jobs := w.Make(seed)
	r := &run{policy: p, service: &s, jobs: jobs, reserve: slackgate.Unbounded}
	if s.Serve == nil {
		r.first, r.hold = draw(jobs, &s, seed)
	}
	r.seen = make([]JobRun, len(jobs))
	for i := range r.seen {
		r.seen[i].ClaimedAtMS, r.seen[i].FirstAtMS, r.seen[i].EndedAtMS = -1, -1, -1
	}
	r.out.Offered = len(jobs)
	r.out.Classes = make([]ClassCount, max(1, len(w.Classes)))
	for i := range jobs {
		r.reserve = min(r.reserve, jobs[i].ReserveMS)
		r.horizon = max(r.horizon, jobs[i].DeadlineMS)
	}
	r.split(over, seed)
	r.play()
	return r.out, r.seen
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
		for _, sh := range r.shards {
			now = min(now, sh.nextEnd())
		}
		if now == math.MaxInt64 {
			return
		}
		r.countIdle(now)
		for _, sh := range r.shards {
			for _, path := range slackgate.Paths {
				r.finish(sh.pools[path], now)
				r.claim(sh, path, now)
			}
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
		seen := &r.seen[c.job]
		seen.EndedAtMS, seen.Fate = c.doneMS-startMS, c.fate
		if c.firstByteMS <= c.doneMS {
			seen.FirstAtMS = c.firstByteMS - startMS
		}
		if !c.cut && c.fate == Answered && c.firstByteMS <= deadline-j.ReserveMS && c.doneMS <= deadline {
			r.out.Usable++
			r.out.Classes[j.Class].Usable++
			seen.Usable = true
		} else {
			r.out.Late++
			seen.Late = true
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
func (r *run) claim(sh *shard, path slackgate.Path, now int64) {
	p := sh.pools[path]
	for len(p.running) < p.workers && len(p.queue) > 0 {
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
		case r.rescue(sh, path, w.job, now):
			continue
		default:
			r.out.Dropped++
			r.out.RejectWaitMS += now - startMS - r.jobs[w.job].AtMS
			r.seen[w.job].Dropped, r.seen[w.job].EndedAtMS = true, now-startMS
			continue
		}
		if p.path == slackgate.Paid {
			r.out.PaidCalls++
		}
		r.seen[w.job].ClaimedAtMS = now - startMS
		p.running = append(p.running, r.call(p.path, w, now))
	}
}

// call is what a worker's call comes to.
func (r *run) call(path slackgate.Path, w waiting, now int64) call {
	c := call{job: w.job, startMS: now}
	if r.service.Serve != nil {
		v := r.service.Serve(&Call{
			Job: w.job, Path: path, AtMS: now - startMS, Patient: !r.policy.Cut,
			SlackMS: w.urgency - now, LeftMS: r.deadline(w.job) - now,
		})
		c.firstByteMS, c.doneMS, c.fate = now+min(v.FirstMS, farMS), now+max(v.HoldMS, 1), v.Fate
		r.seen[w.job].Backend, r.seen[w.job].Attempts = v.Backend, v.Attempts
	} else {
		by := r.service.slowness(now - startMS)
		c.firstByteMS = now + int64(float64(r.first[w.job][path])*by)
		c.doneMS = now + int64(float64(r.hold[w.job][path])*by)
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

// rescue offers a job that fails the free pool's re-check to the paid one of
// its shard, with the time it has left.
func (r *run) rescue(sh *shard, from slackgate.Path, job int, now int64) bool {
	if !r.policy.Rescue || from != slackgate.Free {
		return false
	}
	return r.offer(sh, job, [2]slackgate.Path{slackgate.Paid}, now) != slackgate.Reject
}

// submit puts one new job to the gate.
func (r *run) submit(job int, now int64) {
	r.out.Classes[r.jobs[job].Class].Offered++
	sh := r.choose(job, now)
	if r.policy.AdmitAll {
		r.queueAnyway(sh, job, now)
		return
	}
	switch r.offer(sh, job, r.jobs[job].Prefer, now) {
	case slackgate.Reject:
		r.out.Rejected++
	case slackgate.Paid:
		r.out.AdmittedPaid++
	case slackgate.Free:
		r.out.AdmittedFree++
	}
}

// queueAnyway puts a job where it would be served first, whatever its deadline.
func (r *run) queueAnyway(sh *shard, i int, now int64) {
	job := &r.jobs[i]
	var to *pool
	soonest := 0.0
	for _, path := range job.Prefer {
		if path == slackgate.Reject || sh.pools[path].workers == 0 {
			continue
		}
		p := sh.pools[path]
		p.refresh(now)
		if at := float64(len(p.queue)+len(p.running)+1) / float64(p.workers) * p.belief.Hold.MeanMS; to == nil || at < soonest {
			to, soonest = p, at
		}
	}
	if to == nil {
		r.out.Rejected++
		return
	}
	if to.path == slackgate.Paid {
		r.out.AdmittedPaid++
	} else {
		r.out.AdmittedFree++
	}
	r.seen[i].Path = to.path
	r.seen[i].Result = slackgate.Result{Path: to.path, SlackMS: job.DeadlineMS - job.ReserveMS}
	to.queue = append(to.queue, waiting{now + job.DeadlineMS - job.ReserveMS, i})
	r.claim(sh, to.path, now)
}

// offer asks a shard's gate about a job and, if it is admitted, queues it.
func (r *run) offer(sh *shard, i int, prefer [2]slackgate.Path, now int64) slackgate.Path {
	job := slackgate.Job{DeadlineMS: r.deadline(i), ReserveMS: r.jobs[i].ReserveMS, Prefer: prefer}
	res := r.ask(sh, job, now)
	seen := &r.seen[i]
	if seen.Result.Reason == "" { // not a rescue
		seen.Result = res
	}
	if res.Path != slackgate.Reject {
		p := sh.pools[res.Path]
		seen.Path = res.Path
		urgency := job.UrgencyMS()
		p.queue = slices.Insert(p.queue, p.place(urgency), waiting{urgency, i})
		r.claim(sh, res.Path, now)
	}
	return res.Path
}

// ask is what a shard's gate says of a job at now.
func (r *run) ask(sh *shard, job slackgate.Job, now int64) slackgate.Result {
	policy := slackgate.Policy{Rule: r.policy.Rule, FreeQueueAgeCutMS: slackgate.Unbounded}
	if policy.Rule == slackgate.Seed {
		policy.FreeQueueAgeCutMS = slackgate.ArticleFreeQueueAgeCutMS
	}
	urgency := job.UrgencyMS()
	var snap slackgate.Snapshot
	for _, path := range slackgate.Paths {
		snap.Pools[path] = r.state(sh.pools[path], urgency, now)
	}
	bounds := slackgate.Bounds(&snap, job, policy, job.SlackMS(now))
	for k := range bounds {
		if b := &bounds[k]; b.Path != slackgate.Reject {
			p := sh.pools[b.Path]
			snap.Pools[b.Path].Break = b.Check(len(p.running), p)
		}
	}
	return slackgate.Decide(&snap, job, policy, now)
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
		Limit: p.workers, Capacity: p.workers,
		Waiting: len(p.queue), Running: len(p.running), Ahead: p.place(urgency),
		FirstByteP95MS: ceil(p.belief.FirstByte.P95MS),
	}
	for i := range p.queue {
		s.QueueAgeMS = max(s.QueueAgeMS, now-startMS-r.jobs[p.queue[i].job].AtMS)
	}
	s.ClassQueueAgeMS = s.QueueAgeMS
	s.Closed = r.service.Closed != nil && r.service.Closed(p.path, now-startMS)
	if r.policy.Rule == slackgate.Predictive {
		p.ladder.Build(&slackgate.Plan{
			Capacity: p.workers, RunningMS: p.ages, Belief: p.belief,
			ReserveMS: r.reserve, HorizonMS: r.horizon,
		})
		s.Ladder = &p.ladder
	}
	return s
}
