package attempt

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivethrottler"
	"github.com/failsafe-go/failsafe-go/bulkhead"

	"leeway/broker"
	"leeway/workers/backend"
)

// Upstream is a backend and what is remembered of it, shared by all jobs.
type Upstream struct {
	Backend
	*standing

	model    string
	throttle adaptivethrottler.AdaptiveThrottler[any]
	permits  bulkhead.Bulkhead[any] // nil: no bound
	inFlight atomic.Int64
	measured atomic.Int64 // nanoseconds; 0: the declared p95 counts
}

func newUpstream(b Backend, cfg *Config) *Upstream {
	u := &Upstream{Backend: b, standing: newStanding(b.Caller.Name(), cfg), model: b.Caller.Model()}
	u.patience = u.p95
	if cfg.Doubt != nil {
		u.doubted = func() { cfg.Doubt(u) }
	}
	if b.MaxInFlight > 0 {
		u.permits = bulkhead.New[any](uint(b.MaxInFlight))
	}
	if b.Price == nil {
		u.Price = func() backend.Price { return backend.Price{} }
	}
	if b.Options == nil {
		u.Options = func(string) backend.Options { return backend.Options{} }
	}
	// The throttle is for a backend that turns some calls away without saying
	// for how long: never enough in a row to open the breaker, too many to go
	// on like that.
	u.throttle = adaptivethrottler.NewBuilder[any]().WithFailureRateThreshold(0.5, 10, 30*time.Second).Build()
	return u
}

// SetP95 replaces the declared first-byte p95 by a measured one; 0 brings the
// declared one back.
func (u *Upstream) SetP95(p95 time.Duration) { u.measured.Store(int64(p95)) }

// p95 is the first-byte p95 in force.
func (u *Upstream) p95() time.Duration {
	if d := time.Duration(u.measured.Load()); d > 0 {
		return d
	}
	return u.P95
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

// record remembers how a job's call ended; again: not the job's first that
// failed here.
func (u *Upstream) record(e *backend.Error, again bool) {
	switch {
	case e == nil:
		u.throttle.RecordSuccess()
	case e.Reason == backend.ReasonRateLimited:
		u.throttle.RecordFailure()
	}
	u.heard(e, again)
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
