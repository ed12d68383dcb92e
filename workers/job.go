package workers

import (
	"context"
	"errors"
	"sync"
	"time"

	"leeway/broker"
	"leeway/broker/faultpoint"
	"leeway/broker/joblog"
	"leeway/broker/redisstore"
	"leeway/slackgate"
	"leeway/workers/attempt"
	"leeway/workers/backend"
)

// run takes a claimed job to its one outcome.
func (p *Pool) run(c *broker.Claim) {
	p.Observer.Claimed(c.Path, c.QueueWaitMS())
	faultpoint.Reach(faultpoint.Claimed)
	// The gate again: time has passed since the promise. The backends' own
	// p95s are checked by the runner before each call.
	if !p.stillFits(c) {
		p.expire(c)
		return
	}
	ctx, cancel := context.WithCancelCause(p.base)
	defer cancel(nil)
	p.track(c.ID, cancel)
	defer p.untrack(c.ID)
	stopRenewing := p.renew(ctx, c, cancel)
	defer stopRenewing()

	prompt := system(p.Prompt(c.Class).System, c.Instruction)
	var openedAt int64 // of the attempt under way; one at a time
	var settled []redisstore.Settlement
	var unwritten []redisstore.Settlement // the row of a call that was not made because nobody knows whether the row was written
	var samples []redisstore.Sample
	var noted sync.WaitGroup
	defer noted.Wait()
	hooks := attempt.Hooks{
		Before: func(ctx context.Context, call attempt.Call) error {
			row := p.row(c, &call)
			err := p.Store.OpenSpend(ctx, c, &row, !call.Tariff.Free(), backend.EstimateTokens(prompt)+backend.EstimateTokens(c.Text), int64(c.MaxOutputTokens))
			openedAt = row.OpenedAtMS
			faultpoint.Reach(faultpoint.Booked)
			if err != nil {
				unwritten = append(unwritten, p.settlement(c, &call, &attempt.Settlement{
					NotCalled: true, Usage: backend.Usage{How: backend.UsageNone},
				}))
			}
			return err
		},
		After: func(_ context.Context, call attempt.Call, s attempt.Settlement) {
			// All are booked with the outcome, in one step; if this process
			// dies first, whoever finds the job settles them as unknown.
			row := p.settlement(c, &call, &s)
			row.OpenedAtMS = openedAt
			settled = append(settled, row)
			samples = append(samples, callSamples(&call, &s)...)
		},
		FirstByte: func() {
			noted.Go(func() {
				if err := p.Store.SawFirstByte(ctx, c); err != nil && ctx.Err() == nil {
					p.Log.Debug("first byte not noted", "job_id", c.ID, "error", err)
				}
			})
		},
	}
	if c.Relay != "" {
		relay := p.relay(c)
		defer relay.stop()
		hooks.Relay = relay.add
	}
	res, err := p.runner.Run(ctx, attempt.Job{
		ID: c.ID, System: prompt, Text: c.Text, MaxOutputTokens: c.MaxOutputTokens,
		Left:          time.Duration(c.DeadlineAtMS-c.NowMS)*time.Millisecond - time.Since(c.ClaimedAt),
		Reserve:       time.Duration(c.ReserveMS) * time.Millisecond,
		FirstByteOnly: c.FirstByteOnly,
		FirstNumber:   c.Attempts + 1,
		NoFallback:    !p.FallbackEnabled(ctx, c),
	}, hooks)
	if tells(&res) {
		samples = append(samples, poolSamples(c.Path, res.HasText, res.FirstByteAt, res.EndedAt, res.Reason == "")...)
	}
	cause := context.Cause(ctx)
	switch {
	case errors.Is(err, broker.ErrFenced), errors.Is(cause, errLeaseLost):
		p.Log.Warn("job went to another holder", "job_id", c.ID, "path", c.Path.String())
		p.settle(c, settled)
		return
	case errors.Is(cause, errStopping) && (err != nil || res.Outcome == attempt.OutcomeCancelled):
		p.handBack(c, append(settled, unwritten...))
		return
	case err != nil:
		// The spend row could not be written, so nothing was called. The job
		// keeps its promise and is offered again. A store that was away may
		// carry the row out later: it costs nothing then.
		p.Log.Warn("spend row not written: job handed back", "job_id", c.ID, "error", err)
		time.Sleep(bookPause) // it is claimed again at once
		p.handBack(c, append(settled, unwritten...))
		return
	}
	if res.Outcome == attempt.OutcomeExpired && len(res.Attempts) == 0 && p.rescued(c) {
		return // its backends could not be called: the other pool's will be
	}
	f := p.conclude(c, &res, errors.Is(cause, errCancelled))
	if f.FirstByteMS >= 0 {
		p.Observer.FirstByte(c.Path, f.FirstByteMS)
	}
	faultpoint.Reach(faultpoint.Answered)
	p.finish(c, f, settled)
	p.measure(c.ID, samples...)
}

