// Package simulate plays whole workloads through the slack gate in virtual
// time, and works out the best that any schedule could have done.
//
// It calls the same decision function as the admission API; only the store, the
// workers and the backends are made up.
package simulate

import (
	"math"
	"slices"

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

// The policies of the table, and NoAdmission, which refuses nothing and drops
// nothing, as a plain queue does.
var (
	SeedNoRecheck    = Policy{Name: "seed, no re-check", Rule: slackgate.Seed}
	SeedRecheck      = Policy{Name: "seed", Rule: slackgate.Seed, Recheck: true}
	ListOrder        = Policy{Name: "list order", Rule: slackgate.Predictive, Recheck: true, Cut: true, ListOrder: true}
	Predictive       = Policy{Name: "predictive", Rule: slackgate.Predictive, Recheck: true, Cut: true, Rescue: true}
	PredictiveLearns = Policy{Name: "predictive, learning", Rule: slackgate.Predictive, Recheck: true, Cut: true, Rescue: true, Learn: true}
	NoAdmission      = Policy{Name: "no admission", ListOrder: true, AdmitAll: true}
)

// gate is the policy as the gate takes it.
func (p *Policy) gate() slackgate.Policy {
	g := slackgate.Policy{Rule: p.Rule, FreeQueueAgeCutMS: slackgate.Unbounded}
	if p.Rule == slackgate.Seed {
		g.FreeQueueAgeCutMS = slackgate.ArticleFreeQueueAgeCutMS
	}
	return g
}

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

// MeanRejectMS is the mean time until a job without an answer was told.
func (o *Outcome) MeanRejectMS() float64 {
	n := o.Rejected + o.Dropped
	if n == 0 {
		return 0
	}
	return float64(o.RejectWaitMS) / float64(n)
}

// startAtMS is the clock at the start of a run: the gate takes no instant of 0.
const startAtMS = 1_000_000

// run is one run in progress. Its clock is startAtMS ahead of the arrivals'.
type run struct {
	policy  Policy
	service *Service
	serve   func(*Call) Served
	arrived []Arrival
	jobs    []slackgate.Job // the same as the gate takes them, with deadlines on the run's clock
	shards  []*shard
	choice  chooser
	// reserveMS is the least reserve of a job, horizonMS the longest deadline.
	reserveMS, horizonMS int64
	out                  Outcome
	seen                 []JobRun
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
	arrived := w.Make(seed)
	r := &run{
		policy: p, service: &s, serve: s.Start(arrived, seed), arrived: arrived, jobs: make([]slackgate.Job, len(arrived)),
		reserveMS: slackgate.Unbounded, seen: make([]JobRun, len(arrived)),
	}
	r.out.Offered = len(arrived)
	r.out.Classes = make([]ClassCount, max(1, len(w.Classes)))
	for i := range arrived {
		a := &arrived[i]
		r.jobs[i] = slackgate.Job{DeadlineAtMS: startAtMS + a.lastDueAtMS(), ReserveMS: a.ReserveMS, Prefer: a.Prefer}
		r.seen[i] = JobRun{ClaimedAtMS: -1, FirstAtMS: -1, EndedAtMS: -1}
		r.reserveMS = min(r.reserveMS, a.ReserveMS)
		r.horizonMS = max(r.horizonMS, a.DeadlineInMS)
	}
	r.split(over, seed)
	r.play()
	return r.out, r.seen
}

// play advances from event to event: at one instant workers come free and take
// the next job before anything new is offered.
func (r *run) play() {
	next := 0
	for {
		now := int64(math.MaxInt64)
		if next < len(r.arrived) {
			now = startAtMS + r.arrived[next].AtMS
		}
		for _, sh := range r.shards {
			now = min(now, sh.nextEnd())
			if next < len(r.arrived) { // else nothing is to be learned from a probe
				now = min(now, r.nextProbe(sh))
			}
		}
		if now == math.MaxInt64 {
			return
		}
		r.countIdle(now)
		for _, sh := range r.shards {
			for _, path := range slackgate.Paths {
				r.finish(sh.pools[path], now)
				r.probe(sh.pools[path], now)
				r.claim(sh, path, now)
			}
		}
		for next < len(r.arrived) && startAtMS+r.arrived[next].AtMS == now {
			r.submit(next, now)
			next++
		}
	}
}

// submit puts one new job to the gate.
func (r *run) submit(i int, now int64) {
	r.out.Classes[r.arrived[i].Class].Offered++
	sh := r.choose(i, now)
	var path slackgate.Path
	if r.policy.AdmitAll {
		path = r.queueAnyway(sh, i, now)
	} else {
		path = r.offer(sh, i, r.jobs[i].Prefer, now)
	}
	switch path {
	case slackgate.Reject:
		r.out.Rejected++
	case slackgate.Paid:
		r.out.AdmittedPaid++
	case slackgate.Free:
		r.out.AdmittedFree++
	}
}

// offer asks a shard's gate about a job and, if it is admitted, queues it.
func (r *run) offer(sh *shard, i int, prefer [2]slackgate.Path, now int64) slackgate.Path {
	job := r.jobs[i]
	job.Prefer = prefer
	res := r.ask(sh, job, now)
	if seen := &r.seen[i]; seen.Result.Reason == "" { // not a rescue
		seen.Result = res
	}
	if res.Admitted() {
		r.enqueue(sh, i, res.Path, now)
	}
	return res.Path
}

// ask is what a shard's gate says of a job at now.
func (r *run) ask(sh *shard, job slackgate.Job, now int64) slackgate.Result {
	policy := r.policy.gate()
	var snap slackgate.Snapshot
	for _, path := range slackgate.Paths {
		snap.Pools[path] = r.state(sh.pools[path], job.UrgencyAtMS(), now)
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

// state is a pool as the store would report it.
func (r *run) state(p *pool, urgency, now int64) slackgate.PoolState {
	p.refresh(now)
	s := slackgate.PoolState{
		Limit: p.workers, Capacity: p.workers,
		Waiting: len(p.queue), Running: len(p.running), Ahead: p.place(urgency),
		FirstByteP95MS: ceil(p.belief.FirstByte.P95MS),
	}
	for i := range p.queue {
		s.QueueAgeMS = max(s.QueueAgeMS, now-startAtMS-r.arrived[p.queue[i].job].AtMS)
	}
	s.ClassQueueAgeMS = s.QueueAgeMS
	s.Closed = r.service.Closed != nil && r.service.Closed(p.path, now-startAtMS)
	if r.policy.Rule == slackgate.Predictive {
		p.ladder.Build(&slackgate.LadderInput{
			Capacity: p.workers, RunningAgesMS: p.ages, Belief: p.belief,
			ReserveMS: r.reserveMS, HorizonMS: r.horizonMS,
		})
		s.Ladder = &p.ladder
	}
	return s
}

// enqueue puts a job into a pool's order.
func (r *run) enqueue(sh *shard, i int, path slackgate.Path, now int64) {
	p := sh.pools[path]
	urgency := r.jobs[i].UrgencyAtMS()
	p.queue = slices.Insert(p.queue, p.place(urgency), waiting{urgency, i})
	r.seen[i].Path = path
	r.claim(sh, path, now)
}

// queueAnyway puts a job where it would be served first, whatever its deadline.
func (r *run) queueAnyway(sh *shard, i int, now int64) slackgate.Path {
	to, soonest := slackgate.Reject, 0.0
	for _, path := range r.jobs[i].Prefer {
		p := sh.pools[path]
		if p == nil || p.workers == 0 {
			continue
		}
		p.refresh(now)
		at := float64(len(p.queue)+len(p.running)+1) / float64(p.workers) * p.belief.Hold.MeanMS
		if to == slackgate.Reject || at < soonest {
			to, soonest = path, at
		}
	}
	if to != slackgate.Reject {
		r.seen[i].Result = slackgate.Result{Path: to, SlackMS: r.jobs[i].SlackMS(now)}
		r.enqueue(sh, i, to, now)
	}
	return to
}

// claim puts waiting jobs on free workers.
func (r *run) claim(sh *shard, path slackgate.Path, now int64) {
	p := sh.pools[path]
	for len(p.running) < p.workers && len(p.queue) > 0 {
		i := p.queue[0].job
		p.queue = p.queue[1:]
		p.refresh(now)
		var hold int64
		if r.policy.Rule == slackgate.Predictive {
			hold = ceil(p.belief.Hold.P95MS)
		}
		job := &r.jobs[i]
		recheck := slackgate.NewRecheck(ceil(p.belief.FirstByte.P95MS), hold, false)
		switch {
		case recheck.Passes(job.SlackMS(now), job.DeadlineAtMS-now):
		case !r.policy.Recheck:
			r.out.UnderP95++
		case r.rescue(sh, path, i, now):
			continue
		default:
			r.out.Dropped++
			r.out.RejectWaitMS += now - startAtMS - r.arrived[i].AtMS
			r.seen[i].Dropped, r.seen[i].EndedAtMS = true, now-startAtMS
			continue
		}
		if path == slackgate.Paid {
			r.out.PaidCalls++
		}
		r.seen[i].ClaimedAtMS = now - startAtMS
		p.running = append(p.running, r.call(path, i, now))
	}
}

// rescue offers a job that fails the free pool's re-check to the paid one of
// its shard, with the time it has left.
func (r *run) rescue(sh *shard, from slackgate.Path, i int, now int64) bool {
	return r.policy.Rescue && from == slackgate.Free &&
		r.offer(sh, i, [2]slackgate.Path{slackgate.Paid}, now) != slackgate.Reject
}

// call is what a worker's call comes to.
func (r *run) call(path slackgate.Path, i int, now int64) call {
	job := &r.jobs[i]
	v := r.serve(&Call{
		Job: i, Path: path, AtMS: now - startAtMS, Patient: !r.policy.Cut, SlackMS: job.SlackMS(now), LeftMS: job.DeadlineAtMS - now,
	})
	r.seen[i].Backend, r.seen[i].Attempts = v.Backend, v.Attempts
	c := call{job: i, startAtMS: now, firstAtMS: now + min(v.FirstMS, Never), doneAtMS: now + max(v.HoldMS, 1), fate: v.Fate}
	if !r.policy.Cut {
		return c
	}
	end := job.DeadlineAtMS
	if c.firstAtMS > job.UrgencyAtMS() {
		end = job.UrgencyAtMS()
	}
	if end = max(end, now); c.doneAtMS > end {
		c.doneAtMS, c.cut = end, true
	}
	return c
}

// finish ends the calls that are due.
func (r *run) finish(p *pool, now int64) {
	p.running = slices.DeleteFunc(p.running, func(c call) bool {
		if c.doneAtMS > now {
			return false
		}
		job, seen := &r.jobs[c.job], &r.seen[c.job]
		seen.EndedAtMS, seen.Fate = c.doneAtMS-startAtMS, c.fate
		if c.firstAtMS <= c.doneAtMS {
			seen.FirstAtMS = c.firstAtMS - startAtMS
		}
		if !c.cut && c.fate == Answered && c.firstAtMS <= job.UrgencyAtMS() && c.doneAtMS <= job.DeadlineAtMS {
			r.out.Usable++
			r.out.Classes[r.arrived[c.job].Class].Usable++
			seen.Usable = true
		} else {
			r.out.Late++
			r.out.WastedMS += c.doneAtMS - c.startAtMS
			seen.Late = true
		}
		if p.learner != nil {
			p.learner.ended(&c)
		}
		return true
	})
}

func ceil(x float64) int64 { return int64(math.Ceil(x - 1e-6)) }
