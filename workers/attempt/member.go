package attempt

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivethrottler"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"leeway/workers/backend"
)

// State is whether a backend may be called.
type State string

// The states.
const (
	StateClosed   State = "closed"    // may be called
	StateOpen     State = "open"      // failed too often; left alone for a while
	StateHalfOpen State = "half_open" // one call is let through as a probe
	StateHeld     State = "held"      // asked to be left alone for a while
	StateOut      State = "out"       // taken out, by an operator or because its key was refused
)

// States lists the closed set.
var States = [...]State{StateClosed, StateOpen, StateHalfOpen, StateHeld, StateOut}

// BackendState is a backend as it stands.
type BackendState struct {
	Name, Model string
	State       State
	// Why says what led to the state: a reason, or an operator's words.
	Why string
	// InFlight counts calls under way; MaxInFlight is their bound, 0: none.
	InFlight, MaxInFlight int
	// P95 is the first-byte p95 in force: measured, else declared.
	P95 time.Duration
	// RetryIn is when the backend may be called again; 0: now, or not by
	// itself.
	RetryIn time.Duration
	// RejectionRate is the part of calls the throttle keeps away, 0 to 1.
	RejectionRate float64
}

// ErrUnknownBackend is returned for a name the runner does not have.
var ErrUnknownBackend = errors.New("attempt: unknown backend")

// halfOpenWait is how long to wait for the outcome of another job's probe
// before looking again.
const halfOpenWait = 100 * time.Millisecond

// member is a backend and what is remembered of it, shared by all jobs.
type member struct {
	Backend
	name, model string
	breaker     circuitbreaker.CircuitBreaker[any]
	throttle    adaptivethrottler.AdaptiveThrottler[any]
	permits     chan struct{} // nil: no bound
	onState     func(string, State, string)

	mu       sync.Mutex // guards what follows
	inFlight int
	measured time.Duration // 0: the declared p95 counts
	out      bool
	outWhy   string
	outAuth  bool // taken out because the key was refused
	heldTill time.Time
	lastWhy  string // reason of the last failure
}

func newMember(b Backend, cfg *Config) *member {
	m := &member{Backend: b, name: b.Caller.Name(), model: b.Caller.Model(), onState: cfg.OnState}
	if b.MaxInFlight > 0 {
		m.permits = make(chan struct{}, b.MaxInFlight)
	}
	m.breaker = circuitbreaker.NewBuilder[any]().
		WithFailureThreshold(cfg.FailureThreshold).
		WithSuccessThreshold(1).
		WithDelay(cfg.OpenFor).
		WithJitterFactor(0.1).
		OnStateChanged(func(e circuitbreaker.StateChangedEvent) { m.onState(m.name, stateOf(e.NewState), m.why()) }).
		Build()
	// The throttle is for a backend that turns some calls away without saying
	// for how long: never enough in a row to open the breaker, too many to go
	// on like that.
	m.throttle = adaptivethrottler.NewBuilder[any]().WithFailureRateThreshold(0.5, 10, 30*time.Second).Build()
	return m
}

func stateOf(s circuitbreaker.State) State {
	switch s {
	case circuitbreaker.OpenState:
		return StateOpen
	case circuitbreaker.HalfOpenState:
		return StateHalfOpen
	case circuitbreaker.ClosedState:
	}
	return StateClosed
}

func (m *member) why() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lastWhy
}

// p95 is the first-byte p95 in force.
func (m *member) p95() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.measured > 0 {
		return m.measured
	}
	return m.P95
}

// ready reports whether the backend may be called now, and if not, in how long
// that is worth another look; 0: not by itself.
func (m *member) ready() (bool, time.Duration) {
	m.mu.Lock()
	out, held := m.out, time.Until(m.heldTill)
	m.mu.Unlock()
	switch {
	case out:
		return false, 0
	case held > 0:
		return false, held
	}
	if m.breaker.IsOpen() {
		if d := m.breaker.RemainingDelay(); d > 0 {
			return false, d
		}
	}
	return true, 0
}

// hold keeps calls away until d from now, unless they already are for longer.
func (m *member) hold(d time.Duration, why string) {
	m.mu.Lock()
	till := time.Now().Add(d)
	longer := till.After(m.heldTill)
	if longer {
		m.heldTill, m.lastWhy = till, why
	}
	m.mu.Unlock()
	if longer {
		m.onState(m.name, StateHeld, why)
	}
}

