// Package admission takes submissions to the gate. Concurrent submissions
// share calls to the store; the rule itself is slackgate's, and what the
// store checks are numbers that the rule gave.
package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"leeway/broker"
	"leeway/broker/faultpoint"
	"leeway/broker/flag"
	"leeway/broker/joblog"
	"leeway/broker/redisstore"
	"leeway/broker/ticket"
	"leeway/slackgate"
)

// Settings are what the gate decides by at one moment.
type Settings struct {
	// Flags are the flags that Class was worked out from.
	Flags *flag.Table
	// Class is what holds for the jobs of a class.
	Class func(name string) ClassSettings
	Pools [slackgate.NumPaths]redisstore.PoolPolicy
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
	AdmitInTurn(ctx context.Context, flags *flag.Table, policy [slackgate.NumPaths]redisstore.PoolPolicy, offers []redisstore.Offer, turn func() error) (redisstore.Admitted, error)
	State(ctx context.Context, policy [slackgate.NumPaths]redisstore.PoolPolicy) (*redisstore.GateState, error)
	Get(ctx context.Context, id string) (*broker.View, error)
	KeyedJob(ctx context.Context, producer string, key broker.IdempotencyKey) (*broker.View, error)
	TextBytes(ctx context.Context, id string) (int64, error)
	Writable(ctx context.Context) error
	NowMS() int64
}

