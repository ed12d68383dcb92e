package attempt

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"leeway/workers/backend"
)

// eligible reports whether the job may still use the backend, now or later.
func (x *run) eligible(i int) bool { return !x.done[i] && (i == 0 || !x.job.NoFallback) }

// others reports whether another backend could be called for the job now.
func (x *run) others(who int) bool {
	slack := x.slack()
	for i, m := range x.members {
		if i == who || !x.eligible(i) {
			continue
		}
		if ok, _ := m.ready(); ok && m.p95() <= slack {
			return true
		}
	}
	return false
}

// stepAside deals with a backend that cannot be called just now: another is
// tried if there is one, else this one is waited for if that can still end
// well.
func (x *run) stepAside(ctx context.Context, who int, wait time.Duration) {
	x.blocked = true
	if x.others(who) || wait+x.members[who].p95() > x.slack() {
		x.done[who] = true
		return
	}
	x.rest(ctx, wait)
}

// rest sleeps, and doubles the next pause.
func (x *run) rest(ctx context.Context, d time.Duration) {
	x.pause *= 2
	x.sleep(ctx, d)
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
		x.end(OutcomeCancelled, e.Reason)
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
		for i, m := range x.members {
			x.done[i] = x.done[i] || m.model == x.members[who].model
		}
	case backend.RetrySame:
		x.again(ctx, who, e)
	default:
		x.done[who] = true
	}
	return false
}

// again tries the same backend once more, after a pause, if the slack allows;
// otherwise the backend is done with.
func (x *run) again(ctx context.Context, who int, e *backend.Error) {
	switch {
	case e.RetryAfter > 0:
		// A little later than told, and not all at once.
		wait := e.RetryAfter + rand.N(100*time.Millisecond)
		if !x.waited[who] && x.worth(who, wait) {
			x.waited[who] = true
			x.sleep(ctx, wait)
			return
		}
	case e.Reason == backend.ReasonRateLimited:
		// Without a hint nobody knows how long; another backend is better
		// than guessing.
		if wait := jitter(x.pause); !x.others(who) && x.worth(who, wait) {
			x.rest(ctx, wait)
			return
		}
	default:
		if wait := jitter(x.pause); x.tries[who] < 2 && x.worth(who, wait) {
			x.rest(ctx, wait)
			return
		}
	}
	x.done[who] = true
}

// worth reports whether, after waiting, the backend could be called with its
// p95 to spend, without taking away what is kept for the backends after it.
func (x *run) worth(who int, wait time.Duration) bool {
	in := PlanInput{Slack: x.slack() - wait, Share: x.cfg.Share, Cap: x.cfg.Cap}
	place := -1
	for i, m := range x.members {
		if !x.eligible(i) {
			continue
		}
		if ok, _ := m.ready(); !ok && i != who {
			continue
		}
		if i == who {
			place = len(in.P95)
		}
		in.P95 = append(in.P95, m.p95())
	}
	p := Next(in)
	return p.Index >= 0 && p.Index == place && p.FirstByte >= in.P95[place]
}

// answered takes a whole answer.
func (x *run) answered() {
	if x.firstInTime() && (x.job.FirstByteOnly || x.res.LastByteAt <= x.due) {
		x.end(OutcomeUsable, "")
		return
	}
	x.end(OutcomeLate, "")
}

func (x *run) firstInTime() bool {
	return x.res.HasText && x.res.FirstByteAt <= x.due-x.job.Reserve
}

// cutAtDeadline takes an attempt that the deadline ended.
func (x *run) cutAtDeadline() {
	if x.job.FirstByteOnly && x.firstInTime() {
		x.end(OutcomeUsable, "")
		return
	}
	x.end(OutcomeLate, backend.ReasonDeadline)
}

// stopped ends a job whose context is over between attempts.
func (x *run) stopped() {
	if x.now() < x.job.Left {
		x.end(OutcomeCancelled, backend.ReasonCancelled)
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
		x.end(OutcomeExpired, ReasonNoBackend)
	case e == nil:
		x.end(OutcomeExpired, "")
	case e.Reason == backend.ReasonEmpty:
		x.end(OutcomeEmpty, e.Reason)
	case e.Reason == backend.ReasonTruncated || e.Reason == backend.ReasonStall:
		x.end(OutcomeTruncated, e.Reason)
	case e.Reason == backend.ReasonFirstByte && x.slack() <= 0:
		x.end(OutcomeLate, e.Reason)
	default:
		x.end(OutcomeFailed, e.Reason)
	}
}

func (x *run) end(o Outcome, reason backend.Reason) {
	x.res.Outcome, x.res.Reason = o, reason
	if o != OutcomeUsable {
		// What is not an answer is not handed on where answers go.
		x.res.Text, x.res.Whole = "", false
	}
}

// What a probe asks, as little as can be asked, and the longest answer it takes.
const (
	ProbeText      = "Reply with the word OK."
	ProbeMaxTokens = 16
)

// Probe makes one tiny call to a backend, whatever its state, to see whether it
// is well again. It is booked through the hooks like any other attempt, as one
// of the job id. If the backend answers, a breaker that was open closes and a
// backend that is out because of its key is put back; one that an operator took
// out stays out. The error is nil if the backend is well.
//
// ctx bounds the probe; it should have a deadline.
func (r *Runner) Probe(ctx context.Context, name, id string, hooks Hooks) error {
	who := slices.IndexFunc(r.members, func(m *member) bool { return m.name == name })
	if who < 0 {
		return fmt.Errorf("%w %q", ErrUnknownBackend, name)
	}
	m := r.members[who]
	hooks.Relay = nil
	left := 24 * time.Hour
	if d, ok := ctx.Deadline(); ok {
		left = time.Until(d)
	}
	x := &run{
		Runner: r, hooks: &hooks, start: time.Now(), number: 1,
		job: &Job{ID: id, IdempotencyKey: id, Text: ProbeText, MaxOutputTokens: ProbeMaxTokens, Left: left},
	}
	call, req := x.call(who, left)
	if hooks.Before != nil {
		if err := hooks.Before(ctx, call); err != nil {
			return fmt.Errorf("%w: %w", ErrBefore, err)
		}
	}
	e := x.generate(ctx, m, call, req)
	// A reasoning model does not come to its answer in so few tokens.
	if e == nil || judge(e) == healthy || x.res.Finish != backend.FinishNone {
		m.well()
		return nil
	}
	if judge(e) == faulty {
		m.breaker.Open()
	}
	return e
}
