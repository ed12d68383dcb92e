package drill

import (
	"context"
	"errors"
	"net/http"
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

func millisSince(t time.Time) float64 { return float64(time.Since(t).Microseconds()) / 1000 }

// submit submits a job and waits for its end. Each job is its own goroutine's. An
// error means that the API does not take such jobs at all.
func (r *player) submit(ctx context.Context, j *Job, a *Arrival, due time.Time) error {
	j.AtMS, j.LagMS, j.FirstByteMS = a.AtMS, millisSince(due), -1
	r.progress.Offered.Add(1)
	v, err := r.offer(ctx, a)
	j.ToldMS = millisSince(due)
	if err != nil {
		return err
	}
	j.told(v)
	switch {
	case j.Undecided():
		r.progress.Undecided.Add(1)
		return nil
	case !j.Admitted():
		r.progress.Rejected.Add(1)
		return nil
	}
	r.progress.Admitted.Add(1)
	view := r.await(ctx, j.ID)
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

// offer asks the API about a job. A gate that could not be asked has decided
// nothing; a job that the API does not take at all is an error.
func (r *player) offer(ctx context.Context, a *Arrival) (*wire.Verdict, error) {
	// To its end also when the run is ended early: a job that was admitted
	// unheard could not be taken back.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	v, err := r.target.Client.Submit(ctx, &client.Job{
		Class: r.target.Class, Text: text, DeadlineMS: r.plan.Class.DeadlineMS, MaxOutputTokens: a.OutputTokens, Producer: "drill",
	})
	if err == nil {
		return v, nil
	}
	p, ok := errors.AsType[*wire.Problem](err)
	switch {
	case ok && p.Verdict != nil:
		return p.Verdict, nil
	case ok && p.Status/100 == 4 && p.Status != http.StatusTooManyRequests:
		return nil, p
	}
	return &wire.Verdict{Reason: slackgate.ReasonGateUnavailable}, nil
}

// told takes over what the gate said.
func (j *Job) told(v *wire.Verdict) {
	j.Reason = v.Reason
	if v.Reason.Unavailable() {
		return // its numbers are of no decision
	}
	j.ID, j.Path, j.SlackMS, j.PredictedWaitMS = v.JobID, v.Path, v.SlackMS, v.PredictedWaitMS
	asked := v.Path
	if asked == slackgate.Reject {
		asked = slackgate.Free
		if _, ok := v.NeedMS.Of(slackgate.Free); !ok {
			asked = slackgate.Paid
		}
	}
	j.NeedMS, _ = v.NeedMS.Of(asked)
	j.QueueAgeMS, _ = v.QueueAgeMS.Of(asked)
}

// ended takes over what became of an admitted job.
func (j *Job) ended(v *broker.Job) {
	j.Path, j.Outcome, j.Cause, j.Backend, j.Attempts = v.Path, v.Outcome, v.Cause, v.Backend, v.Attempts
	j.WaitMS, j.ElapsedMS = v.QueueWaitMS, v.ElapsedMS
	j.OverMS = v.ElapsedMS - (v.DeadlineAtMS - v.AcceptedAtMS)
	if v.FirstByteMS != nil {
		j.FirstByteMS = *v.FirstByteMS
	}
}

// await is an admitted job's end; nil if it was not to be had.
func (r *player) await(ctx context.Context, id string) *broker.Job {
	ctx, cancel := context.WithTimeout(ctx, r.plan.jobLimit())
	defer cancel()
	for {
		if v, err := r.target.Client.Wait(ctx, id); err == nil {
			return v
		}
		if background.Sleep(ctx, askAgain) != nil {
			return nil
		}
	}
}
