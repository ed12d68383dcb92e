// Package admission takes submissions to the gate. Concurrent submissions
// share calls to the store (package coalesce); the rule itself is slackgate's,
// and what the store checks are numbers that the rule gave (terms.go). What is
// promised gets tickets (tickets.go); in a flood refusals are given without
// asking (fresh.go).
package admission

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"leeway/broker"
	"leeway/broker/coalesce"
	"leeway/broker/flag"
	"leeway/broker/joblog"
	"leeway/broker/ticket"
	"leeway/slackgate"
)

// Settings are what the gate decides by at one moment.
type Settings struct {
	// Flags are the flags that Class was worked out from.
	Flags *flag.Table
	// Class is what applies to the jobs of a class.
	Class func(name string) ClassSettings
	Pools [slackgate.NumPaths]broker.PoolPolicy
	// Beliefs are what the predictive rule believes of the pools.
	Beliefs [slackgate.NumPaths]slackgate.Belief
	// DispatchMS is how long an idle worker takes to claim a waiting job.
	DispatchMS int64
	// MinReserveMS is the smallest reserve of the classes that count the last
	// byte; HorizonMS the longest slack a job can have.
	MinReserveMS, HorizonMS int64
	// Budgets are the caps that bind the jobs of a producer and of a class;
	// nil: none does. LargestCost is the most that a job may cost on the paid
	// pool, in micro-units; it is asked where a cap binds.
	Budgets     func(producer, class string) [slackgate.NumBudgets]slackgate.Budget
	LargestCost func(Size) int64
	// Quota is what a producer may submit; nil: whatever it likes.
	Quota func(producer string) slackgate.Quota
}

// Size is what the cost of a job depends on.
type Size struct {
	Class string
	// TextBytes counts text and instruction.
	TextBytes       int64
	MaxOutputTokens int
	// LeftMS is the time left until the deadline.
	LeftMS int64
}

// ClassSettings are what the gate decides a class's jobs by.
type ClassSettings struct {
	Policy slackgate.Policy
	// Closed is set for the pools that flags or a drain close to the class.
	Closed [slackgate.NumPaths]bool
	// ReserveMS is a floor over the jobs' reserves.
	ReserveMS int64
}

// Store is the part of the store that admission uses.
type Store interface {
	AdmitInTurn(ctx context.Context, flags *flag.Table, policy [slackgate.NumPaths]broker.PoolPolicy, offers []broker.Offer, turn func() error) (broker.OfferResults, error)
	State(ctx context.Context, policy [slackgate.NumPaths]broker.PoolPolicy) (*broker.GateState, error)
	Get(ctx context.Context, id string) (*broker.Job, error)
	KeyedJob(ctx context.Context, producer string, key broker.IdempotencyKey) (*broker.Job, error)
	TextBytes(ctx context.Context, id string) (int64, error)
	Writable(ctx context.Context) error
	NowMS() int64
}

// Observer hears of every decision.
type Observer interface {
	Decided(job *broker.Submission, v *broker.Verdict)
}

// Options configure an Admitter. All fields are required.
type Options struct {
	Store    Store
	Tickets  *ticket.Queue
	Settings func() Settings
	// RefreshFlags reads the flags anew, for the next Settings.
	RefreshFlags func(ctx context.Context) error
	Observer     Observer
	Log          *slog.Logger
}

// Bounds of the calls to the store that submissions share.
const (
	maxJobs  = 128
	maxBytes = 8 << 20
	// maxQueue is how many submissions may wait for their turn.
	maxQueue = 64 * maxJobs
)

// Admitter decides submissions. Run, once, must be running for Submit to
// return; after it has ended every submission is ErrUnavailable.
type Admitter struct {
	Options
	calls *coalesce.Caller[*pending, broker.OfferResults]
	owed  owed
	view  atomic.Pointer[view]
	trips trips
	fresh fresh
}

// pending is a job on its way through the gate: a submission, or a job on record
// that is offered again.
type pending struct {
	job       *broker.Submission
	noJob     bool          // it only counts in its producer's rate
	reserveMS int64         // with what the flags make of it
	again     *broker.Again // set when a job on record is offered again
	lost      bool          // then: its pool has no capacity
	textBytes int64         // then: how long its text is, if that matters
	class     ClassSettings // what it was decided by
	limits    func(producer string) slackgate.Quota
	offer     broker.Offer

	// One of these is what came of it.
	verdict broker.Verdict
	same    string // the job that the idempotency key named already
	err     error  // why there is no verdict
}

// onRecord reports whether the job was admitted before.
func (p *pending) onRecord() bool { return p.again != nil }

