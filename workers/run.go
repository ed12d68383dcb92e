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

	until  time.Time      // no job is claimed after it under this ticket
	note   *time.Timer    // notes the first byte
	noting sync.WaitGroup // while it does
	asked  bool           // the next job was asked for as this one ended
	next   *broker.Claim  // which that is; nil: there was none
}

// run takes the job to its one outcome.
func (r *jobRun) run() {
	c := r.claim
	if c.Unreadable {
		r.finish(&broker.Finish{Outcome: broker.OutcomeFailed, Cause: broker.CauseRecordLost, Reason: "record_lost", FirstByteMS: -1})
		return
	}
	r.Observer.Claimed(c.Path, c.QueueWaitMS())
	faultpoint.Reach(faultpoint.Claimed)
	// The gate again: time has passed since the promise. The backends' own
	// p95s are checked by the runner before each call.
	if !r.passesRecheck() {
		switch {
		case (c.Rescue || c.Path != slackgate.Free) && r.reoffered():
		case c.Offers > 0: // with the worker that had it the time went
			r.finish(&broker.Finish{
				Outcome: broker.OutcomeFailed, Cause: broker.CauseWorkerLost, Reason: string(broker.CauseWorkerLost), FirstByteMS: -1,
			})
		default:
			r.finish(&broker.Finish{Outcome: broker.OutcomeExpired, Cause: broker.CauseExpiredInQueue, FirstByteMS: -1})
		}
		return
	}
	ctx, cancel := context.WithCancelCause(r.base)
	defer cancel(nil)
	r.running.Store(c.ID, cancel)
	defer r.running.Delete(c.ID)
	defer r.renew(ctx, cancel)()
	res, err := r.attempts(ctx)
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
	case res.Reason == attempt.ReasonNoBackend:
		r.withoutBackend()
	default:
		f := r.conclude(&res, errors.Is(cause, errCancelled))
		if f.FirstByteMS >= 0 {
			r.Observer.FirstByte(c.Path, f.FirstByteMS)
		}
		faultpoint.Reach(faultpoint.Answered)
		if saysOfPool(&res) {
			r.samples = append(r.samples, poolSamples(c.Path, res.HasText, res.FirstByte, res.EndedAt, res.Reason == "", hung(&res))...)
		}
		r.finish(f, r.samples...)
	}
}

// attempts calls backends. What is sent while an answer comes has been sent when
// it returns.
func (r *jobRun) attempts(ctx context.Context) (attempt.Result, error) {
	hooks := r.hooks(ctx)
	if r.claim.Relay != "" {
		relay := r.relay()
		defer relay.stop()
		hooks.Relay = func(piece string) { relay.add(r.open.Model, piece) }
	}
	defer r.noting.Wait()
	defer func() {
		if r.note != nil && r.note.Stop() {
			r.noting.Done()
		}
	}()
	return r.runner.Run(ctx, r.job(ctx), hooks)
}

// noteAfter is how long after its first text an answer must go on for that to be
// noted: whoever asks is told of the end else.
const noteAfter = 25 * time.Millisecond

func (r *jobRun) hooks(ctx context.Context) attempt.Hooks {
	return attempt.Hooks{
		Before: r.openRow,
		After: func(a attempt.Attempt) {
			r.settled = append(r.settled, r.settledRow(&a))
			r.samples = append(r.samples, callSamples(&a)...)
			if a.Advice != "" {
				r.Log.Warn("a backend's options or its class's are wrong", "backend", a.Backend, "class", r.claim.Class, "job_id", r.claim.ID,
					"reason", string(a.Reason), "advice", a.Advice)
			}
		},
		FirstByte: func() {
			if r.note != nil {
				return
			}
			r.noting.Add(1)
			came := time.Now()
			r.note = time.AfterFunc(noteAfter, func() {
				defer r.noting.Done()
				if err := r.step(&broker.Step{Job: r.claim, Answers: true, AnswersFor: time.Since(came)}); err != nil && ctx.Err() == nil {
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
		ID: c.ID, System: system, Text: c.Text, MaxOutputTokens: c.MaxOutputTokens, Class: c.Class,
		Left:          time.Duration(c.DeadlineAtMS-c.NowMS)*time.Millisecond - time.Since(c.ClaimedAt),
		Reserve:       time.Duration(c.ReserveMS) * time.Millisecond,
		FirstByteOnly: c.FirstByteOnly,
		FirstNumber:   c.Attempts + 1,
		NoFallback:    !r.FallbackEnabled(ctx, c),
	}
}

// measuredFor is how long what was measured is good enough to give up a job by.
const measuredFor = 100 * time.Millisecond

// passesRecheck reports whether the job can still be made with what is left. What
// it was promised on may have been measured after this worker last looked: then
// that is read first.
func (r *jobRun) passesRecheck() bool {
	if r.Attempts.Overrun > 0 {
		return true // a lab with the re-check off
	}
	if r.fits() {
		return true
	}
	if err := r.Remeasure(r.base, r.claim.ClaimedAt.Add(-measuredFor)); err != nil {
		return false // with the store away, as everything then
	}
	r.takeP95s()
	return r.fits()
}

func (r *jobRun) fits() bool {
	c := r.claim
	since := time.Since(c.ClaimedAt).Milliseconds()
	recheck := slackgate.NewRecheck(r.FirstByteP95(), r.HoldP95(), c.FirstByteOnly)
	return recheck.Passes(c.SlackMS()-since, c.DeadlineAtMS-c.NowMS-since)
}

// reoffered offers a job that its pool can no longer make to the gate once more,
// and reports whether another pool took it.
func (r *jobRun) reoffered() bool {
	took, err := r.Reoffer(r.base, r.claim)
	if err != nil {
		r.Log.Warn("job not offered again", "job_id", r.claim.ID, "error", err)
	}
	return took
}

// withoutBackend takes a job whose backends cannot be called in its time. If the
// other pool does not take it and this worker has nothing left to call, the job
// goes back to its place: another worker may have, and where none has, it is
// offered to the gate again for as long as it can wait.
func (r *jobRun) withoutBackend() {
	switch {
	case r.reoffered():
		r.settle() // what was booked, and then not made
	case !r.callable():
		r.handBack()
	default:
		r.finish(&broker.Finish{
			Outcome: broker.OutcomeRevoked, Cause: broker.CauseCapacityLost, Reason: string(attempt.ReasonNoBackend), FirstByteMS: -1,
		})
	}
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
