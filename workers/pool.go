// Package workers runs admitted jobs: one asynq server for each pool, whose
// tickets become claims on the most urgent waiting job.
package workers

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/broker/background"
	"leeway/broker/coalesce"
	"leeway/broker/store"
	"leeway/broker/ticket"
	"leeway/slackgate"
	"leeway/workers/attempt"
)

// Causes for which a job in flight is stopped, beside its deadline.
var (
	errLeaseLost = errors.New("the lease went to another worker")
	errCancelled = errors.New("the producer cancelled the job")
	errStopping  = errors.New("the worker is stopping")
)

// Observer hears what a pool measures.
type Observer interface {
	Claimed(path slackgate.Path, queueWaitMS int64)
	FirstByte(path slackgate.Path, ms int64)
}

// Shard is one shard of a pool, with its own queue and its part of the slots.
type Shard struct {
	Store   store.Worker
	Tickets *ticket.Queue
	// Slots is how many jobs this worker runs at once; Limit is the shard's bound
	// over all workers.
	Slots, Limit int
}

// Options configure a Pool. All fields are required unless they say
// otherwise.
type Options struct {
	Path slackgate.Path
	// Shards are those of the deployment that this worker serves; at least one.
	Shards []Shard
	// Attempts are the pool's backends and how they are tried. OnState is the
	// pool's own.
	Attempts attempt.Config
	// BackendP95 is a backend's measured first-byte p95 now.
	BackendP95 func(name string) time.Duration
	// Home is the deployment's first shard: what concerns no job lies there.
	Home store.Worker
	// Redis is asynq's connection.
	Redis redis.UniversalClient
	// FirstByteP95 is the pool's first-byte p95 now.
	FirstByteP95 func() int64
	// HoldP95 is the pool's hold p95 now; 0: the last byte is not promised.
	HoldP95 func() int64
	// Remeasure reads what FirstByteP95, HoldP95 and BackendP95 go by, unless that
	// was done or tried since an instant.
	Remeasure func(ctx context.Context, since time.Time) error
	// Unmeasured reports whether nothing but a probe may show how the pool is: it is
	// closed by its own measurement to every class or, if this worker is idle, its
	// p95s are not identified, which may close it to the jobs that come.
	Unmeasured func(idle bool) bool
	// SystemPrompt is what a class has its backends told before the text.
	SystemPrompt func(class string) string
	// Reoffer offers a claimed job to the gate once more; see
	// admission.Admitter.
	Reoffer func(ctx context.Context, c *broker.Claim) (bool, error)
	// FallbackEnabled is the flag FALLBACK_ENABLED for a claimed job.
	FallbackEnabled func(ctx context.Context, c *broker.Claim) bool
	Observer        Observer
	// Stopped is called once the pool has stopped.
	Stopped    func()
	Background *background.Group
	Log        *slog.Logger

	// Poll is how often an idle pool looks for a ticket that it was not told of.
	// Defaults to 10 ms.
	Poll time.Duration
	// Lease is how long a claim holds without a renewal. Defaults to 3 s.
	Lease time.Duration
	// Heartbeat is how often the worker shows that it lives. Defaults to 1 s.
	Heartbeat time.Duration
	// Grace is how long Stop lets jobs in flight run on. Defaults to 30 s.
	Grace time.Duration
}

// forgetAfter is how many heartbeats a worker may miss, times ten.
const forgetAfter = 25

// Pool is this process's share of one pool.
type Pool struct {
	Options
	runner    *attempt.Runner
	id        string // names this worker
	consumers []*consumer

	loops    context.Context // of the pool's loops
	endLoops context.CancelFunc
	base     context.Context // ends, with errStopping, when jobs must be handed back
	abort    context.CancelCauseFunc
	// booking ends when nothing more can be booked; later than base.
	booking    context.Context
	endBooking context.CancelFunc
	inFlight   sync.WaitGroup
	leaving    atomic.Bool

	takenOut map[string]bool  // backends taken out by order; only syncBackends uses it
	putBack  map[string]int64 // when they were last put back by order; likewise
	running  sync.Map         // by job id, the context.CancelCauseFunc of each
}

