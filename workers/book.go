package workers

import (
	"context"
	"errors"
	"slices"
	"time"

	"leeway/broker"
	"leeway/broker/background"
	"leeway/broker/faultpoint"
	"leeway/broker/joblog"
	"leeway/slackgate/latency"
	"leeway/workers/attempt"
	"leeway/workers/backend"
)

// openRow writes the spend row of a call before it is made.
func (r *jobRun) openRow(_ context.Context, call attempt.Call) error {
	r.open = r.newRow(&call)
	err := r.step(&broker.Step{Job: r.claim, Open: &r.open})
	faultpoint.Reach(faultpoint.Booked)
	if err != nil {
		none := attempt.NotCalled(call)
		r.unwritten = append(r.unwritten, r.settledRow(&none))
	}
	return err
}

func (r *jobRun) newRow(call *attempt.Call) broker.SpendRow {
	c := r.claim
	return broker.SpendRow{
		JobID: c.ID, Attempt: call.Number, Path: c.Path, Class: c.Class, Producer: c.Producer,
		Backend: call.Backend, Model: call.Model, Currency: call.Price.Currency, PriceVersion: call.Price.Version,
		Priced: !call.Price.Free(), MaxCostMicro: call.LargestCostMicro,
		MaxInputTokens: call.InputTokens, MaxOutputTokens: call.OutputLimit,
	}
}

// settledRow is the open row, settled by how its attempt ended.
func (r *jobRun) settledRow(a *attempt.Attempt) broker.SpendRow {
	row := r.open
	cost, held := a.Price.CostMicro(a.Usage, a.LargestCostMicro)
	row.Usage, row.Clamped, row.Result = a.Usage.Usage, a.Usage.Clamped || held, result(a)
	row.CostMicro, row.ReportedCostMicro = cost, a.Usage.ReportedCostMicro
	if row.ReportedCostMicro != nil {
		row.ListCostMicro = new(a.Price.ListCostMicro(a.Usage))
	}
	if row.Known == broker.KnownUnknown {
		// What was seen is a lower bound. It stays charged at its largest.
		row.OutputTokens = max(row.OutputTokens, row.MaxOutputTokens)
		row.CostMicro = max(row.CostMicro, row.MaxCostMicro)
	}
	if row.CostDiffers() {
		r.Log.Error("a backend reported another cost than its price makes", "backend", row.Backend, "job_id", row.JobID,
			"reported_micro", *row.ReportedCostMicro, "list_micro", *row.ListCostMicro, "booked_micro", row.CostMicro, "price_version", row.PriceVersion)
	}
	if a.Price.Free() && cost > 0 {
		r.Log.Error("a backend without a price reported a cost", "backend", row.Backend, "job_id", row.JobID, "cost_micro", cost)
	}
	row.Priced = row.Priced || cost > 0
	return row
}

// Results of an attempt that has no reason to name.
const (
	resultWhole     = "whole"
	resultNotCalled = "not_called" // booked, and then not made: its time had run out
)

// result is how an attempt ended, for the ledger and the log.
func result(a *attempt.Attempt) string {
	switch {
	case a.NotCalled:
		return resultNotCalled
	case a.Reason == "":
		return resultWhole
	}
	return string(a.Reason)
}

// causes of a miss by the outcome; a late answer has several.
var causes = map[broker.Outcome]broker.Cause{
	broker.OutcomeExpired:   broker.CauseExpiredInQueue,
	broker.OutcomeEmpty:     broker.CauseEmpty,
	broker.OutcomeTruncated: broker.CauseTruncated,
	broker.OutcomeFailed:    broker.CauseFailed,
}