// stillFits is the gate's check before a backend is called: the first byte in
// the slack that is left, and the last by the deadline.
func (p *Pool) stillFits(c *broker.Claim) bool {
	if p.Attempts.Overrun > 0 {
		return true // a lab with the re-check off
	}
	since := time.Since(c.ClaimedAt).Milliseconds()
	hold := p.HoldP95()
	if c.FirstByteOnly {
		hold = 0
	}
	return slackgate.StillFits(c.SlackMS()-since, c.DeadlineAtMS-c.NowMS-since, p.FirstByteP95(), hold)
}

// expire ends a job that no backend was called for, unless it is rescued.
func (p *Pool) expire(c *broker.Claim) {
	if !p.rescued(c) {
		p.finish(c, &broker.Finish{Outcome: broker.OutcomeExpired, Cause: broker.CauseExpiredInQueue, FirstByteMS: -1}, nil)
	}
}

// rescued offers a job that free can no longer make to paid, if its class
// allows it, and reports whether paid took it.
func (p *Pool) rescued(c *broker.Claim) bool {
	if !c.Rescue || c.Path != slackgate.Free {
		return false
	}
	took, err := p.Rescue(p.base, c)
	if err != nil {
		p.Log.Warn("job not offered again", "job_id", c.ID, "error", err)
	}
	return took
}

func (p *Pool) track(id string, cancel context.CancelCauseFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running[id] = cancel
}

func (p *Pool) untrack(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, id)
}

// renew keeps the claim's lease while the job runs, and ends the job when the
// lease is lost or its producer took it back. After a renewal that failed the
// next comes sooner: a store that was away has few of a lease's moments left.
func (p *Pool) renew(ctx context.Context, c *broker.Claim, cancel context.CancelCauseFunc) (stop func()) {
	done := make(chan struct{})
	ended := make(chan struct{})
	go p.Background.Guard("lease renewal", func() {
		defer close(ended)
		next := time.NewTimer(p.Lease / 3)
		defer next.Stop()
		failing := false
		for {
			select {
			case <-done:
				return
			case <-ctx.Done():
				return
			case <-next.C:
			}
			lease, err := p.Store.Renew(ctx, c, p.Lease)
			if err != nil {
				if !failing && ctx.Err() == nil { // once an outage
					p.Log.Warn("lease not renewed", "job_id", c.ID, "error", err)
				}
				failing = true
				next.Reset(p.Lease / 12)
				continue
			}
			failing = false
			next.Reset(p.Lease / 3)
			switch lease {
			case redisstore.LeaseHeld:
			case redisstore.LeaseLost:
				cancel(errLeaseLost)
				return
			case redisstore.LeaseCancelled:
				cancel(errCancelled)
				return
			}
		}
	})
	return func() {
		close(done)
		<-ended
	}
}

// row is the write-ahead spend row of a call.
func (p *Pool) row(c *broker.Claim, call *attempt.Call) broker.SpendRow {
	return broker.SpendRow{
		JobID: c.ID, Attempt: call.Number, Path: c.Path, Class: c.Class, Producer: c.Producer,
		Backend: call.Backend, Model: call.Model, Currency: call.Tariff.Currency, PriceVersion: call.Tariff.Version,
		MaxCostMicro: call.LargestCostMicro,
	}
}

