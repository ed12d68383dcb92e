// Package attempt runs one job against the backends of a pool, in order, within
// the time the job has: the deadline owns every attempt.
//
// [Next] plans an attempt and is pure. A [Runner] carries plans out, remembers
// which backends fail, and gives each job exactly one outcome. It knows nothing
// of queues, Redis or ledgers; [Hooks] tell the caller of each attempt before it
// is made and after it ended.
package attempt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"leeway/broker"
	"leeway/workers/backend"
)

// Caller calls one backend; [*backend.Client] is one. The error of Generate is
// nil only if the answer is whole, and a [*backend.Error] otherwise.
type Caller interface {
	Name() string
	Model() string
	Generate(context.Context, backend.Request, backend.Observer) (backend.Answer, error)
}

// Backend is one backend of a pool.
type Backend struct {
	Caller Caller
	// P95 is the declared 95th percentile of the first byte. Required.
	P95 time.Duration
	// Options are those of its calls for a class of jobs; for no class the
	// backend's own. Defaults to none.
	Options func(class string) backend.Options
	// Price is what a call made now costs. Defaults to nothing.
	Price func() backend.Price
	// MaxInFlight bounds the calls under way at once; 0: no bound.
	MaxInFlight int
}

// MaxAttempts bounds the calls made for one job.
const MaxAttempts = 6

// Defaults of a [Config].
const (
	DefaultFailureThreshold = 3
	DefaultOpenFor          = 10 * time.Second
)

// Config describes a pool's backends and how they are tried.
type Config struct {
	// Backends are tried in this order. At least one.
	Backends []Backend
	// Share is the part of the remaining time an attempt may spend on its
	// first byte while another backend is left. Defaults to DefaultShare.
	Share float64
	// Cap bounds the same in absolute terms. Defaults to no cap.
	Cap time.Duration
	// FailureThreshold is how many different jobs in a row must have met the same
	// trouble before a backend is doubted. Defaults to DefaultFailureThreshold.
	FailureThreshold uint
	// OpenFor is how long an open breaker keeps calls away before it lets one
	// through as a probe, give or take a tenth. Defaults to DefaultOpenFor.
	OpenFor time.Duration
	// Overrun is a lab's way of seeing what the deadline's rule is for: calls
	// are made whatever is left of the time, and may run that long beyond the
	// deadline. Outcomes are judged as ever. Defaults to 0: the deadline owns
	// every attempt.
	Overrun time.Duration
	// Doubt is told that jobs have given cause to doubt whether a backend is
	// well, and is to see to a [Runner.Probe] of it soon. It must not block.
	// Defaults to nothing: then what jobs met is believed.
	Doubt func(*Upstream)
	// OnState is told when a backend's state changes, outside of any lock. The
	// end of a hold is not told: it comes with time. Defaults to nothing.
	OnState func(name, state, why string)
}

func (c Config) withDefaults() Config {
	c.Share = cmp.Or(c.Share, DefaultShare)
	c.FailureThreshold = cmp.Or(c.FailureThreshold, DefaultFailureThreshold)
	c.OpenFor = cmp.Or(c.OpenFor, DefaultOpenFor)
	if c.OnState == nil {
		c.OnState = func(_, _, _ string) {}
	}
	return c
}

func (c *Config) validate() error {
	switch {
	case len(c.Backends) == 0:
		return broker.Fieldf("Backends", "at least one is required")
	case !(c.Share > 0 && c.Share <= 1):
		return broker.Fieldf("Share", "must be above 0 and at most 1")
	case c.Cap < 0:
		return broker.Fieldf("Cap", "must not be negative")
	case c.OpenFor < 0:
		return broker.Fieldf("OpenFor", "must not be negative")
	case c.Overrun < 0:
		return broker.Fieldf("Overrun", "must not be negative")
	}
	names := make(map[string]bool, len(c.Backends))
	for i, b := range c.Backends {
		field := fmt.Sprintf("Backends[%d]", i)
		switch {
		case b.Caller == nil:
			return broker.Fieldf(field+".Caller", "is required")
		case names[b.Caller.Name()]:
			return broker.Fieldf(field, "has the name of another one")
		case b.P95 <= 0:
			return broker.Fieldf(field+".P95", "must be above 0")
		case b.MaxInFlight < 0:
			return broker.Fieldf(field+".MaxInFlight", "must not be negative")
		}
		names[b.Caller.Name()] = true
	}
	return nil
}