// New returns an admitter.
func New(o Options) *Admitter {
	a := &Admitter{Options: o}
	a.calls = coalesce.New(coalesce.Options[*pending, broker.OfferResults]{
		Send: func(jobs []*pending, turn func() error) (broker.OfferResults, error) {
			// Every call to the store has its own bound; the submitters' contexts
			// are theirs alone.
			return a.offer(context.Background(), jobs, turn)
		},
		Deal:         a.decide,
		Failed:       a.failed,
		FailsWaiting: true,
		Gone:         broker.ErrUnavailable,
		Size:         func(p *pending) int { return len(p.job.Text) },
		Ordered:      func(p *pending) bool { return p.noJob || p.job.Place.Batch != "" },
		MostRequests: maxJobs, MostBytes: maxBytes, MostQueued: maxQueue,
	})
	return a
}

// Run decides queued submissions until ctx is done; what is queued then is
// still decided.
func (a *Admitter) Run(ctx context.Context) error {
	defer a.owed.writer.Wait()
	a.calls.Run(ctx)
	a.tell(context.Background())
	return nil
}

// Submit offers a job to the gate and returns its verdict. A refusal is a
// verdict, not an error; the error says why the gate could not decide
// (ErrUnavailable), and the verdict then carries its reason too.
func (a *Admitter) Submit(ctx context.Context, job *broker.Submission) (broker.Verdict, error) {
	return a.Offer(ctx, job).Wait(ctx)
}

// Offered is a submission on its way through the gate.
type Offered struct {
	a     *Admitter
	p     *pending
	entry *coalesce.Entry[*pending] // nil: it has its verdict
}

// Offer queues a job for the gate. Lines of batches that are offered one after
// the other are decided in that order. Wait must be called on what it returns.
func (a *Admitter) Offer(ctx context.Context, job *broker.Submission) Offered {
	p := &pending{job: job, reserveMS: job.ReserveMS}
	if a.calls.Running() && a.refuseFresh(p) {
		return Offered{a, p, nil}
	}
	return Offered{a, p, a.calls.Add(ctx, p)}
}

// Charge has what a producer sent, and what is no job, count in its rate like a
// job, in order with lines of batches. The verdict is empty unless the producer
// submits faster than it may. Wait must be called on what it returns.
func (a *Admitter) Charge(ctx context.Context, producer string) Offered {
	job := &broker.Submission{Spec: broker.Spec{Producer: producer}, DeadlineInMS: time.Hour.Milliseconds(), ReceivedAt: time.Now()}
	p := &pending{job: job, noJob: true}
	return Offered{a, p, a.calls.Add(ctx, p)}
}

// Wait returns the verdict. It waits for the store's answer even when ctx
// ends: the promise may be on record by then, and breaking it is not the
// caller's to decide. The store bounds the wait.
func (o Offered) Wait(ctx context.Context) (broker.Verdict, error) {
	var err error
	if o.entry != nil {
		err = o.entry.Wait()
	}
	a, p, job := o.a, o.p, o.p.job
	if errors.Is(p.err, errLate) { // once: it may have been a pause
		p.err = nil
		err = a.calls.Add(ctx, p).Wait()
	}
	switch err = cmp.Or(err, p.err); {
	case errors.Is(err, broker.ErrKeyConflict), errors.Is(err, broker.ErrBatchCancelled):
		return broker.Verdict{}, err // bad input: nothing was decided
	case err != nil && p.noJob:
		return broker.Verdict{}, err
	case err != nil:
		p.verdict = a.refuse(job, p.reserveMS)
	case p.same != "":
		return a.repeated(ctx, p.same)
	case p.noJob && p.verdict.Limit != slackgate.LimitRate:
		return broker.Verdict{}, nil
	}
	v := &p.verdict
	a.Observer.Decided(job, v)
	if !v.Admitted() {
		elapsed := time.Since(job.ReceivedAt).Milliseconds()
		joblog.Rejected(ctx, a.Log, job, v, v.NowMS-elapsed, elapsed)
	}
	return *v, err
}

// repeated is the verdict that a job got when it was submitted first.
func (a *Admitter) repeated(ctx context.Context, id string) (broker.Verdict, error) {
	view, err := a.Store.Get(ctx, id)
	if err != nil {
		return broker.Verdict{}, err
	}
	return firstVerdict(view), nil
}

// Known is the verdict of the job that a producer's key is bound to under the
// same body, for a submission that could not be read as a job this time: an
// instant in it may have passed since. ErrNotFound: there is none.
func (a *Admitter) Known(ctx context.Context, producer string, key broker.IdempotencyKey) (broker.Verdict, error) {
	view, err := a.Store.KeyedJob(ctx, producer, key)
	if err != nil {
		return broker.Verdict{}, err
	}
	return firstVerdict(view), nil
}
