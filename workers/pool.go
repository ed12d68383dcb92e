// Package workers runs admitted jobs: one asynq server for each pool, whose
// tickets become claims on the most urgent waiting job.
package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/broker/background"
	"leeway/broker/joblog"
	"leeway/broker/redisstore"
	"leeway/broker/shard"
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

// Prompt is how a class's jobs are put to a backend.
type Prompt struct {
	System string
}

// Observer hears what a pool measures.
type Observer interface {
	Claimed(path slackgate.Path, queueWaitMS int64)
	FirstByte(path slackgate.Path, ms int64)
}

// Shard is one shard of a pool, with its own queue and its part of the slots.
type Shard struct {
	Store   *redisstore.Store
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
	// Store is that of all shards.
	Store *shard.Store
	// Redis is asynq's connection.
	Redis redis.UniversalClient
	// FirstByteP95 is the pool's first-byte p95 now.
	FirstByteP95 func() int64
	// HoldP95 is the pool's hold p95 now; 0: the last byte is not promised.
	HoldP95 func() int64
	// LongestSlack is the longest slack that jobs of the classes which may use
	// the pool have by default: with a p95 beyond it, nothing is admitted.
	LongestSlack func() int64
	// Prompt gives a class's prompt.
	Prompt func(class string) Prompt
	// Rescue offers a claimed job to the gate once more; see
	// admission.Admitter.
	Rescue func(ctx context.Context, c *broker.Claim) (bool, error)
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
	runner *attempt.Runner
	id     string // names this worker
	lanes  []*lane

	loops    func()          // ends the pool's loops
	base     context.Context // ends, with errStopping, when jobs must be handed back
	abort    context.CancelCauseFunc
	inFlight sync.WaitGroup
	leaving  atomic.Bool

	takenOut map[string]bool // backends taken out by order; inStep is its own

	mu      sync.Mutex // guards running
	running map[string]context.CancelCauseFunc
}

// lane is where a pool takes the jobs of one shard from.
type lane struct {
	*Pool

	shard  Shard
	worker redisstore.Worker
	server *asynq.Server
	wakes  chan struct{} // told of tickets
}

// Start begins to take tickets. Stop must be called.
func Start(o Options) (*Pool, error) {
	orDefault(&o.Poll, 10*time.Millisecond)
	orDefault(&o.Lease, 3*time.Second)
	orDefault(&o.Heartbeat, time.Second)
	orDefault(&o.Grace, 30*time.Second)
	p := &Pool{
		Options: o, id: uuid.NewString(),
		running: map[string]context.CancelCauseFunc{}, takenOut: map[string]bool{},
	}
	o.Attempts.OnState = p.onState
	var err error
	if p.runner, err = attempt.NewRunner(o.Attempts); err != nil {
		return nil, err
	}
	p.base, p.abort = context.WithCancelCause(context.Background())
	for _, s := range o.Shards {
		p.lanes = append(p.lanes, p.lane(s))
	}
	loopCtx, endLoops := context.WithCancel(context.Background())
	p.loops = endLoops
	// What operators have ordered holds from the first job on.
	if err := p.inStep(context.Background()); err != nil {
		return nil, err
	}
	for _, l := range p.lanes {
		// The first beat may fail with Redis away; the next one will not.
		_ = l.beat(context.Background())
		o.Background.Go("heartbeat "+o.Path.String(), until(loopCtx, l.heartbeat))
	}
	o.Background.Go("cancels "+o.Path.String(), until(loopCtx, p.cancels))
	o.Background.Go("fleet "+o.Path.String(), until(loopCtx, p.fleet))
	o.Background.Go("probes "+o.Path.String(), until(loopCtx, p.probes))
	for _, l := range p.lanes {
		o.Background.Go("tickets "+o.Path.String(), until(loopCtx, l.listen))
		if err := l.server.Start(asynq.HandlerFunc(l.handle)); err != nil {
			return nil, fmt.Errorf("workers: %s: %w", o.Path, err)
		}
	}
	return p, nil
}

