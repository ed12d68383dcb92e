package attempt

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"leeway/broker"
	"leeway/broker/background"
	"leeway/workers/backend"
)

// eligible reports whether the job may still use the backend, now or later.
func (x *run) eligible(i int) bool { return !x.tried[i].done && (i == 0 || !x.job.NoFallback) }

// anotherReady reports whether another backend could be called for the job now.
func (x *run) anotherReady(who int) bool {
	in, places, _ := x.candidates(x.slack(), -1)
	for k, i := range places {
		if i != who && in.P95[k] <= in.Slack {
			return true
		}
	}
	return false
}

// skipOrWait deals with a backend that cannot be called just now: another is
// tried if there is one, else this one is waited for if that can still end
// well.
func (x *run) skipOrWait(ctx context.Context, who int, wait time.Duration) {
	x.blocked = true
	if x.refused() || x.anotherReady(who) || wait+x.upstreams[who].p95() > x.slack() {
		x.tried[who].done = true
		return
	}
	x.backOff(ctx, wait)
}

// backOff sleeps, and doubles the next pause.
func (x *run) backOff(ctx context.Context, d time.Duration) {
	x.pause *= 2
	_ = background.Sleep(ctx, d)
}

// judged decides what follows from an attempt. It reports whether the job has
// its outcome; otherwise the next attempt may be planned.
func (x *run) judged(ctx context.Context, who int, e *backend.Error) bool {
	if e == nil {
		x.answered()
		return true
	}
	x.lastErr = e
	switch {
	case e.Reason == backend.ReasonDeadline || (e.Reason == backend.ReasonCancelled && x.now() >= x.job.Left):
		// A cancel after the deadline changes nothing.
		x.cutAtDeadline()
		return true
	case e.Reason == backend.ReasonCancelled:
		x.end(broker.OutcomeCancelled, e.Reason)
		return true
	case x.res.Relayed:
		// The producer has read the beginning of this answer; the rest of
		// another one would not follow from it.
		x.conclude()
		return true
	}
	switch e.Retry() {
	case backend.RetryNowhere:
		x.conclude()
		return true
	case backend.RetryOtherModel:
		for i, u := range x.upstreams {
			x.tried[i].done = x.tried[i].done || u.model == x.upstreams[who].model
		}
	case backend.RetrySame:
		x.retry(ctx, who, e)
	default:
		x.tried[who].done = true
	}
	return false
}

// retry tries the same backend once more, after a pause, if the slack allows;
// otherwise the backend is done with.
func (x *run) retry(ctx context.Context, who int, e *backend.Error) {
	t := &x.tried[who]
	if e.NotNow() {
		x.pause = max(x.pause, min(busyPause, x.slack()/8))
	}
	wait := jitter(x.pause)
	switch {
	case e.RetryAfter > 0:
		// A little later than told, and not all at once.
		wait = e.RetryAfter + rand.N(100*time.Millisecond)
		t.done, t.waited = t.waited, true
	case e.Stale:
		wait, t.done = 0, t.calls >= 2
	case e.NotNow():
		t.done = x.anotherReady(who)
	default:
		t.done = t.calls >= 2
	}
	if !t.done && !x.worthWaiting(who, wait) {
		t.done = true
	}
	switch {
	case t.done || e.Stale:
	case e.RetryAfter > 0:
		_ = background.Sleep(ctx, wait)
	default:
		x.backOff(ctx, wait)
	}
}

// worthWaiting reports whether, after waiting, the backend could be called with
// its p95 to spend, without taking away what is kept for the backends after it.
func (x *run) worthWaiting(who int, wait time.Duration) bool {
	in, places, _ := x.candidates(x.slack()-wait, who)
	p := Next(in)
	return p.Index >= 0 && places[p.Index] == who && p.FirstByte >= in.P95[p.Index]
}

// answered takes a whole answer.
func (x *run) answered() {
	if x.firstInTime() && (x.job.FirstByteOnly || x.res.LastByte <= x.due) {
		x.end(broker.OutcomeUsable, "")
		return
	}
	x.end(broker.OutcomeLate, "")
}

func (x *run) firstInTime() bool {
	return x.res.HasText && x.res.FirstByte <= x.due-x.job.Reserve
}

// cutAtDeadline takes an attempt that the deadline ended.
func (x *run) cutAtDeadline() {
	if x.job.FirstByteOnly && x.firstInTime() {
		x.end(broker.OutcomeUsable, "")
		return
	}
	x.end(broker.OutcomeLate, backend.ReasonDeadline)
}

// stopped ends a job whose context is over between attempts.
func (x *run) stopped() {
	if x.now() < x.job.Left {
		x.end(broker.OutcomeCancelled, backend.ReasonCancelled)
		return
	}
	x.conclude()
}

// conclude ends a job for which nothing more can be tried, by how its last
// attempt ended.
func (x *run) conclude() {
	e := x.lastErr
	switch {
	case e == nil && x.blocked && x.slack() > 0:
		x.end(broker.OutcomeExpired, ReasonNoBackend)
	case e == nil:
		x.end(broker.OutcomeExpired, "")
	case e.Reason == backend.ReasonEmpty:
		x.end(broker.OutcomeEmpty, e.Reason)
	case e.Reason == backend.ReasonTruncated || e.Reason == backend.ReasonStall:
		x.end(broker.OutcomeTruncated, e.Reason)
	case e.Reason == backend.ReasonFirstByte && x.slack() <= 0:
		x.end(broker.OutcomeLate, e.Reason)
	default:
		x.end(broker.OutcomeFailed, e.Reason)
		if e.Reason == backend.ReasonRefused || e.Reason == backend.ReasonContextLength {
			x.res.Detail = e.Detail
		}
	}
}

func (x *run) end(o broker.Outcome, reason backend.Reason) {
	x.res.Outcome, x.res.Reason = o, reason
	if o != broker.OutcomeUsable {
		// What is not an answer is not handed on where answers go.
		x.res.Text, x.res.Whole = "", false
	}
}

// What a probe asks, as little as can be asked, and the longest answer it takes.
const (
	ProbeText      = "Reply with the word OK."
	ProbeMaxTokens = 16
)

// ErrProbing is the error of a probe that was not made, because another one of
// the same backend is under way.
var ErrProbing = errors.New("attempt: a probe is under way")

// Probe makes one tiny call to a backend, whatever its state, to see whether it
// is well; what follows from that [standing] says. The hooks are told of it like
// of any other attempt, as one of the job id. The error is nil if the backend is
// well.
//
// ctx bounds the probe; it should have a deadline.
func (r *Runner) Probe(ctx context.Context, u *Upstream, id string, hooks Hooks) error {
	if !u.probing.CompareAndSwap(false, true) {
		return ErrProbing
	}
	defer u.probing.Store(false)
	hooks.Relay = nil
	x := &run{
		Runner: r, hooks: &hooks, start: time.Now(), number: 1,
		job: &Job{ID: id, Text: ProbeText, MaxOutputTokens: ProbeMaxTokens},
	}
	call, req := x.call(u)
	if hooks.Before != nil {
		if err := hooks.Before(ctx, call); err != nil {
			return fmt.Errorf("%w: %w", ErrBefore, err)
		}
	}
	e := x.generate(ctx, u, call, req)
	// A reasoning model does not come to its answer in so few tokens.
	if u.probed(e, x.res.Finish != backend.FinishNone) {
		return nil
	}
	return e
}
