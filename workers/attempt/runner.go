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

	"leeway/workers/backend"
)

// backoff is the first pause before another call to a backend that failed or
// turned a call away without saying for how long; it doubles each time.
const backoff = 100 * time.Millisecond

// Runner runs jobs against the backends of one pool. It may be used by many
// goroutines.
type Runner struct {
	cfg     Config
	members []*member
}

// NewRunner returns a runner, or a [ConfigError].
func NewRunner(cfg Config) (*Runner, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := &Runner{cfg: cfg}
	for _, b := range cfg.Backends {
		r.members = append(r.members, newMember(b, &cfg))
	}
	return r, nil
}

// State returns the backends as they stand, in order.
func (r *Runner) State() []BackendState {
	out := make([]BackendState, len(r.members))
	for i, m := range r.members {
		out[i] = m.state()
	}
	return out
}

func (r *Runner) member(name string) (*member, error) {
	for _, m := range r.members {
		if m.name == name {
			return m, nil
		}
	}
	return nil, fmt.Errorf("%w %q", ErrUnknownBackend, name)
}

// TakeOut keeps new calls from a backend until PutBack; calls under way end as
// they would. Returns ErrUnknownBackend for a name the runner does not have.
func (r *Runner) TakeOut(name, why string) error {
	m, err := r.member(name)
	if err == nil {
		m.takeOut(why, false)
	}
	return err
}

// PutBack undoes TakeOut, a refused key and an open breaker.
func (r *Runner) PutBack(name string) error {
	m, err := r.member(name)
	if err == nil {
		m.putBack()
	}
	return err
}

// Hold keeps calls from a backend for d: what another process was told.
func (r *Runner) Hold(name string, d time.Duration, why string) error {
	m, err := r.member(name)
	if err == nil {
		m.hold(d, why)
	}
	return err
}

// SetP95 replaces a backend's declared first-byte p95 by a measured one; 0
// brings the declared one back.
func (r *Runner) SetP95(name string, p95 time.Duration) error {
	m, err := r.member(name)
	if err == nil {
		m.mu.Lock()
		m.measured = max(0, p95)
		m.mu.Unlock()
	}
	return err
}

