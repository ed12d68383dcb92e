package attempt

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"leeway/broker/background"
	"leeway/workers/backend"
)

// backoff is the first pause before another call to a backend that failed or
// turned a call away without saying for how long; it doubles each time.
const backoff = 100 * time.Millisecond

// busyPause is the same for one that asked to be called later, if there is time:
// a model takes seconds to load.
const busyPause = time.Second

// Runner runs jobs against the backends of one pool. It may be used by many
// goroutines.
type Runner struct {
	cfg       Config
	upstreams []*Upstream
}

// NewRunner returns a runner, or a [broker.FieldError].
func NewRunner(cfg Config) (*Runner, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := &Runner{cfg: cfg}
	for _, b := range cfg.Backends {
		r.upstreams = append(r.upstreams, newUpstream(b, &cfg))
	}
	return r, nil
}

// Upstreams are the backends, in order.
func (r *Runner) Upstreams() []*Upstream { return r.upstreams }

// tried is what a job has made of a backend.
type tried struct {
	calls  int
	waited bool // its Retry-After was waited for once
	failed bool // a call of the job failed or was refused here
	done   bool // it is not to be called again for this job
}

// run is one job on its way.
type run struct {
	*Runner
	job   *Job // its Left with what it may overrun by
	hooks *Hooks
	start time.Time
	due   time.Duration // the deadline that the outcome is judged by, since start
	tried []tried       // one for each backend

	pause   time.Duration
	number  int
	lastErr *backend.Error
	blocked bool // a backend was kept from being called by its state
	res     Result
}

// Run makes attempts until one is usable or the job's time, backends or
// reasons to go on are used up. It ends by the job's deadline, however silent
// the backends are.
//
// The error is not nil only if Hooks.Before failed (it wraps ErrBefore and the
// hook's error): then nothing is decided, and the result holds the attempts
// made so far and no outcome.
func (r *Runner) Run(ctx context.Context, job Job, hooks Hooks) (Result, error) {
	due := job.Left
	if r.cfg.Overrun > 0 {
		job.Left = max(job.Left, 0) + job.Reserve + r.cfg.Overrun
	}
	x := &run{
		Runner: r, job: &job, hooks: &hooks, start: time.Now(), due: due,
		tried: make([]tried, len(r.upstreams)), pause: backoff, number: max(1, job.FirstNumber),
	}
	err := x.loop(ctx)
	x.res.EndedAt = time.Since(x.start)
	return x.res, err
}

// slack is the time left for a first byte.
func (x *run) slack() time.Duration { return x.job.Left - x.job.Reserve - time.Since(x.start) }

// now is the time since Run was called.
func (x *run) now() time.Duration { return time.Since(x.start) }

func (x *run) loop(parent context.Context) error {
	ctx, cancel := context.WithDeadline(parent, x.start.Add(x.job.Left))
	defer cancel()
	for {
		if ctx.Err() != nil {
			x.stopped()
			return nil
		}
		if len(x.res.Attempts) >= MaxAttempts {
			x.conclude()
			return nil
		}
		plan, who, wait := x.plan()
		if who < 0 {
			if wait <= 0 {
				x.conclude()
				return nil
			}
			// What it waits for may come sooner: a probe, an operator's word.
			_ = background.Sleep(ctx, min(wait, look))
			continue
		}
		over, err := x.attempt(ctx, who, plan)
		if over || err != nil {
			return err
		}
	}
}

// plan is the next attempt among the backends that may be called now. Without
// one, wait is how long to wait for the first that may be called in time; 0:
// there is none.
func (x *run) plan() (p Plan, who int, wait time.Duration) {
	in, places, wait := x.candidates(x.slack(), -1)
	if p = Next(in); p.Index < 0 {
		if x.refused() {
			wait = 0
		}
		return p, -1, wait
	}
	return p, places[p.Index], 0
}

// refused reports whether the request was turned away for what it may itself be
// to blame for. Then no other backend is worth waiting for.
func (x *run) refused() bool { return x.lastErr != nil && verdictOf(x.lastErr) == refused }

// candidates are the backends that may be called now, for the planner, which
// they are, and how long to wait for the first of the others. One that counts as
// ready whatever its state is named by also; -1: none.
func (x *run) candidates(slack time.Duration, also int) (in PlanInput, places []int, wait time.Duration) {
	in = PlanInput{Slack: slack, Share: x.cfg.Share, Cap: x.cfg.Cap}
	for i, u := range x.upstreams {
		if !x.eligible(i) {
			continue
		}
		p95 := u.p95()
		ok, retryIn := u.ready()
		x.blocked = x.blocked || !ok
		switch {
		case ok || i == also:
			in.P95, places = append(in.P95, p95), append(places, i)
		case retryIn > 0 && retryIn+p95 <= slack && (wait == 0 || retryIn < wait):
			wait = retryIn
		}
	}
	return in, places, wait
}