// conclude is the job's end, by what the attempts came to. cancelled is set when
// its producer took it back.
func (r *jobRun) conclude(res *attempt.Result, cancelled bool) *broker.Finish {
	f := &broker.Finish{Outcome: res.Outcome, Reason: string(res.Reason), Detail: res.Detail, Backend: res.Backend, FirstByteMS: -1}
	if res.HasText {
		f.FirstByteMS = res.FirstByte.Milliseconds()
	}
	if n := len(res.Attempts); n > 0 {
		first, last := &res.Attempts[0], &res.Attempts[n-1]
		f.FirstRoute, f.FirstOutcome = first.Backend, result(first)
		if n > 1 {
			f.FallbackOutcome = result(last)
		}
		f.Model, f.FinishReason = last.Model, string(res.Finish)
		if last.Usage.Known != broker.KnownUnknown {
			f.Usage = &last.Usage.Usage
		}
	}
	if f.Outcome == broker.OutcomeCancelled && !cancelled {
		f.Outcome = broker.OutcomeFailed
	}
	f.Cause = causes[f.Outcome]
	switch f.Outcome {
	case broker.OutcomeUsable:
		f.Answer, f.Reason = res.Text, ""
	case broker.OutcomeLate:
		f.Cause = lateCause(r.claim, res)
	default:
	}
	return f
}

// lateCause says by what a late answer was late.
func lateCause(c *broker.Claim, r *attempt.Result) broker.Cause {
	dueMS := c.SlackMS() // the first byte was due that long after the claim
	switch {
	case r.Reason == backend.ReasonDeadline || r.Reason == backend.ReasonFirstByte || !r.HasText:
		return broker.CauseCutAtDeadline
	case r.FirstByte.Milliseconds() > dueMS:
		return broker.CauseLateFirstByte
	}
	return broker.CauseLateFinish
}

// How long a worker goes on trying to book what it did while Redis is away.
const (
	bookFor      = 2 * time.Minute
	bookPause    = 100 * time.Millisecond
	bookPauseMax = 250 * time.Millisecond
)

// book repeats a write of how the job ended and of what its attempts cost until
// it was made or refused. What a job did must not be lost because Redis paused at
// the wrong moment; where it is away for too long, or the worker has to stop, all
// that was to be written stands in the log.
func (r *jobRun) book(what string, spend []broker.SpendRow, write func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(r.booking, bookFor)
	defer cancel()
	for pause := bookPause; ; pause = min(2*pause, bookPauseMax) {
		err := write(context.WithoutCancel(ctx))
		if err == nil || errors.Is(err, broker.ErrFenced) {
			return err
		}
		if background.Sleep(ctx, pause) != nil {
			r.Log.Error("not booked: the job and its spend are closed as unknown once its lease has lapsed",
				"what", what, "job_id", r.claim.ID, "spend", spend, "error", err)
			return err
		}
	}
}

// finish books the job's end and its attempts, and claims the next job in the same
// step.
func (r *jobRun) finish(f *broker.Finish, samples ...latency.Sample) {
	var step *broker.Step
	mayClaim, again := r.mayClaim() && time.Now().Before(r.until), false
	err := r.book("outcome "+string(f.Outcome), r.settled, func(context.Context) error {
		step = &broker.Step{Job: r.claim, Finish: f, Settled: r.settled, Samples: samples, Claim: mayClaim, Again: again}
		err := r.step(step)
		// A reply that was lost may have spoken of a claimed job. Of an answer nothing
		// is to be counted twice; where there was none, it may be.
		if again = true; step.Err != nil {
			samples = nil
		}
		return err
	})
	faultpoint.Reach(faultpoint.Finished)
	if errors.Is(err, broker.ErrFenced) {
		r.Log.Warn("outcome discarded: the job had another end", "job_id", r.claim.ID, "outcome", string(f.Outcome))
	}
	if err == nil {
		joblog.Ended(context.Background(), r.Log, step.Ended)
	}
	r.next = r.claimedBy(step)
	r.asked = step.Claim && !step.Found.Later
}

// settle books the attempts of a job that is no longer this worker's.
func (r *jobRun) settle() {
	if len(r.settled) > 0 {
		_ = r.book("spend", r.settled, func(ctx context.Context) error { return r.shard.Store.Settle(ctx, r.settled...) })
	}
}

// handBack gives the job back with what its attempts cost, and a ticket for it.
// One that its producer took back meanwhile ends here, and gets its line.
func (r *jobRun) handBack() {
	c := r.claim
	rows := slices.Concat(r.settled, r.unwritten)
	var ended *broker.Job
	err := r.book("hand-back", rows, func(ctx context.Context) (err error) {
		ended, err = r.shard.Store.Handback(ctx, c, rows...)
		return err
	})
	if err != nil {
		return
	}
	if ended != nil {
		joblog.Ended(context.Background(), r.Log, ended)
		return
	}
	r.putTicket()
}