func (p *Pool) settlement(c *broker.Claim, call *attempt.Call, s *attempt.Settlement) redisstore.Settlement {
	row := p.row(c, call)
	row.InputTokens, row.OutputTokens = s.Usage.InputTokens, s.Usage.OutputTokens
	row.CachedTokens, row.ReasoningTokens = s.Usage.CachedTokens, s.Usage.ReasoningTokens
	row.CostMicro, row.ReportedCostMicro = s.CostMicro, s.Usage.ReportedCostMicro
	if row.ReportedCostMicro != nil {
		row.ListCostMicro = new(s.ListCostMicro)
	}
	row.Clamped = s.Usage.Clamped
	row.Known = known(s.Usage.How)
	row.Result = result(s)
	if row.Known == broker.KnownUnknown {
		// What was seen is a lower bound. It stays charged at its largest.
		row.OutputTokens = max(row.OutputTokens, int64(c.MaxOutputTokens))
		row.CostMicro = max(row.CostMicro, row.MaxCostMicro)
	}
	if row.CostDiffers() {
		p.Log.Error("a backend reported another cost than its price makes", "backend", call.Backend, "job_id", c.ID,
			"reported_micro", *row.ReportedCostMicro, "list_micro", *row.ListCostMicro, "price_version", row.PriceVersion)
	}
	if s.PaidInDisguise {
		p.Log.Error("a backend without a price reported a cost", "backend", call.Backend, "job_id", c.ID, "cost_micro", s.CostMicro)
	}
	return redisstore.Settlement{SpendRow: row, Priced: !call.Tariff.Free() || s.CostMicro > 0}
}

// known maps how a backend's usage is known to the ledger's words. A call that
// was turned away is known to have cost nothing.
func known(h backend.UsageHow) broker.Known {
	switch h {
	case backend.UsageReported, backend.UsageNone:
		return broker.KnownReported
	case backend.UsageEstimated:
		return broker.KnownEstimated
	case backend.UsageUnknown:
	}
	return broker.KnownUnknown
}

// conclude turns what the attempts came to into the job's outcome.
func (p *Pool) conclude(c *broker.Claim, r *attempt.Result, cancelled bool) *broker.Finish {
	f := &broker.Finish{Reason: string(r.Reason), Backend: r.Backend, FirstByteMS: -1}
	if r.HasText {
		f.FirstByteMS = r.FirstByteAt.Milliseconds()
	}
	if n := len(r.Attempts); n > 0 {
		f.FirstRoute, f.FirstOutcome = r.Attempts[0].Backend, result(&r.Attempts[0].Settlement)
		if n > 1 {
			f.FallbackOutcome = result(&r.Attempts[n-1].Settlement)
		}
	}
	if n := len(r.Attempts); n > 0 {
		f.FinishReason, f.Usage = string(r.Finish), usage(&r.Attempts[n-1].Usage)
	}
	switch r.Outcome {
	case attempt.OutcomeUsable:
		f.Outcome, f.Answer, f.Reason = broker.OutcomeUsable, r.Text, ""
	case attempt.OutcomeLate:
		f.Outcome, f.Cause = broker.OutcomeLate, p.lateCause(c, r)
	case attempt.OutcomeExpired:
		f.Outcome, f.Cause = broker.OutcomeExpired, broker.CauseExpiredInQueue
	case attempt.OutcomeEmpty:
		f.Outcome, f.Cause = broker.OutcomeEmpty, broker.CauseEmpty
	case attempt.OutcomeTruncated:
		f.Outcome, f.Cause = broker.OutcomeTruncated, broker.CauseTruncated
	case attempt.OutcomeFailed:
		f.Outcome, f.Cause = broker.OutcomeFailed, broker.CauseFailed
	case attempt.OutcomeCancelled:
		f.Outcome = broker.OutcomeCancelled
		if !cancelled {
			f.Outcome, f.Cause = broker.OutcomeFailed, broker.CauseFailed
		}
	}
	return f
}

