package attempt

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivethrottler"
	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"leeway/broker"
	"leeway/workers/backend"
)

// halfOpenWait is how long to wait for the outcome of another job's probe
// before looking again.
const halfOpenWait = 100 * time.Millisecond

// Upstream is a backend and what is remembered of it, shared by all jobs.
type Upstream struct {
	Backend
	name, model string
	breaker     circuitbreaker.CircuitBreaker[any]
	throttle    adaptivethrottler.AdaptiveThrottler[any]
	permits     bulkhead.Bulkhead[any] // nil: no bound
	onState     func(name, state, why string)
	inFlight    atomic.Int64

	mu       sync.Mutex    // guards what follows
	measured time.Duration // 0: the declared p95 counts
	out      bool
	outWhy   string
	outAuth  bool // taken out because the key was refused
	heldTill time.Time
	lastWhy  string // reason of the last failure
}

func newUpstream(b Backend, cfg *Config) *Upstream {
	u := &Upstream{Backend: b, name: b.Caller.Name(), model: b.Caller.Model(), onState: cfg.OnState}
	if b.MaxInFlight > 0 {
		u.permits = bulkhead.New[any](uint(b.MaxInFlight))
	}
	if b.Price == nil {
		u.Price = func() backend.Price { return backend.Price{} }
	}
	u.breaker = circuitbreaker.NewBuilder[any]().
		WithFailureThreshold(cfg.FailureThreshold).
		WithSuccessThreshold(1).
		WithDelay(cfg.OpenFor).
		WithJitterFactor(0.1).
		OnStateChanged(func(e circuitbreaker.StateChangedEvent) { u.onState(u.name, stateOf(e.NewState), u.why()) }).
		Build()
	// The throttle is for a backend that turns some calls away without saying
	// for how long: never enough in a row to open the breaker, too many to go
	// on like that.
	u.throttle = adaptivethrottler.NewBuilder[any]().WithFailureRateThreshold(0.5, 10, 30*time.Second).Build()
	return u
}

func stateOf(s circuitbreaker.State) string {
	switch s {
	case circuitbreaker.OpenState:
		return broker.BackendOpen
	case circuitbreaker.HalfOpenState:
		return broker.BackendHalfOpen
	case circuitbreaker.ClosedState:
	}
	return broker.BackendClosed
}

func (u *Upstream) why() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.lastWhy
}

// SetP95 replaces the declared first-byte p95 by a measured one; 0 brings the
// declared one back.
func (u *Upstream) SetP95(p95 time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.measured = p95
}

// p95 is the first-byte p95 in force.
func (u *Upstream) p95() time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.measured > 0 {
		return u.measured
	}
	return u.P95
}

// condition is whether the backend may be called, what led to that, and in how
// long it may be called again; 0: now, or not by itself.
func (u *Upstream) condition() (state, why string, retryIn time.Duration) {
	u.mu.Lock()
	out, outWhy, held, why := u.out, u.outWhy, time.Until(u.heldTill), u.lastWhy
	u.mu.Unlock()
	switch b := stateOf(u.breaker.State()); {
	case out:
		return broker.BackendOut, outWhy, 0
	case held > 0:
		return broker.BackendHeld, why, held
	case b != broker.BackendClosed:
		return b, why, u.breaker.RemainingDelay()
	}
	return broker.BackendClosed, "", 0
}

// ready reports whether the backend may be called now, and if not, in how long
// that is worth another look; 0: not by itself.
func (u *Upstream) ready() (bool, time.Duration) {
	switch state, _, in := u.condition(); state {
	case broker.BackendOut:
		return false, 0
	case broker.BackendHeld, broker.BackendOpen:
		return in <= 0, in
	}
	return true, 0
}

// State is the backend as it stands.
func (u *Upstream) State() broker.BackendState {
	state, why, in := u.condition()
	return broker.BackendState{
		Backend: u.name, Model: u.model, State: state, Why: why,
		InFlight: int(u.inFlight.Load()), MaxInFlight: u.MaxInFlight,
		FirstByteP95MS: u.p95().Milliseconds(), RetryInMS: in.Milliseconds(),
	}
}

