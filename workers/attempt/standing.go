package attempt

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"leeway/broker"
	"leeway/workers/backend"
)

const (
	// trusted is for how long the answer to a probe outweighs what jobs report.
	trusted = 3 * time.Second
	// longestPause is the most that lies between two probes of a backend that is
	// out, and the least between two for a field that it did not take.
	longestPause = time.Minute
	// look is how often a job that waits for a backend looks at its state.
	look = 100 * time.Millisecond
)

// standing is what is believed of a backend, and so whether jobs may call it.
//
// A call that a job made says as much of the job's text as of the backend. One
// job's call counts only where the backend speaks of itself: its key, its
// account, how long it is to be left alone. For the rest several different jobs
// in a row must agree that something is wrong, and even then they only raise a
// doubt, which a tiny probe decides.
//
//	state      begins                                        ends
//	closed     -                                             -
//	held       429 or a 5xx with Retry-After; another        when that time is over, or a probe is answered
//	           worker's probe failed
//	half_open  a doubt: threshold jobs in a row failed, or   with the probe: closed or open; open too when
//	           the account is out of credit                  it is not answered within the p95
//	           after OpenFor, for one job (as a breaker has  with that job's call: closed, or in doubt
//	           it)
//	open       the probe failed                              a probe is answered
//	out        the key was refused; threshold jobs in a row  a probe is answered, or an operator puts it back
//	           were refused and then the probe as well, or
//	           one for a field of its request and then the
//	           probe
//	           an operator's order                           an operator puts it back
//
// Jobs that are refused leave the backend as it is until the probe has spoken.
// Without somebody to probe (Config.Doubt) failed jobs open the breaker, and
// refused ones change nothing.
type standing struct {
	name      string
	threshold uint
	breaker   circuitbreaker.CircuitBreaker[any] // counts the failed, and lets one call through when it was open
	onState   func(name, state, why string)
	doubted   func()               // asks for a probe; nil: there is nobody to ask
	patience  func() time.Duration // how long a doubt leaves the question open
	probing   atomic.Bool          // a probe is under way

	mu        sync.Mutex // guards what follows
	out       bool
	outWhy    string
	ordered   bool // out by an operator's order
	heldTill  time.Time
	lastWhy   string        // reason of the last failure
	refused   uint          // different jobs in a row that were refused
	doubtTill time.Time     // zero: there is no doubt
	judging   bool          // what the breaker does now is what a probe has shown
	wellAt    time.Time     // a probe was answered
	probedAt  time.Time     // a probe ended
	pause     time.Duration // before the next one, while it is out
}

func newStanding(name string, cfg *Config) *standing {
	s := &standing{name: name, threshold: cfg.FailureThreshold, onState: cfg.OnState}
	s.breaker = circuitbreaker.NewBuilder[any]().
		WithFailureThreshold(cfg.FailureThreshold).
		WithSuccessThreshold(1).
		WithDelay(cfg.OpenFor).
		WithJitterFactor(0.1).
		OnStateChanged(s.moved).
		Build()
	return s
}