// lane makes ready to take a shard's tickets.
func (p *Pool) lane(s Shard) *lane {
	wakes := make(chan struct{}, 1)
	return &lane{
		Pool: p, shard: s, wakes: wakes,
		worker: redisstore.Worker{ID: p.id, Path: p.Path, Slots: s.Slots},
		server: asynq.NewServerFromRedisClient(patient{p.Redis, s.Tickets.PendingKey(p.Path), wakes, p.Poll}, asynq.Config{
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

// listen is told of the shard's tickets.
func (l *lane) listen(ctx context.Context) error { return l.shard.Tickets.Listen(ctx, l.Path, l.wakes) }

// of is the lane that a claimed job came by.
func (p *Pool) of(c *broker.Claim) *lane {
	for _, l := range p.lanes {
		if l.shard.Store == p.Store.Of(c.ID) {
			return l
		}
	}
	return p.lanes[0] // no job comes by a shard that is not served
}

// until runs a loop until either its group or the pool ends.
func until(pool context.Context, loop func(context.Context) error) func(context.Context) error {
	return func(group context.Context) error {
		ctx, cancel := context.WithCancel(group)
		defer cancel()
		defer context.AfterFunc(pool, cancel)()
		return loop(ctx)
	}
}

func orDefault(d *time.Duration, def time.Duration) {
	if *d == 0 {
		*d = def
	}
}

// Stop takes no more jobs, lets those in flight end for up to Grace or until
// ctx is done, and hands back the rest: they keep their promise and their
// place.
func (p *Pool) Stop(ctx context.Context) {
	p.leaving.Store(true)
	for _, l := range p.lanes {
		l.server.Stop()
		if err := l.shard.Store.Leave(context.WithoutCancel(ctx), l.worker); err != nil {
			p.Log.Warn("worker could not sign off; it is forgotten when its heartbeat lapses", "path", p.Path.String(), "error", err)
		}
	}
	ended := make(chan struct{})
	go func() {
		p.inFlight.Wait()
		close(ended)
	}()
	grace := time.NewTimer(p.Grace)
	defer grace.Stop()
	select {
	case <-ended:
	case <-grace.C:
	case <-ctx.Done():
	}
	p.abort(errStopping)
	<-ended
	for _, l := range p.lanes {
		l.server.Shutdown()
	}
	p.loops()
	p.Stopped()
}

func (l *lane) beat(ctx context.Context) error {
	return l.shard.Store.Beat(ctx, l.worker, l.Heartbeat*forgetAfter/10)
}

// shortHold is how long a backend may have asked to be left alone without its
// worker ceasing to offer slots for it.
const shortHold = 2 * time.Second

// callable reports whether any backend may be called now, or very soon.
func (p *Pool) callable() bool {
	for _, b := range p.runner.State() {
		switch b.State {
		case attempt.StateClosed, attempt.StateHalfOpen:
			return true
		case attempt.StateHeld:
			if b.RetryIn <= shortHold {
				return true
			}
		case attempt.StateOpen, attempt.StateOut:
		}
	}
	return false
}

// heartbeatAgain is the part of a heartbeat after which one that could not be
// written is tried again: the second in a row that fails would have the worker
// forgotten.
const heartbeatAgain = 10

func (l *lane) heartbeat(ctx context.Context) error {
	p := l.Pool
	next := time.NewTimer(p.Heartbeat)
	defer next.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
		if p.leaving.Load() {
			return nil
		}
		// A worker that has no backend to call offers no slots: the gate must
		// not promise what would be dropped.
		show := l.beat
		if !p.callable() {
			show = func(ctx context.Context) error { return l.shard.Store.Leave(ctx, l.worker) }
		}
		begun := time.Now()
		err := show(ctx)
		if err != nil && ctx.Err() == nil && !failed {
			p.Log.Warn("heartbeat not written", "path", p.Path.String(), "error", err)
		}
		if failed = err != nil; failed {
			next.Reset(p.Heartbeat / heartbeatAgain)
		} else {
			next.Reset(p.Heartbeat - min(time.Since(begun), p.Heartbeat))
		}
	}
}

// cancels cuts running jobs whose producer took them back. A notice lost while
// Redis is away is made up for by the next renewal.
func (p *Pool) cancels(ctx context.Context) error {
	ids, closeSub := p.Store.Cancels(ctx)
	defer func() { _ = closeSub() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case id, ok := <-ids:
			if !ok {
				return nil
			}
			p.mu.Lock()
			if cancel := p.running[id]; cancel != nil {
				cancel(errCancelled)
			}
			p.mu.Unlock()
		}
	}
}

// ticketFor is how long a slot goes on claiming under one ticket. asynq gives a
// ticket an hour beyond the longest deadline, after which it would take the
// slot for free while the handler still runs.
const ticketFor = 30 * time.Minute

// handle turns a ticket into claims: while jobs wait, the slot takes one after
// the other, without going back to asynq for each. It never returns an error:
// tickets are interchangeable, and one spent for nothing is made up for by
// whoever sees a job waiting without one.
func (l *lane) handle(context.Context, *asynq.Task) error {
	l.inFlight.Add(1)
	defer l.inFlight.Done()
	l.Background.Guard("ticket "+l.Path.String(), func() {
		for began := time.Now(); l.takeOne(); {
			if time.Since(began) > ticketFor {
				l.topUp()
				return
			}
		}
	})
	return nil
}

// takeOne claims a job and runs it. It reports whether there may be another:
// with nothing waiting none is needed, and with every slot of the pool taken
// those are the ones to come back.
func (l *lane) takeOne() (again bool) {
	p := l.Pool
	if p.leaving.Load() {
		return false
	}
	claim, met, err := l.shard.Store.Claim(p.base, p.Path, l.shard.Limit, p.Lease)
	for _, gone := range met.Lost {
		joblog.Lost(p.base, p.Log, gone)
	}
	for _, id := range met.Ended {
		p.logEnd(id)
	}
	switch {
	case err != nil && claim == nil:
		p.Log.Warn("claim failed", "path", p.Path.String(), "error", err)
		return false
	case err != nil:
		p.Log.Error("claimed job cannot be read", "job_id", claim.ID, "error", err)
		p.finish(claim, &broker.Finish{Outcome: broker.OutcomeFailed, Cause: broker.CauseRecordLost, Reason: "record_lost", FirstByteMS: -1}, nil)
		return true
	case claim == nil:
		return false // nothing waits, or every slot of the pool is taken
	}
	p.run(claim)
	return true
}

// topUp writes the tickets that free slots are short of.
func (l *lane) topUp() {
	var policy [slackgate.NumPaths]redisstore.PoolPolicy
	policy[l.Path].Limit = l.shard.Limit
	st, err := l.shard.Store.State(l.base, policy)
	if err == nil {
		_, err = l.shard.Tickets.TopUp(l.base, l.Path, &st.Pools[l.Path])
	}
	if err != nil && l.base.Err() == nil {
		l.Log.Warn("tickets not topped up", "path", l.Path.String(), "error", err)
	}
}

// asynqLog passes asynq's log on, as warnings at most and not more than one a
// second: with Redis away asynq complains at every poll, and what matters of it
// shows as warnings of ours.
type asynqLog struct {
	log  *slog.Logger
	last *atomic.Int64 // Unix seconds of the last warning
}

func (l asynqLog) warn(args ...any) {
	now := time.Now().Unix() //nolint:forbidigo // how often to log, in this process
	if l.last.Swap(now) != now {
		l.log.Warn("asynq", "message", fmt.Sprint(args...))
	}
}

// Debug implements asynq.Logger, as do the others.
func (l asynqLog) Debug(args ...any) { l.log.Debug("asynq", "message", fmt.Sprint(args...)) }
func (l asynqLog) Info(args ...any)  { l.log.Debug("asynq", "message", fmt.Sprint(args...)) }
func (l asynqLog) Warn(args ...any)  { l.warn(args...) }
func (l asynqLog) Error(args ...any) { l.warn(args...) }
func (l asynqLog) Fatal(args ...any) { l.warn(args...) }