// consumer takes the jobs of one shard.
type consumer struct {
	*Pool

	shard  Shard
	worker broker.Worker
	server *asynq.Server
	steps  *coalesce.Caller[*broker.Step, struct{}]
	wakes  chan struct{} // told of tickets
	shows  chan struct{} // told that the backends' states have changed

	showing sync.Mutex // held while the gate is told of the worker's slots
}

// New returns a pool that does nothing yet, or a [broker.FieldError].
func New(o Options) (*Pool, error) {
	o.Poll = cmp.Or(o.Poll, 10*time.Millisecond)
	o.Lease = cmp.Or(o.Lease, 3*time.Second)
	o.Heartbeat = cmp.Or(o.Heartbeat, time.Second)
	o.Grace = cmp.Or(o.Grace, 30*time.Second)
	p := &Pool{
		Options: o, id: uuid.NewString(), takenOut: map[string]bool{}, putBack: map[string]int64{},
	}
	o.Attempts.OnState, o.Attempts.Doubt = p.onState, p.doubt
	var err error
	if p.runner, err = attempt.NewRunner(o.Attempts); err != nil {
		return nil, err
	}
	p.base, p.abort = context.WithCancelCause(context.Background())
	p.booking, p.endBooking = context.WithCancel(context.Background())
	p.loops, p.endLoops = context.WithCancel(context.Background())
	for _, s := range o.Shards {
		p.consumers = append(p.consumers, p.consumer(s))
	}
	return p, nil
}

// Start begins to take tickets. It is called once; Stop must be called then.
func (p *Pool) Start() {
	// What operators have ordered holds from the first job on.
	p.syncBackends(context.Background())
	for _, c := range p.consumers {
		// The first beat may fail with Redis away; the next one will not.
		_ = c.show(context.Background())
		// For as long as there is something to book: Stop ends it.
		p.Background.Go("steps "+p.Path.String(), func(context.Context) error { c.steps.Run(p.loops); return nil })
		p.loop("heartbeat", c.heartbeat)
		p.loop("cancels", c.cancels)
	}
	p.loop("backends", func(ctx context.Context) error { return every(ctx, syncEvery, p.syncBackends) })
	p.loop("probes", func(ctx context.Context) error { return every(ctx, ProbeEvery, p.probes) })
	for _, c := range p.consumers {
		p.loop("tickets", func(ctx context.Context) error { return c.shard.Tickets.Listen(ctx, p.Path, c.wakes) })
		if err := c.server.Start(asynq.HandlerFunc(c.handle)); err != nil { // only of one started before
			p.Background.Fail("asynq "+p.Path.String(), err)
		}
	}
}

// consumer makes ready to take a shard's tickets.
func (p *Pool) consumer(s Shard) *consumer {
	wakes := make(chan struct{}, 1)
	return &consumer{
		Pool: p, shard: s, wakes: wakes, shows: make(chan struct{}, 1), steps: p.shareSteps(s),
		worker: broker.Worker{ID: p.id, Path: p.Path, Slots: s.Slots},
		server: asynq.NewServerFromRedisClient(waitingClient{p.Redis, s.Tickets.PendingKey(p.Path), wakes, p.Poll}, asynq.Config{
			Concurrency:       s.Slots,
			Queues:            map[string]int{s.Tickets.Name(p.Path): 1},
			TaskCheckInterval: asynqPause,
			// By the time asynq is told to stop, the pool's own jobs have ended or
			// were handed back.
			ShutdownTimeout: time.Second,
			Logger:          asynqLog{p.Log, new(atomic.Int64)},
			LogLevel:        asynq.WarnLevel,
		}),
	}
}

// loop runs one in the background until the process or the pool ends.
func (p *Pool) loop(name string, run func(context.Context) error) {
	p.Background.Go(name+" "+p.Path.String(), func(group context.Context) error {
		ctx, cancel := context.WithCancel(group)
		defer cancel()
		defer context.AfterFunc(p.loops, cancel)()
		return run(ctx)
	})
}

// every calls f each d until ctx ends.
func every(ctx context.Context, d time.Duration, f func(context.Context)) error {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			f(ctx)
		}
	}
}

// What a stop may take beyond Grace, whatever Redis does: for booking, and for
// asynq's own end. The rest of a process's stop is bounded by calls' timeouts.
const (
	bookStopping  = 3 * time.Second
	asynqStopping = 2 * time.Second
)