// Job is what a runner needs to know of a job.
type Job struct {
	// ID names the job. The request id and the idempotency key that are sent to
	// a backend are made from it.
	ID string
	// System is the instruction, Text what is to be summarised.
	System, Text string
	// MaxOutputTokens is the largest answer asked for; 0: no limit.
	MaxOutputTokens int
	// Class is whose options the calls have; empty: the backends' own.
	Class string
	// Left is the time to the deadline when Run is called. The runner measures
	// from there on its monotonic clock.
	Left time.Duration
	// Reserve is kept back from the deadline: the first byte is due Reserve
	// before it.
	Reserve time.Duration
	// FirstByteOnly is set when the class counts the first byte alone: an
	// answer whose first byte was in time is usable even if the deadline cut
	// it. It must still not be cut short by the backend.
	FirstByteOnly bool
	// FirstNumber is the number of the first attempt, above 1 when the job was
	// attempted before. Defaults to 1.
	FirstNumber int
	// NoFallback leaves the first backend alone (FALLBACK_ENABLED=false).
	NoFallback bool
}

// Call is one attempt about to be made.
type Call struct {
	Number         int
	Backend, Model string
	// At is when the call begins, since Run was called.
	At time.Duration
	// Price is the one in force when the call was planned.
	Price backend.Price
	// InputTokens estimates what is sent, OutputLimit is the limit that is sent,
	// reasoning included (0: none), and LargestCostMicro is the most the call can
	// be expected to cost.
	InputTokens, OutputLimit, LargestCostMicro int64
}

// Attempt is one attempt that was made, and how it ended.
type Attempt struct {
	Call
	// Answer is what the call brought, without its texts.
	backend.Answer
	// Reason says what was wrong; empty: the answer was whole.
	Reason backend.Reason
	// Advice is what to change in the configuration; mostly empty. See
	// [backend.Error].
	Advice string
	// Censored is set when the call was cut before any answer text came, so
	// that all that is known of its first byte is that it takes longer than
	// FirstByte.
	Censored bool
	// Hold is how long the call lasted.
	Hold time.Duration
	// NotCalled is set when the time ran out between Before and the call.
	NotCalled bool
}

// NotCalled is an attempt whose row may have been opened, and that was not made.
func NotCalled(c Call) Attempt {
	return Attempt{Call: c, NotCalled: true, Answer: backend.Answer{Usage: backend.Unbilled()}}
}

// CostMicro is what the attempt is booked at.
func (a *Attempt) CostMicro() int64 {
	cost, _ := a.Price.CostMicro(a.Usage, a.LargestCostMicro)
	return cost
}

// Hooks tell of a job's attempts. Nil functions are skipped.
type Hooks struct {
	// Before is called before each attempt, to open its row in the ledger. On
	// an error the backend is not called and Run returns. Its context ends
	// when the first byte is due.
	Before func(context.Context, Call) error
	// After is called once for each Before that returned nil, even if the job
	// was cancelled: what was spent must be booked.
	After func(Attempt)
	// FirstByte is called when a call's first answer text comes. It must not
	// block.
	FirstByte func()
	// Relay is called with each piece of answer text while it arrives. Once it
	// was called there is no failover. It must not block.
	Relay func(piece string)
}

// Result is the one end of a job and how it came about.
type Result struct {
	// Outcome is OutcomeCancelled only when the caller's context ended before
	// the deadline.
	Outcome broker.Outcome
	// Reason says more about an outcome that is not usable. For
	// OutcomeExpired it is empty when time was short, and ReasonNoBackend when
	// a backend's state kept it from being called.
	Reason backend.Reason
	// Detail is what the backend said of a reason that lies in the text itself;
	// producers may see it.
	Detail string
	// Answer is what the last call brought, the text only if the outcome is
	// usable. It is not Whole for a usable one only if the class counts the
	// first byte alone. Its times count from when Run was called.
	backend.Answer
	// Backend is the one called last.
	Backend string
	// EndedAt is when Run was done, since it was called.
	EndedAt time.Duration
	// Relayed is set once text was given to Hooks.Relay.
	Relayed  bool
	Attempts []Attempt
}

// ReasonNoBackend is the reason of a job for which no backend could be called
// in time, because they were out, failing, held or full.
const ReasonNoBackend backend.Reason = "no_backend"

// ErrBefore is wrapped by the error Run returns when Hooks.Before failed.
var ErrBefore = errors.New("attempt: the attempt could not be recorded")
