package slackgate

// Result is a decision and the numbers behind it.
type Result struct {
	Path   Path
	Reason Reason
	// SlackMS is deadline - now - reserve at the decision.
	SlackMS int64
	// NeedMS is, per pool, what the slack was compared with. Unbounded where
	// the pool cannot take the job at all; 0 where it was not asked.
	NeedMS [NumPaths]int64
	// PredictedWaitMS is how long the job is expected to wait for a worker in
	// the pool that took it or, for a reject, in the last pool asked. The seed
	// rule predicts nothing and leaves it 0.
	PredictedWaitMS int64
	// QueueAgeMS is, per pool, the queue age the decision saw.
	QueueAgeMS [NumPaths]int64
	// BrokenWithinMS is, per pool, the mark, relative to now, by which more jobs
	// would be promised than the pool can start if it took this one. 0: none.
	// With NeedMS within the slack it is an earlier promise that would break.
	BrokenWithinMS [NumPaths]int64
	// Limit names the limit or budget behind [ReasonRate] and [ReasonBudget].
	Limit Limit
	// RetryAfterMS is when the same job, with as much time, might be admitted
	// if nothing else came; 0: waiting cannot help, or it cannot be said.
	RetryAfterMS int64
}

// Admitted reports whether the job was promised.
func (r *Result) Admitted() bool { return r.Path != Reject }

// Decide applies the policy to a job at nowMS. It never admits on numbers it
// cannot trust: those give ReasonGateUnavailable.
func Decide(s *Snapshot, j Job, p Policy, nowMS int64) Result {
	r := Result{Reason: ReasonGateUnavailable, SlackMS: j.SlackMS(nowMS)}
	for _, path := range Paths {
		if j.may(path) && !s.Pools[path].readable() {
			return r
		}
		r.QueueAgeMS[path] = s.Pools[path].QueueAgeMS
	}
	if nowMS <= 0 || j.ReserveMS < 0 || p.FreeQueueAgeCutMS < 0 {
		return r
	}
	if !s.Quota.InRate() {
		r.Reason, r.Limit, r.RetryAfterMS = ReasonRate, LimitRate, spread(s.Quota.retryAfterMS(), j.Spread)
		return r
	}
	if r.SlackMS <= 0 {
		r.Reason = ReasonDeadline
		return r
	}
	if !s.Quota.HasRoom() {
		r.Reason, r.Limit, r.RetryAfterMS = ReasonRate, LimitInFlight, spread(s.endsInMS(&j), j.Spread)
		return r
	}
	asked, closed, unknown := 0, 0, false
	retry, budgetRetry, shareRetry := int64(Unbounded), int64(Unbounded), int64(Unbounded)
	for place := range j.Prefer {
		var b Bound
		if b.set(s, &j, &p, place, r.SlackMS); b.Path == Reject {
			continue
		}
		pool := &s.Pools[b.Path]
		if pool.Closed {
			closed++
			continue
		}
		if pool.Capacity <= 0 {
			continue
		}
		if b.Laddered && len(b.Rungs) == 0 {
			unknown = true // slots live that its ladder was not built for
			continue
		}
		asked++
		if holds := r.ask(&b, pool, &j, p.Rule); holds && b.open(pool) {
			if pool.Share.Rung > 0 {
				if r.Reason != ReasonBudget {
					r.Reason = ReasonShare
				}
				shareRetry = min(shareRetry, s.shareInMS(pool, &j))
				continue
			}
			if which, over := s.overBudget(j.CostMicro); over && b.Path == Paid {
				// Only money keeps it from here: another pool may still take it.
				r.Reason, r.Limit = ReasonBudget, budgetLimits[which]
				budgetRetry = s.Budgets[which].retryAfterMS(j.CostMicro, nowMS, s.endsInMS(&j))
				continue
			}
			r.Path, r.Limit = b.Path, ""
			r.Reason = ReasonPaid
			if b.Path == Free {
				r.Reason = ReasonFree
			}
			return r
		}
		if p.Rule == Predictive {
			retry = min(retry, b.retryAfterMS(pool, &j, r.SlackMS))
		}
	}
	switch {
	case unknown:
		r.Reason, r.Limit = ReasonGateUnavailable, ""
	case r.Reason == ReasonBudget:
		// Time may open the other pool sooner than the next day this one.
		r.RetryAfterMS = spread(min(retry, budgetRetry, shareRetry), j.Spread)
	case r.Reason == ReasonShare:
		r.RetryAfterMS = spread(min(retry, shareRetry), j.Spread)
	case asked > 0:
		r.Reason = ReasonNoSlack
		r.RetryAfterMS = spread(retry, j.Spread)
	case closed > 0:
		r.Reason = ReasonClosed
	default:
		r.Reason = ReasonPoolDown
	}
	return r
}

// ask notes what the slack is compared with in one pool, and reports whether
// the promises hold.
func (r *Result) ask(b *Bound, pool *PoolState, j *Job, rule Rule) (holds bool) {
	holds = b.holds(pool)
	if rule == Seed {
		r.NeedMS[b.Path] = b.NeedMS
		if b.NeedAddsAge {
			r.NeedMS[b.Path] += pool.QueueAgeMS
		}
		return holds
	}
	r.NeedMS[b.Path], r.PredictedWaitMS = b.ladder.needAndWait(pool.position(int64(pool.Ahead)), j)
	if !holds {
		i := min(max(pool.Break.Rung-1, b.First), len(b.ladder.rungs)-1)
		r.BrokenWithinMS[b.Path] = b.ladder.rungs[i].WithinMS
	}
	return holds
}

// endsInMS is when the next job is expected to end in the pools that the job
// may use: what one that waits for others' ends is told.
func (s *Snapshot) endsInMS(j *Job) int64 {
	ends := int64(Unbounded)
	for _, path := range Paths {
		if p := &s.Pools[path]; j.may(path) && p.Running > 0 && p.Ladder != nil && p.Ladder.workers > 0 {
			ends = min(ends, ceilMS(p.Ladder.belief.Hold.MeanMS/float64(min(p.Running, p.Ladder.workers))))
		}
	}
	if ends >= neverMS {
		return defaultEndsInMS
	}
	return ends
}

// shareInMS is when the next job of a producer that has its share of a pool is
// expected to end.
func (s *Snapshot) shareInMS(p *PoolState, j *Job) int64 {
	return s.endsInMS(j) * max(1, int64(p.InFlight())/max(1, p.Share.Waiting))
}

// defaultEndsInMS stands where nothing is known of the running jobs.
const defaultEndsInMS = 1000

// maxSpreadMS bounds what is added to a long retry-after.
const maxSpreadMS = 60_000

// spread lengthens a retry-after by up to a quarter, and by a minute at most.
// Unbounded means that waiting cannot help, and gives 0.
func spread(retryMS int64, by float64) int64 {
	if retryMS >= neverMS {
		return 0
	}
	if !(by >= 0 && by < 1) {
		by = 0
	}
	return max(1, retryMS+int64(min(float64(retryMS)/4, maxSpreadMS)*by))
}