// Stop takes no more jobs, lets those in flight end for up to Grace or until
// ctx is done, and hands back the rest: they keep their promise and their
// place. What cannot be booked within a few seconds then is logged in full.
//
// It reports whether all has ended. If not, with Redis away, asynq still waits
// for it: its connection must stay open, because asynq panics when it is closed
// under its subscriber.
func (p *Pool) Stop(ctx context.Context) (ended bool) {
	p.leaving.Store(true)
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		p.eachConsumer(func(c *consumer) {
			// First: until asynq has ended its look for tickets nothing is claimed either.
			if err := c.show(context.WithoutCancel(ctx)); err != nil {
				p.Log.Warn("worker could not sign off; it is forgotten when its heartbeat lapses", "path", p.Path.String(), "error", err)
			}
			c.server.Stop()
		})
		p.inFlight.Wait()
	}()
	within(ctx, idle, p.Grace)
	p.abort(errStopping)
	// What was cut is booked now, and what ended before and could not be.
	within(context.Background(), idle, bookStopping)
	p.endBooking()
	shut := make(chan struct{})
	go func() {
		defer close(shut)
		<-idle
		p.eachConsumer(func(c *consumer) { c.server.Shutdown() })
	}()
	// With Redis away asynq tries to sign off each ticket, one after the other.
	ended = within(context.Background(), shut, asynqStopping)
	p.endLoops()
	p.Stopped()
	return ended
}

// eachConsumer calls f for all consumers at once.
func (p *Pool) eachConsumer(f func(c *consumer)) {
	var wg sync.WaitGroup
	for _, c := range p.consumers {
		wg.Go(func() { f(c) })
	}
	wg.Wait()
}

// within waits for done, for d at most or until ctx ends, and reports whether it
// came.
func within(ctx context.Context, done <-chan struct{}, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// show has the gate count the worker's slots, or not: one that is leaving or
// has no backend to call offers none, because the gate must not promise what
// would be dropped. One show is under way at a time, so that none that began
// before the worker left comes after.
func (c *consumer) show(ctx context.Context) error {
	c.showing.Lock()
	defer c.showing.Unlock()
	if !c.mayClaim() {
		return c.shard.Store.Leave(ctx, c.worker)
	}
	return c.shard.Store.Beat(ctx, c.worker, c.Heartbeat*forgetAfter/10)
}

// shortHold is how long a backend may have asked to be left alone without its
// worker ceasing to offer slots for it.
const shortHold = 2 * time.Second

// callable reports whether any backend may be called now, or very soon.
func (p *Pool) callable() bool {
	return slices.ContainsFunc(p.runner.Upstreams(), func(u *attempt.Upstream) bool {
		switch s := u.State(); s.State {
		case broker.BackendClosed, broker.BackendHalfOpen:
			return true
		case broker.BackendHeld:
			return s.RetryInMS <= shortHold.Milliseconds()
		}
		return false
	})
}

// heartbeatAgain is the part of a heartbeat after which one that could not be
// written is tried again: the second in a row that fails would have the worker
// forgotten.
const heartbeatAgain = 10

func (c *consumer) heartbeat(ctx context.Context) error {
	failed := false
	pause := time.NewTimer(c.Heartbeat)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		case <-c.shows:
		}
		if c.leaving.Load() {
			return nil
		}
		begun := time.Now()
		err := c.show(ctx)
		if err != nil && ctx.Err() == nil && !failed {
			c.Log.Warn("heartbeat not written", "path", c.Path.String(), "error", err)
		}
		next := c.Heartbeat - min(time.Since(begun), c.Heartbeat)
		if failed = err != nil; failed {
			next = c.Heartbeat / heartbeatAgain
		}
		pause.Reset(next)
	}
}

// cancels cuts running jobs whose producer took them back. A notice lost while
// Redis is away is made up for by the next renewal.
func (c *consumer) cancels(ctx context.Context) error {
	ids, closeSub := c.shard.Store.Cancels(ctx)
	defer func() { _ = closeSub() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case id, ok := <-ids:
			if !ok {
				return nil
			}
			if v, ok := c.running.Load(id); ok {
				if cancel, ok := v.(context.CancelCauseFunc); ok {
					cancel(errCancelled)
				}
			}
		}
	}
}