// run is one job on its way.
type run struct {
	*Runner
	job   *Job // its Left with what it may overrun by
	hooks *Hooks
	start time.Time
	due   time.Duration // the deadline that the outcome is judged by, since start
	// tries counts the calls made to each member; done is set for members
	// that are not to be called again for this job.
	tries   []int
	done    []bool
	waited  []bool // a Retry-After was waited for once
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
	if job.IdempotencyKey == "" {
		job.IdempotencyKey = job.ID
	}
	n := len(r.members)
	due := job.Left
	if r.cfg.Overrun > 0 {
		job.Left = max(job.Left, 0) + job.Reserve + r.cfg.Overrun
	}
	x := &run{
		Runner: r, job: &job, hooks: &hooks, start: time.Now(), due: due,
		tries: make([]int, n), done: make([]bool, n), waited: make([]bool, n),
		pause: backoff, number: max(1, job.FirstNumber),
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
		if len(x.res.Attempts) >= x.cfg.MaxAttempts {
			x.conclude()
			return nil
		}
		plan, who, wait := x.plan()
		if who < 0 {
			if wait <= 0 {
				x.conclude()
				return nil
			}
			x.sleep(ctx, wait)
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
	slack := x.slack()
	p95s, places, wait := x.candidates(slack)
	p = Next(PlanInput{Slack: slack, Share: x.cfg.Share, Cap: x.cfg.Cap, P95: p95s})
	if p.Index < 0 {
		return p, -1, wait
	}
	return p, places[p.Index], 0
}

// candidates are the backends that may be called now, and how long to wait for
// the first of the others.
func (x *run) candidates(slack time.Duration) (p95s []time.Duration, places []int, wait time.Duration) {
	for i, m := range x.members {
		if !x.eligible(i) {
			continue
		}
		ok, in := m.ready()
		p95 := m.p95()
		switch {
		case ok:
			p95s, places = append(p95s, p95), append(places, i)
		case in > 0 && in+p95 <= slack && (wait == 0 || in < wait):
			wait = in
		}
		if !ok {
			x.blocked = true
		}
	}
	return p95s, places, wait
}

// attempt makes one attempt, or finds that it cannot be made now. over: the job
// has its outcome.
func (x *run) attempt(ctx context.Context, who int, plan Plan) (over bool, err error) {
	m := x.members[who]
	planned := time.Now()
	// What is spent on waiting for a permit is gone for the first byte, which
	// must be left its p95.
	if !m.enter(ctx, max(0, plan.FirstByte-m.p95())) {
		x.done[who], x.blocked = true, true
		return false, nil
	}
	defer m.leave()
	if !m.throttle.TryAcquirePermit() {
		x.stepAside(ctx, who, jitter(x.pause))
		return false, nil
	}
	if !m.breaker.TryAcquirePermit() {
		// Another job's probe is under way.
		x.stepAside(ctx, who, halfOpenWait)
		return false, nil
	}
	call, req := x.call(who, plan.FirstByte-time.Since(planned))
	if x.hooks.Before != nil {
		due, cancel := context.WithDeadline(ctx, x.start.Add(x.job.Left-x.job.Reserve))
		err := x.hooks.Before(due, call)
		cancel()
		if err != nil {
			m.unjudged()
			return false, fmt.Errorf("%w: %w", ErrBefore, err)
		}
	}
	x.number++
	x.tries[who]++
	x.res.Backend = m.name
	req.FirstByte = min(plan.FirstByte-time.Since(planned), x.slack())
	if x.slack() < m.p95() || ctx.Err() != nil {
		m.unjudged()
		x.settle(ctx, call, Settlement{NotCalled: true, Usage: backend.Usage{How: backend.UsageNone}})
		return false, nil
	}
	e := x.generate(ctx, m, call, req)
	return x.judged(ctx, who, e), nil
}

// call describes the attempt about to be made.
func (x *run) call(who int, budget time.Duration) (Call, backend.Request) {
	m := x.members[who]
	c := Call{
		Number:         x.number,
		Backend:        m.name,
		Model:          m.model,
		RequestID:      x.job.ID + "-" + strconv.Itoa(x.number),
		IdempotencyKey: backendKey(x.job.IdempotencyKey, m.name),
		At:             x.now(),
		Budget:         budget,
		Tariff:         m.tariff(),
	}
	req := backend.Request{
		RequestID:       c.RequestID,
		IdempotencyKey:  c.IdempotencyKey,
		System:          x.job.System,
		Text:            x.job.Text,
		MaxOutputTokens: x.job.MaxOutputTokens,
	}
	c.LargestCostMicro = c.Tariff.LargestCostMicro(&req)
	return c, req
}

// backendKey is the idempotency key one backend is told. It differs between
// backends, so that one that shares its memory with another cannot take a
// second attempt for a repetition, and says nothing about the job.
func backendKey(key, name string) string {
	sum := sha256.Sum256([]byte(key + "\x00" + name))
	return "leeway-" + hex.EncodeToString(sum[:16])
}

// generate calls the backend, settles the attempt and keeps what it brought.
func (x *run) generate(ctx context.Context, m *member, call Call, req backend.Request) *backend.Error {
	begun, at := time.Now(), x.now()
	a, err := m.Caller.Generate(ctx, req, x.observer())
	var e *backend.Error
	if err != nil && !errors.As(err, &e) {
		e = &backend.Error{Reason: backend.ReasonUpstreamError, Backend: m.name, Detail: err.Error()}
	}
	if e != nil && e.Reason == backend.ReasonDeadline && !a.HasText {
		// Without a reserve the time for the first byte ends with the
		// deadline, and either clock may be first. What was missing is the
		// first byte.
		e.Reason = backend.ReasonFirstByte
	}
	m.record(e)
	s := Settlement{
		Usage:     a.Usage,
		CostMicro: call.Tariff.CostMicro(a.Usage),
		Finish:    a.Finish,
		HasText:   a.HasText,
		FirstByte: a.FirstByte,
		Hold:      time.Since(begun),
	}
	list := a.Usage
	list.ReportedCostMicro = nil
	s.ListCostMicro = call.Tariff.CostMicro(list)
	s.PaidInDisguise = call.Tariff.Free() && s.CostMicro > 0
	if e != nil {
		s.Reason, s.Status, s.Detail = e.Reason, e.Status, e.Detail
		cut := e.Reason == backend.ReasonFirstByte || e.Reason == backend.ReasonDeadline || e.Reason == backend.ReasonCancelled
		if cut && !a.HasText {
			s.Censored, s.FirstByte = true, s.Hold
		}
	}
	x.res.HasText, x.res.Finish = a.HasText, a.Finish
	x.res.FirstByteAt, x.res.LastByteAt = 0, 0
	if a.HasText {
		x.res.FirstByteAt, x.res.LastByteAt = at+a.FirstByte, at+a.LastByte
	}
	x.res.Text, x.res.Whole = a.Text, a.Whole
	x.settle(ctx, call, s)
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
		if !x.res.Relayed && strings.TrimSpace(piece) == "" {
			blank.WriteString(piece)
			return
		}
		x.res.Relayed = true
		x.hooks.Relay(blank.String() + piece)
		blank.Reset()
	}
	return o
}

func (x *run) settle(ctx context.Context, call Call, s Settlement) {
	x.res.Attempts = append(x.res.Attempts, Attempt{call, s})
	if x.hooks.After != nil {
		x.hooks.After(context.WithoutCancel(ctx), call, s)
	}
}

// sleep waits for d or until the job's time is over.
func (x *run) sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
