package admission

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"leeway/broker"
	"leeway/slackgate"
)

// errDisagree is logged when the script's comparisons and the rule part ways.
var errDisagree = errors.New("the store's check and the gate's rule disagree")

// errLate: what a job has left ran down on its way to the store.
var errLate = fmt.Errorf("%w: the store took too long to come to the job", broker.ErrUnavailable)

// decide names what came of each job of a call that the store has answered, and
// has tickets written for what it has promised.
func (a *Admitter) decide(jobs []*pending, got broker.OfferResults) {
	at, down := time.Now(), false
	var tickets [slackgate.NumPaths]int64
	for i, p := range jobs {
		switch adm := &got.Jobs[i]; adm.Bound {
		case broker.KeySame:
			p.same = adm.BoundTo
		case broker.KeyConflict:
			p.err = broker.ErrKeyConflict
		case broker.BatchGone:
			p.err = broker.ErrBatchCancelled
		case broker.OfferLate:
			p.err = errLate
		default:
			p.verdict = a.verdict(p, &got, i)
			a.learn(p, adm, at)
			down = down || p.verdict.Reason == slackgate.ReasonPoolDown && !p.noJob
			if adm.Ticket {
				tickets[p.verdict.Path]++
			}
		}
	}
	if down {
		a.explain(jobs)
	}
	// The promises stand whether or not tickets say so: those follow at once, and
	// whoever notices that some are missing, because this process died or the
	// store was away, adds them.
	a.owe(tickets)
}

// failed notes that the store did not decide.
func (a *Admitter) failed(jobs int, err error) {
	a.forget()
	a.Log.Warn("the gate cannot decide", "jobs", jobs, "error", err)
}

// explain looks for what may be behind pools that are down: a store that takes
// no writes takes no heartbeats either, and that is then what to say.
func (a *Admitter) explain(jobs []*pending) {
	err := a.Store.Writable(context.Background())
	if err == nil {
		return
	}
	a.Log.Warn("the gate cannot decide", "jobs", len(jobs), "error", err)
	for _, p := range jobs {
		if p.err == nil && p.verdict.Reason == slackgate.ReasonPoolDown {
			p.err = err
		}
	}
}

// verdict names the reason and the numbers of one decision from the state the
// script saw when it made it.
func (a *Admitter) verdict(p *pending, got *broker.OfferResults, i int) broker.Verdict {
	adm := &got.Jobs[i]
	for _, path := range slackgate.Paths {
		adm.Pools[path].Closed = p.class.Closed[path]
	}
	v := verdictOf(p, &slackgate.Snapshot{Pools: adm.Pools, Budgets: adm.Budgets, Quota: adm.Quota}, p.class.Policy, adm.DeadlineAtMS-p.offer.LeftMS, p.offer.LeftMS)
	if v.Path != adm.Path {
		a.Log.Error("gate", "error", errDisagree, "job_id", p.job.ID, "script", adm.Path.String(), "rule", v.Path.String())
		v.Path = adm.Path
		v.Reason = slackgate.ReasonGateUnavailable
		if adm.Path != slackgate.Reject {
			v.Reason = slackgate.Reason(adm.Path.String())
		}
	}
	return v
}

// verdictOf is what the rule says of a job with leftMS to its deadline.
func verdictOf(p *pending, s *slackgate.Snapshot, policy slackgate.Policy, nowMS, leftMS int64) broker.Verdict {
	deadline := nowMS + leftMS
	job := p.job.Gate(deadline, p.reserveMS)
	job.Spread, job.CostMicro = rand.Float64(), p.offer.CostMicro
	return broker.Verdict{
		JobID: p.job.ID, Result: slackgate.Decide(s, job, policy, nowMS), NowMS: nowMS, DeadlineAtMS: deadline,
		ReserveMS: p.reserveMS, Quota: s.Quota,
	}
}

// firstVerdict is the verdict of a job on record.
func firstVerdict(view *broker.Job) broker.Verdict {
	v := broker.Verdict{
		JobID: view.ID, NowMS: view.AcceptedAtMS, DeadlineAtMS: view.DeadlineAtMS, ReserveMS: view.ReserveMS, Repeated: true,
		Result: slackgate.Result{
			Path: view.Path, Reason: slackgate.Reason(view.Path.String()),
			SlackMS: view.Admission.SlackMS, PredictedWaitMS: view.Admission.PredictedWaitMS,
		},
	}
	v.NeedMS[view.Path], v.QueueAgeMS[view.Path] = view.Admission.NeedMS, view.Admission.QueueAgeMS
	return v
}

// refuse is the verdict when the gate cannot know.
func (a *Admitter) refuse(job *broker.Submission, reserveMS int64) broker.Verdict {
	return broker.Verdict{
		JobID:     job.ID,
		Result:    slackgate.Result{Reason: slackgate.ReasonGateUnavailable, SlackMS: job.LeftMS(time.Now()) - reserveMS},
		NowMS:     a.Store.NowMS(),
		ReserveMS: reserveMS,
	}
}

// DryRun says what the gate would answer to a job now, without promising
// anything.
func (a *Admitter) DryRun(ctx context.Context, job *broker.Submission) (broker.Verdict, *broker.GateState, error) {
	if err := a.RefreshFlags(ctx); err != nil {
		return a.refuse(job, job.ReserveMS), nil, err
	}
	s := a.Settings()
	v, err := a.refresh(ctx) // counts and ladders of one moment
	if err != nil {
		return a.refuse(job, job.ReserveMS), nil, err
	}
	st := *v.state
	class := s.Class(job.Class)
	reserveMS := max(job.ReserveMS, class.ReserveMS)
	for _, path := range slackgate.Paths {
		st.Pools[path].Closed = class.Closed[path]
	}
	snap := slackgate.Snapshot{Pools: st.Pools}
	for _, path := range slackgate.Paths {
		p := &snap.Pools[path]
		p.Ladder = v.pools[path].Ladder
		// Without a place in the order of its own, it stands behind all.
		p.Ahead = p.Waiting
	}
	deadline := st.NowMS + job.LeftMS(time.Now())
	res := slackgate.Decide(&snap, job.Gate(deadline, reserveMS), class.Policy, st.NowMS)
	return broker.Verdict{JobID: job.ID, Result: res, NowMS: st.NowMS, DeadlineAtMS: deadline, ReserveMS: reserveMS}, &st, nil
}