// usage is what an attempt used as its producer may see it; nil when nobody
// knows.
func usage(u *backend.Usage) *broker.Usage {
	if known(u.How) == broker.KnownUnknown {
		return nil
	}
	return &broker.Usage{
		InputTokens: u.InputTokens, OutputTokens: u.OutputTokens,
		CachedTokens: u.CachedTokens, ReasoningTokens: u.ReasoningTokens, Known: known(u.How),
	}
}

// system is the class's prompt with the producer's own instruction after it.
func system(prompt, instruction string) string {
	if instruction == "" {
		return prompt
	}
	return prompt + "\n\n" + instruction
}

// Results of an attempt that has no reason to name.
const (
	resultWhole     = "whole"
	resultNotCalled = "not_called" // booked, and then not made: its time had run out
)

// result is how an attempt ended, for the ledger and the log.
func result(s *attempt.Settlement) string {
	switch {
	case s.NotCalled:
		return resultNotCalled
	case s.Reason == "":
		return resultWhole
	}
	return string(s.Reason)
}

// lateCause says by what a late answer was late.
func (p *Pool) lateCause(c *broker.Claim, r *attempt.Result) broker.Cause {
	dueMS := c.SlackMS() // the first byte was due that long after the claim
	switch {
	case r.Reason == backend.ReasonDeadline || r.Reason == backend.ReasonFirstByte || !r.HasText:
		return broker.CauseCutAtDeadline
	case r.FirstByteAt.Milliseconds() > dueMS:
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

// book repeats a write until it was made or refused. What a job did must not
// be lost because Redis paused at the wrong moment.
func (p *Pool) book(what, id string, write func(ctx context.Context) error) error {
	pause := bookPause
	start := time.Now()
	for {
		err := write(context.Background())
		if err == nil || errors.Is(err, broker.ErrFenced) {
			return err
		}
		if time.Since(start) > bookFor {
			p.Log.Error("not booked: the reconciler will close it", "what", what, "job_id", id, "error", err)
			return err
		}
		time.Sleep(pause)
		pause = min(2*pause, bookPauseMax)
	}
}

func (p *Pool) finish(c *broker.Claim, f *broker.Finish, settled []redisstore.Settlement) {
	err := p.book("outcome", c.ID, func(ctx context.Context) error {
		_, err := p.Store.Finish(ctx, c, f, settled...)
		return err
	})
	faultpoint.Reach(faultpoint.Finished)
	if errors.Is(err, broker.ErrFenced) {
		p.Log.Warn("outcome discarded: the job had another end", "job_id", c.ID, "outcome", string(f.Outcome))
	}
	if err == nil {
		p.logEnd(c.ID)
	}
}

// logEnd writes the line of a job that has ended.
func (p *Pool) logEnd(id string) {
	var view *broker.View
	err := p.book("log line", id, func(ctx context.Context) (err error) {
		if view, err = p.Store.Get(ctx, id); errors.Is(err, broker.ErrUnavailable) {
			return err
		}
		return nil
	})
	if err != nil || view == nil {
		p.Log.Warn("ended job not readable for the log", "job_id", id)
		return
	}
	joblog.Ended(context.Background(), p.Log, view)
}

// settle books attempts of a job that is no longer this worker's.
func (p *Pool) settle(c *broker.Claim, settled []redisstore.Settlement) {
	if len(settled) == 0 {
		return
	}
	_ = p.book("spend", c.ID, func(ctx context.Context) error { return p.Store.Settle(ctx, settled...) })
}

// handBack gives the job back with what its attempts cost, and a ticket for it.
// One that its producer took back meanwhile ends here, and gets its line.
func (p *Pool) handBack(c *broker.Claim, settled []redisstore.Settlement) {
	var ended bool
	err := p.book("hand-back", c.ID, func(ctx context.Context) (err error) {
		ended, err = p.Store.Handback(ctx, c, settled...)
		return err
	})
	if err != nil {
		return
	}
	if ended {
		p.logEnd(c.ID)
		return
	}
	if err := p.of(c).shard.Tickets.Put(context.Background(), c.Path, 1); err != nil {
		p.Log.Warn("ticket not written", "job_id", c.ID, "path", c.Path.String(), "error", err)
	}
}