// moved is told by the breaker. One that jobs have opened is in doubt.
func (s *standing) moved(e circuitbreaker.StateChangedEvent) {
	state := stateOf(e.NewState)
	s.mu.Lock()
	s.doubtTill = time.Time{}
	doubt := state == broker.BackendOpen && !s.judging && s.doubted != nil
	if doubt {
		s.doubtTill = time.Now().Add(s.patience())
		state = broker.BackendHalfOpen
	}
	why := s.lastWhy
	s.mu.Unlock()
	s.onState(s.name, state, why)
	if doubt {
		s.doubted()
	}
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

// condition is whether the backend may be called, what led to that, and in how
// long it may be called again; 0: now, or not by itself.
func (s *standing) condition() (state, why string, retryIn time.Duration) {
	s.mu.Lock()
	out, outWhy, held, why, doubt := s.out, s.outWhy, time.Until(s.heldTill), s.lastWhy, time.Until(s.doubtTill)
	s.mu.Unlock()
	switch b := stateOf(s.breaker.State()); {
	case out:
		return broker.BackendOut, outWhy, 0
	case held > 0:
		return broker.BackendHeld, why, held
	case b == broker.BackendOpen && doubt > 0:
		return broker.BackendHalfOpen, why, look
	case b != broker.BackendClosed:
		return b, why, s.breaker.RemainingDelay()
	}
	return broker.BackendClosed, "", 0
}

// ready reports whether the backend may be called now, and if not, in how long
// that is worth another look; 0: not by itself.
func (s *standing) ready() (bool, time.Duration) {
	state, _, in := s.condition()
	return in <= 0 && state != broker.BackendOut, in
}

// Hold keeps calls away until d from now, unless they already are for longer.
func (s *standing) Hold(d time.Duration, why string) {
	s.mu.Lock()
	till := time.Now().Add(d)
	longer := till.After(s.heldTill)
	if longer {
		s.heldTill, s.lastWhy = till, why
	}
	s.mu.Unlock()
	if longer {
		s.onState(s.name, broker.BackendHeld, why)
	}
}

// TakeOut keeps new calls away until PutBack; calls under way end as they would.
func (s *standing) TakeOut(why string) { s.takeOut(why, true) }

func (s *standing) takeOut(why string, ordered bool) {
	s.mu.Lock()
	was := s.out
	// An operator's word is not overwritten by what a backend answers.
	if !was || ordered {
		s.out, s.outWhy, s.ordered = true, why, ordered
	}
	s.mu.Unlock()
	if !was {
		s.onState(s.name, broker.BackendOut, why)
	}
}

// PutBack undoes TakeOut and whatever else keeps calls away.
func (s *standing) PutBack() { s.restore(true) }

// restore lets calls through again. A backend that an operator took out stays
// out unless it is put back by one.
func (s *standing) restore(byOperator bool) {
	s.mu.Lock()
	back := s.out && (byOperator || !s.ordered)
	if back {
		s.out, s.outWhy, s.ordered = false, "", false
	}
	s.heldTill, s.doubtTill, s.refused, s.pause = time.Time{}, time.Time{}, 0, 0
	s.mu.Unlock()
	closed := s.breaker.IsClosed()
	s.breaker.Close()
	if back && closed {
		s.onState(s.name, broker.BackendClosed, "")
	}
}

// verdict is what a call says of the backend.
type verdict uint8

const (
	nothing  verdict = iota // it was ended early, or the backend spoke of itself
	answered                // it answers
	refused                 // it turned this request away, which may be the request's fault
	failed                  // it brought no answer
)

// verdictOf is what a call that ended with e says of the backend.
func verdictOf(e *backend.Error) verdict {
	if e == nil {
		return answered
	}
	if e.Stale {
		return nothing // a backend that closes connections it kept is well
	}
	switch e.Reason {
	case backend.ReasonRefused, backend.ReasonContextLength, backend.ReasonToolCall, backend.ReasonEmpty:
		// It answered; that the answer is of no use is the job's affair.
		return answered
	case backend.ReasonBadRequest, backend.ReasonUnsupported:
		return refused
	case backend.ReasonCancelled, backend.ReasonAuth, backend.ReasonQuota:
		return nothing
	case backend.ReasonDeadline:
		// Cut in the middle of an answer: slow, not dead.
		return nothing
	case backend.ReasonRateLimited:
		if e.RetryAfter > 0 {
			return nothing
		}
	default:
	}
	return failed
}

// whyOf is what a call that ended with e is shown as: its reason, and of a fault
// of configuration what to change.
func whyOf(e *backend.Error) string {
	if e.Reason == backend.ReasonUnsupported {
		return broker.WhyUnsupported + e.Advice
	}
	return string(e.Reason)
}

// told takes what a backend says of itself.
func (s *standing) told(e *backend.Error) {
	if e == nil {
		return
	}
	if v := verdictOf(e); v == failed || v == nothing {
		s.mu.Lock()
		s.lastWhy = string(e.Reason)
		s.mu.Unlock()
	}
	switch {
	case e.Reason == backend.ReasonAuth:
		s.takeOut(string(e.Reason), false)
	case e.Reason == backend.ReasonQuota:
		s.breaker.Open()
	case e.RetryAfter > 0 && (e.Reason == backend.ReasonRateLimited || e.Reason == backend.ReasonUpstreamError):
		s.Hold(e.RetryAfter, string(e.Reason))
	}
}

// heard takes how a job's call ended. again: the job has failed here before, and
// says nothing new.
func (s *standing) heard(e *backend.Error, again bool) {
	s.told(e)
	v := verdictOf(e)
	s.mu.Lock()
	trust := time.Since(s.wellAt) < trusted
	switch {
	case v == answered:
		s.refused = 0
	case v == refused && e.Reason == backend.ReasonUnsupported:
		// That is no job's text, but the backend's options or the class's. A probe
		// has the backend's alone: once it was answered, the class's jobs can go on
		// being refused for long.
		if time.Since(s.wellAt) >= longestPause {
			s.refused = max(s.refused, s.threshold)
		}
	case v == refused && !again && !trust:
		s.refused++
	}
	doubt := v == refused && s.refused >= s.threshold
	s.mu.Unlock()
	switch waits := s.breaker.IsHalfOpen(); {
	case v == answered, v == refused && waits:
		// Whatever it was that opened the breaker, there is an answer again.
		s.breaker.RecordSuccess()
	case v == failed && (waits || !again && !trust):
		s.breaker.RecordFailure()
	case v == nothing:
		s.unjudged()
	}
	if doubt && s.doubted != nil {
		s.doubted()
	}
}

// unjudged gives back a breaker's permit for a call that says nothing about the
// backend or was not made. It can be given back only with a verdict, and a call
// without one has not shown that the backend is well.
func (s *standing) unjudged() {
	if s.breaker.IsHalfOpen() {
		s.breaker.RecordFailure()
	}
}

// probed takes how a probe ended, and reports whether the backend is well.
func (s *standing) probed(e *backend.Error, whole bool) bool {
	v := verdictOf(e)
	well := v == answered || whole
	now := time.Now()
	s.mu.Lock()
	s.judging = true
	agree, doubt := s.refused >= s.threshold, !s.doubtTill.IsZero()
	s.probedAt, s.doubtTill = now, time.Time{}
	s.pause = min(max(2*s.pause, trusted), longestPause)
	if well {
		s.wellAt = now
	}
	s.mu.Unlock()
	s.told(e)
	switch {
	case well:
		s.restore(false)
	case v == refused && agree:
		s.takeOut(whyOf(e), false)
	case v == refused, v == failed:
		s.breaker.Open()
	}
	s.mu.Lock()
	s.judging = false
	s.mu.Unlock()
	if state, why, _ := s.condition(); doubt && state == broker.BackendOpen {
		s.onState(s.name, state, why) // half_open was told
	}
	return well
}

// ProbeDue reports whether the backend is kept from jobs by what it did, and it
// is time to ask it again.
func (s *standing) ProbeDue() bool {
	state, _, _ := s.condition()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case broker.BackendOpen:
		return true
	case broker.BackendOut:
		return !s.ordered && time.Since(s.probedAt) >= s.pause
	}
	return false
}