// attempt makes one attempt, or finds that it cannot be made now. over: the job
// has its outcome.
func (x *run) attempt(ctx context.Context, who int, plan Plan) (over bool, err error) {
	u := x.upstreams[who]
	planned := time.Now()
	// What is spent on waiting for a permit is gone for the first byte, which
	// must be left its p95.
	if !u.acquire(ctx, max(0, plan.FirstByte-u.p95())) {
		x.tried[who].done, x.blocked = true, true
		return false, nil
	}
	defer u.release()
	if !u.throttle.TryAcquirePermit() {
		x.skipOrWait(ctx, who, jitter(x.pause))
		return false, nil
	}
	if !u.breaker.TryAcquirePermit() {
		// Another job has its one call under way.
		x.skipOrWait(ctx, who, look)
		return false, nil
	}
	call, req := x.call(u)
	if x.hooks.Before != nil {
		due, cancel := context.WithDeadline(ctx, x.start.Add(x.job.Left-x.job.Reserve))
		err := x.hooks.Before(due, call)
		cancel()
		if err != nil {
			u.unjudged()
			return false, fmt.Errorf("%w: %w", ErrBefore, err)
		}
	}
	x.number++
	x.tried[who].calls++
	x.res.Backend = u.name
	req.FirstByte = min(plan.FirstByte-time.Since(planned), x.slack())
	if x.slack() < u.p95() || ctx.Err() != nil {
		u.unjudged()
		x.ended(NotCalled(call))
		return false, nil
	}
	e := x.generate(ctx, u, call, req)
	u.record(e, x.tried[who].failed)
	x.tried[who].failed = x.tried[who].failed || e != nil && verdictOf(e) != nothing
	return x.judged(ctx, who, e), nil
}

// call describes the attempt about to be made.
func (x *run) call(u *Upstream) (Call, backend.Request) {
	req := backend.Request{
		RequestID:       x.job.ID + "-" + strconv.Itoa(x.number),
		IdempotencyKey:  backendKey(x.job.ID, u.name),
		System:          x.job.System,
		Text:            x.job.Text,
		MaxOutputTokens: x.job.MaxOutputTokens,
		Options:         u.Options(x.job.Class),
	}
	c := Call{
		Number:      x.number,
		Backend:     u.name,
		Model:       u.model,
		At:          x.now(),
		Price:       u.Price(),
		InputTokens: req.InputTokens(),
		OutputLimit: int64(req.OutputLimit()),
	}
	c.LargestCostMicro = c.Price.LargestCostMicro(c.InputTokens, req.MaxOutputTokens, req.Options.Allowance())
	return c, req
}

// backendKey is the idempotency key one backend is told. It differs between
// backends, so that one that shares its memory with another cannot take a
// second attempt for a repetition, and says nothing about the job.
func backendKey(key, name string) string {
	sum := sha256.Sum256([]byte(key + "\x00" + name))
	return "leeway-" + hex.EncodeToString(sum[:16])
}

// generate calls the backend and keeps what it brought.
func (x *run) generate(ctx context.Context, u *Upstream, call Call, req backend.Request) *backend.Error {
	begun, at := time.Now(), x.now()
	a, err := u.Caller.Generate(ctx, req, x.observer())
	var e *backend.Error
	if err != nil && !errors.As(err, &e) {
		e = &backend.Error{Reason: backend.ReasonUpstreamError, Backend: u.name, Detail: err.Error()}
	}
	if e != nil && e.Reason == backend.ReasonDeadline && !a.HasText {
		// Without a reserve the time for the first byte ends with the
		// deadline, and either clock may be first. What was missing is the
		// first byte.
		e.Reason = backend.ReasonFirstByte
	}
	made := Attempt{Call: call, Answer: a, Hold: time.Since(begun)}
	made.Text, made.Reasoning = "", ""
	if e != nil {
		made.Reason, made.Advice = e.Reason, e.Advice
		cut := e.Reason == backend.ReasonFirstByte || e.Reason == backend.ReasonDeadline || e.Reason == backend.ReasonCancelled
		if cut && !a.HasText {
			made.Censored, made.FirstByte = true, made.Hold
		}
	}
	a.FirstByte += at
	a.LastByte += at
	x.res.Answer = a
	x.ended(made)
	return e
}

// observer relays answer text. Blank text at the beginning waits until there is
// more, so that it does not stand in the way of a failover.
func (x *run) observer() backend.Observer {
	var o backend.Observer
	if x.hooks.FirstByte != nil {
		o.FirstByte = func(time.Duration) { x.hooks.FirstByte() }
	}
	if x.hooks.Relay == nil {
		return o
	}
	var blank strings.Builder
	o.Text = func(piece string) {
		if !x.res.Relayed && backend.Blank(piece) {
			blank.WriteString(piece)
			return
		}
		x.res.Relayed = true
		x.hooks.Relay(blank.String() + piece)
		blank.Reset()
	}
	return o
}

// ended keeps an attempt that is over.
func (x *run) ended(a Attempt) {
	x.res.Attempts = append(x.res.Attempts, a)
	if x.hooks.After != nil {
		x.hooks.After(a)
	}
}