// Hold keeps calls away until d from now, unless they already are for longer.
func (u *Upstream) Hold(d time.Duration, why string) {
	u.mu.Lock()
	till := time.Now().Add(d)
	longer := till.After(u.heldTill)
	if longer {
		u.heldTill, u.lastWhy = till, why
	}
	u.mu.Unlock()
	if longer {
		u.onState(u.name, broker.BackendHeld, why)
	}
}

// TakeOut keeps new calls away until PutBack; calls under way end as they would.
func (u *Upstream) TakeOut(why string) { u.takeOut(why, false) }

func (u *Upstream) takeOut(why string, auth bool) {
	u.mu.Lock()
	was := u.out
	// An operator's word is not overwritten by a refused key.
	if !was || !auth {
		u.out, u.outWhy, u.outAuth = true, why, auth
	}
	u.mu.Unlock()
	if !was {
		u.onState(u.name, broker.BackendOut, why)
	}
}

// PutBack undoes TakeOut, a refused key and an open breaker.
func (u *Upstream) PutBack() { u.open(true) }

// open lets calls through again. A backend that an operator took out stays out
// unless it is put back by one.
func (u *Upstream) open(byOperator bool) {
	u.mu.Lock()
	back := u.out && (byOperator || u.outAuth)
	if back {
		u.out, u.outWhy, u.outAuth = false, "", false
	}
	u.heldTill = time.Time{}
	u.mu.Unlock()
	closed := u.breaker.IsClosed()
	u.breaker.Close()
	if back && closed {
		u.onState(u.name, broker.BackendClosed, "")
	}
}

// health is what a call says about the backend itself.
type health uint8

const (
	neutral health = iota // nothing
	healthy
	faulty
)

// healthOf is what a call that ended with e says about the backend.
func healthOf(e *backend.Error) health {
	if e == nil {
		return healthy
	}
	switch e.Reason {
	case backend.ReasonRefused, backend.ReasonContextLength, backend.ReasonToolCall, backend.ReasonEmpty:
		// It answered; that the answer is of no use is the job's affair.
		return healthy
	case backend.ReasonCancelled, backend.ReasonAuth, backend.ReasonQuota:
		// Auth and quota have their own memory.
		return neutral
	case backend.ReasonDeadline:
		// Cut in the middle of an answer: slow, not dead.
		return neutral
	case backend.ReasonRateLimited:
		if e.RetryAfter > 0 {
			return neutral
		}
	default:
	}
	return faulty
}

// record remembers how a call ended.
func (u *Upstream) record(e *backend.Error) {
	if e != nil {
		u.mu.Lock()
		u.lastWhy = string(e.Reason)
		u.mu.Unlock()
		switch {
		case e.Reason == backend.ReasonAuth:
			u.takeOut(string(e.Reason), true)
		case e.Reason == backend.ReasonQuota:
			u.breaker.Open()
		case e.RetryAfter > 0:
			u.Hold(e.RetryAfter, string(e.Reason))
		}
		if e.Reason == backend.ReasonRateLimited {
			u.throttle.RecordFailure()
		}
	} else {
		u.throttle.RecordSuccess()
	}
	switch healthOf(e) {
	case healthy:
		u.breaker.RecordSuccess()
	case faulty:
		u.breaker.RecordFailure()
	case neutral:
		u.unjudged()
	}
}

// unjudged gives back a breaker's permit for a call that says nothing about the
// backend or was not made. A probe's permit can be given back only with a
// verdict, and one without a verdict has not shown that the backend is well.
func (u *Upstream) unjudged() {
	if u.breaker.IsHalfOpen() {
		u.breaker.RecordFailure()
	}
}

// acquire takes one of the backend's permits, waiting for at most wait. It
// reports whether it has one, which release must give back.
func (u *Upstream) acquire(ctx context.Context, wait time.Duration) bool {
	if u.permits != nil && u.permits.AcquirePermitWithMaxWait(ctx, wait) != nil {
		return false
	}
	u.inFlight.Add(1)
	return true
}

func (u *Upstream) release() {
	u.inFlight.Add(-1)
	if u.permits != nil {
		u.permits.ReleasePermit()
	}
}

// jitter spreads d by up to a quarter more, so that jobs that were turned away
// together do not come back together.
func jitter(d time.Duration) time.Duration {
	return d + time.Duration(rand.Int64N(int64(d/4)+1))
}