// takeOut keeps calls away until the backend is put back.
func (m *member) takeOut(why string, auth bool) {
	m.mu.Lock()
	was := m.out
	// An operator's word is not overwritten by a refused key.
	if !was || !auth {
		m.out, m.outWhy, m.outAuth = true, why, auth
	}
	m.mu.Unlock()
	if !was {
		m.onState(m.name, StateOut, why)
	}
}

func (m *member) putBack() {
	m.mu.Lock()
	was := m.out
	m.out, m.outWhy, m.outAuth, m.heldTill = false, "", false, time.Time{}
	m.mu.Unlock()
	closed := m.breaker.IsClosed()
	m.breaker.Close()
	if was && closed {
		m.onState(m.name, StateClosed, "")
	}
}

// well takes the news that the backend answers again.
func (m *member) well() {
	m.mu.Lock()
	back := m.outAuth
	if back {
		m.out, m.outWhy, m.outAuth = false, "", false
	}
	m.heldTill = time.Time{}
	m.mu.Unlock()
	closed := m.breaker.IsClosed()
	m.breaker.Close()
	if back && closed {
		m.onState(m.name, StateClosed, "")
	}
}

func (m *member) state() BackendState {
	m.mu.Lock()
	s := BackendState{
		Name: m.name, Model: m.model, State: StateClosed, MaxInFlight: m.MaxInFlight,
		InFlight: m.inFlight, P95: m.P95,
	}
	if m.measured > 0 {
		s.P95 = m.measured
	}
	out, outWhy, held, why := m.out, m.outWhy, time.Until(m.heldTill), m.lastWhy
	m.mu.Unlock()
	s.RejectionRate = m.throttle.RejectionRate()
	switch b := stateOf(m.breaker.State()); {
	case out:
		s.State, s.Why = StateOut, outWhy
	case held > 0:
		s.State, s.Why, s.RetryIn = StateHeld, why, held
	case b != StateClosed:
		s.State, s.Why, s.RetryIn = b, why, m.breaker.RemainingDelay()
	}
	return s
}

// verdict is what a call says about the backend itself.
type verdict uint8

const (
	neutral verdict = iota // nothing
	healthy
	faulty
)

// judge says what a call that ended with e says about the backend.
func judge(e *backend.Error) verdict {
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
func (m *member) record(e *backend.Error) {
	if e != nil {
		m.mu.Lock()
		m.lastWhy = string(e.Reason)
		m.mu.Unlock()
		switch {
		case e.Reason == backend.ReasonAuth:
			m.takeOut(string(e.Reason), true)
		case e.Reason == backend.ReasonQuota:
			m.breaker.Open()
		case e.RetryAfter > 0:
			m.hold(e.RetryAfter, string(e.Reason))
		}
		if e.Reason == backend.ReasonRateLimited {
			m.throttle.RecordFailure()
		}
	} else {
		m.throttle.RecordSuccess()
	}
	switch judge(e) {
	case healthy:
		m.breaker.RecordSuccess()
	case faulty:
		m.breaker.RecordFailure()
	case neutral:
		m.unjudged()
	}
}

// unjudged gives back a breaker's permit for a call that says nothing about the
// backend or was not made. A probe's permit can be given back only with a
// verdict, and one without a verdict has not shown that the backend is well.
func (m *member) unjudged() {
	if m.breaker.IsHalfOpen() {
		m.breaker.RecordFailure()
	}
}

// enter takes one of the backend's permits, waiting for at most wait. It
// reports whether it has one, which leave must give back.
func (m *member) enter(ctx context.Context, wait time.Duration) bool {
	if m.permits != nil && !m.acquire(ctx, wait) {
		return false
	}
	m.mu.Lock()
	m.inFlight++
	m.mu.Unlock()
	return true
}

func (m *member) acquire(ctx context.Context, wait time.Duration) bool {
	select {
	case m.permits <- struct{}{}:
		return true
	default:
	}
	if wait <= 0 {
		return false
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case m.permits <- struct{}{}:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

func (m *member) leave() {
	m.mu.Lock()
	m.inFlight--
	m.mu.Unlock()
	if m.permits != nil {
		<-m.permits
	}
}

// jitter spreads d by up to a quarter more, so that jobs that were turned away
// together do not come back together.
func jitter(d time.Duration) time.Duration {
	return d + time.Duration(rand.Int64N(int64(d/4)+1))
}
