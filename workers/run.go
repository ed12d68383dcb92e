package workers

import (
	"context"
	"errors"
	"sync"
	"time"

	"leeway/broker"
	"leeway/broker/background"
	"leeway/broker/faultpoint"
	"leeway/slackgate"
	"leeway/slackgate/latency"
	"leeway/workers/attempt"
)

// jobRun is one claimed job on its way to its outcome, or one probe.
type jobRun struct {
	*consumer

	claim *broker.Claim
	// open is the spend row of the attempt under way; there is one at a time.
	open broker.SpendRow
	// settled are the rows of the attempts that have ended. All are booked with
	// the outcome, in one step; if this process dies first, whoever finds the
	// job settles them as unknown.
	settled []broker.SpendRow
	// unwritten is the row of a call that was not made because writing the row
	// failed. A store that was away may carry it out later.
	unwritten []broker.SpendRow
	samples   []latency.Sample
	noting    sync.WaitGroup // first bytes on their way to the store
}

// run takes the job to its one outcome.
func (r *jobRun) run() {
	c := r.claim
	r.Observer.Claimed(c.Path, c.QueueWaitMS())
	faultpoint.Reach(faultpoint.Claimed)
	// The gate again: time has passed since the promise. The backends' own
	// p95s are checked by the runner before each call.
	if !r.passesRecheck() {
		if !r.rerouted() {
			r.finish(&broker.Finish{Outcome: broker.OutcomeExpired, Cause: broker.CauseExpiredInQueue, FirstByteMS: -1})
		}
		return
	}
	ctx, cancel := context.WithCancelCause(r.base)
	defer cancel(nil)
	r.running.Store(c.ID, cancel)
	defer r.running.Delete(c.ID)
	defer r.renew(ctx, cancel)()
	defer r.noting.Wait()
	hooks := r.hooks(ctx)
	if c.Relay != "" {
		relay := r.relay()
		defer relay.stop()
		hooks.Relay = relay.add
	}
	res, err := r.runner.Run(ctx, r.job(ctx), hooks)
	cause := context.Cause(ctx)
	switch {
	case errors.Is(err, broker.ErrFenced), errors.Is(cause, errLeaseLost):
		r.Log.Warn("job went to another holder", "job_id", c.ID, "path", c.Path.String())
		r.settle()
	case errors.Is(cause, errStopping) && (err != nil || res.Outcome == broker.OutcomeCancelled):
		r.handBack()
	case err != nil:
		// The spend row could not be written, so nothing was called. The job
		// keeps its promise and is offered again.
		r.Log.Warn("spend row not written: job handed back", "job_id", c.ID, "error", err)
		time.Sleep(bookPause) // it is claimed again at once
		r.handBack()
	case res.Outcome == broker.OutcomeExpired && len(res.Attempts) == 0 && r.rerouted():
		// Its backends could not be called: the other pool's will be.
	default:
		f := r.conclude(&res, errors.Is(cause, errCancelled))
		if f.FirstByteMS >= 0 {
			r.Observer.FirstByte(c.Path, f.FirstByteMS)
		}
		faultpoint.Reach(faultpoint.Answered)
		r.finish(f)
		if saysOfPool(&res) {
			r.samples = append(r.samples, poolSamples(c.Path, res.HasText, res.FirstByte, res.EndedAt, res.Reason == "")...)
		}
		r.measure(r.samples...)
	}
}

func (r *jobRun) hooks(ctx context.Context) attempt.Hooks {
	return attempt.Hooks{
		Before: r.openRow,
		After: func(a attempt.Attempt) {
			r.settled = append(r.settled, r.settledRow(&a))
			r.samples = append(r.samples, callSamples(&a)...)
		},
		FirstByte: func() {
			r.noting.Go(func() {
				if err := r.shard.Store.SawFirstByte(ctx, r.claim); err != nil && ctx.Err() == nil {
					r.Log.Debug("first byte not noted", "job_id", r.claim.ID, "error", err)
				}
			})
		},
	}
}

// job is what the runner needs to know of the job, now.
func (r *jobRun) job(ctx context.Context) attempt.Job {
	c := r.claim
	system := r.SystemPrompt(c.Class)
	if c.Instruction != "" {
		system += "\n\n" + c.Instruction
	}
	return attempt.Job{
		ID: c.ID, System: system, Text: c.Text, MaxOutputTokens: c.MaxOutputTokens,
		Left:          time.Duration(c.DeadlineAtMS-c.NowMS)*time.Millisecond - time.Since(c.ClaimedAt),
		Reserve:       time.Duration(c.ReserveMS) * time.Millisecond,
		FirstByteOnly: c.FirstByteOnly,
		FirstNumber:   c.Attempts + 1,
		NoFallback:    !r.FallbackEnabled(ctx, c),
	}
}

// passesRecheck reports whether the job can still be made with what is left.
func (r *jobRun) passesRecheck() bool {
	if r.Attempts.Overrun > 0 {
		return true // a lab with the re-check off
	}
	c := r.claim
	since := time.Since(c.ClaimedAt).Milliseconds()
	recheck := slackgate.NewRecheck(r.FirstByteP95(), r.HoldP95(), c.FirstByteOnly)
	return recheck.Passes(c.SlackMS()-since, c.DeadlineAtMS-c.NowMS-since)
}

// rerouted offers a job that free can no longer make to paid, if its class
// allows it, and reports whether paid took it.
func (r *jobRun) rerouted() bool {
	c := r.claim
	if !c.Rescue || c.Path != slackgate.Free {
		return false
	}
	took, err := r.Reroute(r.base, c)
	if err != nil {
		r.Log.Warn("job not offered again", "job_id", c.ID, "error", err)
	}
	return took
}

// renew keeps the claim's lease while the job runs, and ends the job when the
// lease is lost or its producer took it back. After a renewal that failed the
// next comes sooner: a store that was away has few of a lease's moments left.
func (r *jobRun) renew(ctx context.Context, cancel context.CancelCauseFunc) (stop func()) {
	pausing, noMore := context.WithCancel(ctx)
	ended := make(chan struct{})
	go r.Background.Guard("lease renewal", func() {
		defer close(ended)
		failing := false
		for pause := r.Lease / 3; background.Sleep(pausing, pause) == nil; {
			lease, err := r.shard.Store.Renew(ctx, r.claim, r.Lease)
			if err != nil && !failing && ctx.Err() == nil { // once an outage
				r.Log.Warn("lease not renewed", "job_id", r.claim.ID, "error", err)
			}
			if failing = err != nil; failing {
				pause = r.Lease / 12
				continue
			}
			pause = r.Lease / 3
			switch lease {
			case broker.LeaseHeld:
			case broker.LeaseLost:
				cancel(errLeaseLost)
				return
			case broker.LeaseCancelled:
				cancel(errCancelled)
				return
			}
		}
	})
	return func() {
		noMore()
		<-ended
	}
}