// Observer hears of every decision.
type Observer interface {
	Decided(job *broker.Job, v *broker.Verdict)
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

// Admitter decides submissions. Run, once, must be running for Submit to
// return; after it has ended every submission is ErrUnavailable.
type Admitter struct {
	Options
	queue   chan *pending
	stopped chan struct{} // closed when Run has ended
	owed    owed
	view    atomic.Pointer[view]
	trips   trips
	fresh   fresh
}

type pending struct {
	job       *broker.Job
	reserve   int64         // as submitted, before any flag
	held      *broker.Claim // set when a claimed job is offered again
	same      string        // the job that the idempotency key named already
	move      bool          // set when a waiting job leaves a draining pool
	textBytes int64         // then: how long its text is
	class     ClassSettings // what it was decided by
	limits    func(producer string) slackgate.Quota
	offer     redisstore.Offer
	verdict   broker.Verdict
	ticket    bool  // set when it needs one
	err       error // until there is a verdict: why there is none
	done      chan struct{}
}

// New returns an admitter.
func New(o Options) *Admitter {
	return &Admitter{Options: o, queue: make(chan *pending, maxQueue), stopped: make(chan struct{})}
}

// Submit offers a job to the gate and returns its verdict. A refusal is a
// verdict, not an error; the error says why the gate could not decide
// (ErrUnavailable), and the verdict then carries its reason too.
func (a *Admitter) Submit(ctx context.Context, job *broker.Job) (broker.Verdict, error) {
	return a.Offer(ctx, job).Wait(ctx)
}

// Offered is a submission on its way through the gate.
type Offered struct {
	a *Admitter
	p *pending
}

// Offer queues a job for the gate. Lines of batches that are offered one after
// the other are decided in that order. Wait must be called on what it returns.
func (a *Admitter) Offer(ctx context.Context, job *broker.Job) Offered {
	p := &pending{job: job, reserve: job.ReserveMS, err: broker.ErrUnavailable}
	if a.running() && a.refuseFresh(p) {
		p.done = closed
		return Offered{a, p}
	}
	p.done = make(chan struct{})
	select {
	case a.queue <- p:
	case <-ctx.Done():
		close(p.done)
	case <-a.stopped:
		close(p.done)
	}
	return Offered{a, p}
}

// running reports whether Run has not ended yet.
func (a *Admitter) running() bool {
	select {
	case <-a.stopped:
		return false
	default:
		return true
	}
}

// Wait returns the verdict. It waits for the store's answer even when ctx
// ends: the promise may be on record by then, and breaking it is not the
// caller's to decide. The store bounds the wait.
func (o Offered) Wait(ctx context.Context) (broker.Verdict, error) {
	a, p, job := o.a, o.p, o.p.job
	select {
	case <-p.done:
	case <-a.stopped: // whatever Run decided, it had decided before
	}
	switch {
	case errors.Is(p.err, broker.ErrKeyConflict), errors.Is(p.err, broker.ErrBatchCancelled):
		return broker.Verdict{}, p.err // bad input: nothing was decided
	case p.err == nil && p.same != "":
		return a.repeated(ctx, p.same)
	case p.err != nil:
		p.verdict = a.refuse(job)
	}
	v := &p.verdict
	a.Observer.Decided(job, v)
	if !v.Admitted() {
		elapsed := time.Since(job.ReceivedAt).Milliseconds()
		joblog.Rejected(ctx, a.Log, job, v, v.NowMS-elapsed, elapsed)
		return *v, p.err
	}
	return *v, nil
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

func firstVerdict(view *broker.View) broker.Verdict {
	v := broker.Verdict{
		JobID: view.ID, NowMS: view.AcceptedMS, DeadlineMS: view.DeadlineAtMS, ReserveMS: view.ReserveMS, Repeated: true,
		Result: slackgate.Result{
			Path: view.Path, Reason: slackgate.Reason(view.Path.String()),
			SlackMS: view.Admission.SlackMS, PredictedWaitMS: view.Admission.PredictedWaitMS,
		},
	}
	v.NeedMS[view.Path], v.QueueAgeMS[view.Path] = view.Admission.NeedMS, view.Admission.QueueAgeMS
	return v
}

// refuse is the verdict when the gate cannot know.
func (a *Admitter) refuse(job *broker.Job) broker.Verdict {
	return broker.Verdict{
		JobID:     job.ID,
		Result:    slackgate.Result{Reason: slackgate.ReasonGateUnavailable, SlackMS: job.DeadlineMS - job.ReserveMS},
		NowMS:     a.Store.NowMS(),
		ReserveMS: job.ReserveMS,
	}
}

// errDisagree is logged when the script's comparisons and the rule part ways.
var errDisagree = errors.New("the store's check and the gate's rule disagree")

// flagTries is how often numbers are worked out when a flag was changed while
// they were on their way, or their turn was long in coming.
const flagTries = 3

// offer works out the bounds of each job and has the store check them when turn
// says so.
func (a *Admitter) offer(ctx context.Context, batch []*pending, turn func() error) (redisstore.Admitted, error) {
	for range flagTries {
		s := a.Settings()
		if err := a.bound(ctx, &s, batch); err != nil {
			return redisstore.Admitted{}, err
		}
		offers := make([]redisstore.Offer, len(batch))
		for i, p := range batch {
			offers[i] = p.offer
		}
		a.untold(&s.Pools)
		faultpoint.Reach(faultpoint.Promising)
		sent := false
		got, err := a.Store.AdmitInTurn(ctx, s.Flags, s.Pools, offers, func() error {
			err := turn()
			sent = err == nil
			return err
		})
		faultpoint.Reach(faultpoint.Promised)
		switch {
		case errors.Is(err, errStale):
			a.tellAgain(&s.Pools)
			continue
		case err != nil:
			if !sent || broker.TroubleOf(err).NothingDone() {
				a.tellAgain(&s.Pools)
			}
			return got, err
		case got.Stale:
			a.tellAgain(&s.Pools)
			return got, broker.ErrUnavailable
		case !got.FlagsChanged:
			return got, nil
		}
		a.tellAgain(&s.Pools)
		if err := a.RefreshFlags(ctx); err != nil {
			return got, err
		}
	}
	return redisstore.Admitted{}, fmt.Errorf("%w: the flags change faster than they can be read", broker.ErrUnavailable)
}

// bound works out what the pools must satisfy to take each job.
func (a *Admitter) bound(ctx context.Context, s *Settings, batch []*pending) error {
	ladders := false
	for _, p := range batch {
		p.class, p.limits = s.Class(p.job.Class), s.Quota
		if p.held == nil && !p.move { // of a job on record the reserve is fixed
			p.job.ReserveMS = max(p.reserve, p.class.ReserveMS)
		}
		ladders = ladders || p.class.Policy.Rule == slackgate.Predictive
	}
	if ladders {
		v, err := a.trusted(ctx)
		if err != nil {
			return err
		}
		for _, path := range slackgate.Paths {
			s.Pools[path].TakeLadder(&v.pools[path])
		}
	}
	var known slackgate.Snapshot
	for _, path := range slackgate.Paths {
		known.Pools[path] = slackgate.PoolState{
			Limit:          s.Pools[path].Limit,
			FirstByteP95MS: s.Pools[path].FirstByteP95MS,
			Ladder:         s.Pools[path].Ladder,
		}
	}
	for _, p := range batch {
		left := p.job.DeadlineMS - time.Since(p.job.ReceivedAt).Milliseconds()
		slack := left - p.job.ReserveMS
		p.offer = redisstore.Offer{
			Job: p.job, DeadlineMS: left, SlackMS: slack, Miss: slack <= 0 && p.held == nil && !p.move,
			Held: p.held, Move: p.move,
			Bounds: p.bounds(&known, s, slack),
		}
		if s.Budgets != nil {
			p.charge(s)
		}
		if s.Quota != nil && p.held == nil && !p.move {
			p.offer.Quota = s.Quota(p.job.Producer)
		}
		for i := range p.offer.Bounds {
			if b := &p.offer.Bounds[i]; p.class.Closed[b.Path] {
				*b = slackgate.Bound{}
			}
		}
	}
	return nil
}

// bytes is how long text and instruction are; of a job on record that is being
// moved the text is where it was.
func (p *pending) bytes() int64 {
	if p.move {
		return p.textBytes
	}
	return int64(len(p.job.Text) + len(p.job.Instruction))
}

// charge works out what the job may cost, where a budget binds it.
func (p *pending) charge(s *Settings) {
	p.offer.Budgets = s.Budgets(p.job.Producer, p.job.Class)
	for i := range p.offer.Budgets {
		if p.offer.Budgets[i].Set {
			p.offer.CostMicro = s.LargestCost(Size{p.job.Class, p.bytes(), p.job.MaxOutputTokens, p.offer.DeadlineMS})
			return
		}
	}
}

// bounds are what the pools must satisfy for a job with slackMS left. The
// reserve of a job on record stays what it was at its admission; where the
// ladders serve larger ones by now, it is asked for as much more as it must be,
// on the safe side.
func (p *pending) bounds(known *slackgate.Snapshot, s *Settings, slackMS int64) [2]slackgate.Bound {
	job := p.job.Gate(0)
	if more := s.MinReserveMS - job.ReserveMS; (p.held != nil || p.move) && more > 0 &&
		s.MinReserveMS != slackgate.Unbounded && !job.FirstByteOnly {
		job.ReserveMS += more
		slackMS -= more
	}
	return slackgate.Bounds(known, job, p.class.Policy, slackMS)
}

// verdict names the reason and the numbers of one decision from the state the
// script saw when it made it.
func (a *Admitter) verdict(p *pending, got *redisstore.Admitted, i int) broker.Verdict {
	adm := &got.Jobs[i]
	for _, path := range slackgate.Paths {
		adm.Pools[path].Closed = p.class.Closed[path]
	}
	v := verdictOf(p, &slackgate.Snapshot{Pools: adm.Pools, Budgets: adm.Budgets, Quota: adm.Quota}, p.class.Policy, got.NowMS, p.offer.DeadlineMS)
	if v.Path != adm.Path {
		a.Log.Error("gate", "error", errDisagree, "job_id", p.job.ID, "script", adm.Path.String(), "rule", v.Path.String())
		v.Path = adm.Path
		v.Reason = slackgate.ReasonGateUnavailable
		if adm.Path != slackgate.Reject {
			v.Reason = slackgate.Reason(adm.Path.String())
		}
	}
	return v
}

// verdictOf is what the rule says of a job with leftMS to its deadline.
func verdictOf(p *pending, s *slackgate.Snapshot, policy slackgate.Policy, nowMS, leftMS int64) broker.Verdict {
	deadline := nowMS + leftMS
	job := p.job.Gate(deadline)
	job.Spread, job.CostMicro = rand.Float64(), p.offer.CostMicro
	return broker.Verdict{
		JobID: p.job.ID, Result: slackgate.Decide(s, job, policy, nowMS), NowMS: nowMS, DeadlineMS: deadline,
		ReserveMS: p.job.ReserveMS, Quota: s.Quota,
	}
}

// Move offers a waiting job of a pool that is being drained to the class's
// other pool, with the slack it has left. It reports whether that pool took
// it.
func (a *Admitter) Move(ctx context.Context, v *broker.View, to slackgate.Path, nowMS int64) (bool, error) {
	job := broker.Job{
		ID: v.ID, Class: v.Class, Producer: v.Producer, DeadlineMS: v.DeadlineAtMS - nowMS, ReserveMS: v.ReserveMS,
		Prefer: [2]slackgate.Path{to}, FirstByteOnly: v.FirstByteOnly, MaxOutputTokens: v.MaxOutputTokens, ReceivedAt: time.Now(),
	}
	p := &pending{job: &job, move: true}
	if to == slackgate.Paid { // where it may cost something
		var err error
		if p.textBytes, err = a.Store.TextBytes(ctx, v.ID); err != nil {
			return false, err
		}
	}
	return a.again(ctx, p)
}

// Rescue offers a claimed job, which its pool can no longer make, to the paid
// pool, with the slack it has left. It reports whether that pool took it: the
// claim is then void.
func (a *Admitter) Rescue(ctx context.Context, c *broker.Claim) (bool, error) {
	job := c.Job
	job.Prefer = [2]slackgate.Path{slackgate.Paid}
	// What is left is counted from the claim.
	job.DeadlineMS, job.ReceivedAt = c.DeadlineAtMS-c.NowMS, c.ClaimedAt
	return a.again(ctx, &pending{job: &job, held: c})
}

// again offers a job that is on record already.
func (a *Admitter) again(ctx context.Context, p *pending) (bool, error) {
	got, err := a.offer(ctx, []*pending{p}, atOnce)
	if err != nil || got.Jobs[0].Path == slackgate.Reject {
		return false, err
	}
	if got.Jobs[0].Ticket {
		a.putTickets(ctx, got.Jobs[0].Path, 1)
	}
	return true, nil
}

// DryRun says what the gate would answer to a job now, without promising
// anything.
func (a *Admitter) DryRun(ctx context.Context, job *broker.Job) (broker.Verdict, *redisstore.GateState, error) {
	if err := a.RefreshFlags(ctx); err != nil {
		return a.refuse(job), nil, err
	}
	s := a.Settings()
	st, err := a.Store.State(ctx, s.Pools)
	if err != nil {
		return a.refuse(job), nil, err
	}
	class := s.Class(job.Class)
	job.ReserveMS = max(job.ReserveMS, class.ReserveMS)
	snap := slackgate.Snapshot{Pools: st.Pools}
	for _, path := range slackgate.Paths {
		snap.Pools[path].Closed = class.Closed[path]
		st.Pools[path].Closed = class.Closed[path]
	}
	if class.Policy.Rule == slackgate.Predictive {
		v, err := a.trusted(ctx)
		if err != nil {
			return a.refuse(job), nil, err
		}
		for _, path := range slackgate.Paths {
			p := &snap.Pools[path]
			p.Ladder = v.pools[path].Ladder
			// Without a place in the order of its own, it stands behind all.
			p.Ahead = p.Waiting
		}
	}
	deadline := st.NowMS + job.DeadlineMS
	res := slackgate.Decide(&snap, job.Gate(deadline), class.Policy, st.NowMS)
	return broker.Verdict{JobID: job.ID, Result: res, NowMS: st.NowMS, DeadlineMS: deadline, ReserveMS: job.ReserveMS}, st, nil
}
