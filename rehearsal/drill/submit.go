package drill

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"leeway/broker"
	"leeway/broker/background"
	"leeway/broker/client"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// text is what the jobs of a drill ask to summarise: a drill rehearses waiting,
// not reading.
const text = "The gate compares what a job must wait with the slack it has left. It refuses what cannot finish. " +
	"A refusal costs milliseconds. A late answer costs a generation that nobody reads. " +
	"Queue age tells how much of the slack is spent already, and remaining slack tells how much more can be. " +
	"Utilisation tells neither: a worker that is blocked on its first byte looks idle."

// play submits on schedule and waits for every end.
func (r *player) play(ctx context.Context, schedule []Arrival, events []Event) error {
	r.run.Jobs = make([]Job, len(schedule))
	r.begin = time.Now()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for i := range events {
			if background.Sleep(ctx, time.Until(r.begin.Add(time.Duration(events[i].AtMS)*time.Millisecond))) != nil {
				return
			}
			r.do(ctx, &events[i])
		}
	})
	for i, a := range schedule {
		due := r.begin.Add(time.Duration(a.AtMS) * time.Millisecond)
		if d := time.Until(due); d > 0 {
			if background.Sleep(ctx, d) != nil {
				return context.Cause(ctx)
			}
		}
		wg.Go(func() {
			if err := r.one(ctx, &r.run.Jobs[i], &a, due); err != nil {
				giveUp(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func millisSince(t time.Time) float64 { return float64(time.Since(t).Microseconds()) / 1000 }

// one submits a job and waits for its end. Each job is its own goroutine's. An
// error means that the API does not take such jobs at all.
func (r *player) one(ctx context.Context, j *Job, a *Arrival, due time.Time) error {
	j.AtMS, j.LagMS, j.FirstByteMS = a.AtMS, millisSince(due), -1
	r.progress.Offered.Add(1)
	sub := client.Job{Class: r.target.Class(), Text: text, DeadlineMS: r.plan.Class.DeadlineMS, MaxOutputTokens: a.OutputTokens, Producer: "drill"}
	// To its end also when the run is ended early: a job that was admitted
	// unheard could not be taken back.
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), callMS*time.Millisecond)
	v, err := r.api.Submit(bounded, &sub)
	cancel()
	j.ToldMS = millisSince(due)
	var p *wire.Problem
	if errors.As(err, &p) && p.Verdict != nil {
		v, err = p.Verdict, nil
	}
	if p != nil && err != nil && p.Status/100 == 4 && p.Status != http.StatusTooManyRequests {
		return p
	}
	if err != nil || v.Reason.Unavailable() {
		j.Reason = slackgate.ReasonGateUnavailable // or no answer at all
		if err == nil {
			j.Reason = v.Reason
		}
		r.progress.Undecided.Add(1)
		return nil
	}
	j.Path, j.Reason, j.SlackMS, j.PredictedWaitMS = v.Path, v.Reason, v.SlackMS, v.PredictedWaitMS
	asked := v.Path
	if asked == slackgate.Reject {
		asked = slackgate.Free
		if _, ok := v.NeedMS.Of(slackgate.Free); !ok {
			asked = slackgate.Paid
		}
	}
	j.NeedMS, _ = v.NeedMS.Of(asked)
	j.QueueAgeMS, _ = v.QueueAgeMS.Of(asked)
	if v.Path == slackgate.Reject {
		r.progress.Rejected.Add(1)
		return nil
	}
	r.progress.Admitted.Add(1)
	j.ID = v.JobID
	view := r.await(ctx, v.JobID)
	if view == nil {
		return nil
	}
	j.AnswerMS = millisSince(due)
	j.ended(view)
	r.progress.Ended.Add(1)
	if view.Outcome == broker.OutcomeUsable {
		r.progress.Usable.Add(1)
	}
	return nil
}

// ended takes over what became of an admitted job.
func (j *Job) ended(v *broker.View) {
	j.Path, j.Outcome, j.Cause, j.Backend, j.Attempts = v.Path, v.Outcome, v.Cause, v.Backend, v.Attempts
	j.WaitMS, j.ElapsedMS = v.QueueWaitMS, v.ElapsedMS
	j.OverMS = v.ElapsedMS - (v.DeadlineAtMS - v.AcceptedMS)
	if v.FirstByteMS != nil {
		j.FirstByteMS = *v.FirstByteMS
	}
}

// await is an admitted job's end; nil if it was not to be had.
func (r *player) await(ctx context.Context, id string) *broker.View {
	limit := time.Now().Add(time.Duration(r.plan.Class.DeadlineMS+r.plan.afterwardsMS()) * time.Millisecond)
	for time.Now().Before(limit) {
		v, err := r.api.Get(ctx, id, 20*time.Second)
		if err == nil && v.State == broker.StateDone {
			return v
		}
		if err != nil && background.Sleep(ctx, askAgain) != nil {
			return nil
		}
	}
	return nil
}
