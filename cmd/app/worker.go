package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/broker/httpapi"
	"leeway/broker/measure"
	"leeway/slackgate"
	"leeway/workers"
	"leeway/workers/attempt"
	"leeway/workers/backend"
)

// Worker is a running worker process: its share of both pools.
type Worker struct {
	*base
	transport   http.RoundTripper
	metricsAddr net.Addr
	leaving     sync.WaitGroup // pools that a reload has replaced

	// hurried ends when Stop's context does.
	hurried context.Context
	hurry   context.CancelFunc

	mu    sync.Mutex // guards pools, between Reload and Stop
	pools map[slackgate.Path]*workers.Pool
}

// StartWorker starts the pools for which this worker offers slots, and its
// metrics listener. Stop must be called.
func StartWorker(o Options) (*Worker, error) {
	b, err := newBase(&o)
	if err != nil {
		return nil, err
	}
	w := &Worker{base: b, transport: o.Transport, pools: map[slackgate.Path]*workers.Pool{}}
	w.hurried, w.hurry = context.WithCancel(context.Background())
	if err := w.start(&o); err != nil {
		_ = w.Stop(context.Background())
		return nil, err
	}
	return w, nil
}

func (w *Worker) start(o *Options) error {
	var err error
	w.metricsAddr, err = w.serve("metrics", o.MetricsListener, w.config().WorkerMetricsListen, httpapi.HTTP(metricsMux(w.base)))
	if err != nil {
		return err
	}
	for _, path := range slackgate.Paths {
		p, err := w.newPool(w.config(), path)
		if err != nil {
			return err
		}
		if p != nil {
			w.pools[path] = p
		}
	}
	if len(w.pools) == 0 {
		return broker.Fieldf("worker", "offers no slots to any pool")
	}
	for _, p := range w.pools {
		p.Start()
	}
	w.metrics.Backends(w.backends)
	return nil
}

// labOverrun is how long a job may wait or a call run beyond the job's deadline:
// not at all but in a lab whose re-check is off, and even there nothing lasts
// for ever.
func labOverrun(cfg *config.Config) time.Duration {
	if cfg.Lab.RecheckOff {
		return 2 * time.Minute
	}
	return 0
}

// newPool makes a pool as configured, not yet started; nil where this worker
// offers it no slots.
func (w *Worker) newPool(cfg *config.Config, path slackgate.Path) (*workers.Pool, error) {
	shards := w.lanes(cfg, path)
	if len(shards) == 0 {
		return nil, nil //nolint:nilnil // there is none to make
	}
	pool := cfg.Pool(path)
	if len(pool.Backends) == 0 {
		return nil, broker.Fieldf("pools."+path.String()+".backends", "is empty: there is nothing to call; name backends there, or write limit: 0 if there is no such pool")
	}
	var callers []*backend.Client
	rc := attempt.Config{Share: pool.FirstByteShare, Cap: ms(pool.FirstByteCapMS), Overrun: labOverrun(cfg)}
	for i := range pool.Backends {
		b := &pool.Backends[i]
		caller, err := NewClient(b, w.transport)
		if err != nil {
			return nil, err
		}
		callers = append(callers, caller)
		rc.Backends = append(rc.Backends, attempt.Backend{
			Caller: caller, P95: ms(b.FirstByteP95MS), Price: func() backend.Price { return backend.Price(*b.PriceAt(w.now())) },
			Options:     func(class string) backend.Options { return backend.Options(w.config().OptionsFor(class, b)) },
			MaxInFlight: b.Limit,
		})
	}
	return workers.New(workers.Options{
		Path: path, Shards: shards, Attempts: rc, Home: w.shards[0].store, Redis: w.rdb,
		BackendP95: func(name string) time.Duration {
			m := w.meter.Get(measure.BackendName(name))
			return time.Duration(m.FirstByte.P95MS * float64(time.Millisecond))
		},
		FirstByteP95:    func() int64 { return w.firstByteP95(path) },
		HoldP95:         func() int64 { return w.holdP95(path) },
		Remeasure:       w.meter.Since,
		Unmeasured:      func(idle bool) bool { return w.unmeasured(path, idle) },
		SystemPrompt:    w.prompt,
		Reoffer:         w.admitter.ReofferClaimed,
		FallbackEnabled: w.fallbackEnabled,
		Observer:        w.metrics,
		Stopped: func() {
			for _, c := range callers {
				c.Close()
			}
		},
		Background: w.background,
		Log:        w.log,
		Poll:       ms(cfg.Worker.PollMS),
		Lease:      ms(cfg.Worker.LeaseMS),
		Heartbeat:  ms(cfg.Worker.HeartbeatMS),
		Grace:      ms(cfg.Worker.ShutdownGraceMS),
	})
}

// backends is how all pools' backends look from this worker.
func (w *Worker) backends() []broker.BackendState {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []broker.BackendState
	for _, p := range w.pools {
		out = append(out, p.Backends()...)
	}
	return out
}

// unmeasured is [workers.Options].Unmeasured. The classes' jobs are taken to have
// their default deadline.
func (w *Worker) unmeasured(path slackgate.Path, idle bool) bool {
	if w.values().Policy == slackgate.Seed {
		return false // measurement closes nothing
	}
	m := w.meter.Get(measure.PoolName(path))
	b := m.Belief()
	if idle && b.State == slackgate.NotIdentified {
		return true
	}
	closed := false
	for _, c := range w.config().Classes {
		if prefer, _ := c.Prefer.Paths(); prefer[0] != path && prefer[1] != path {
			continue
		}
		job := slackgate.Job{ReserveMS: max(*c.ReserveMS, w.config().Gate.ReserveMS), FirstByteOnly: c.Success == config.SuccessFirstByte}
		if b.NeedMS(&job) <= c.DeadlineMS-job.ReserveMS {
			return false
		}
		closed = true
	}
	return closed
}

// prompt is the system prompt of a class.
func (w *Worker) prompt(class string) string {
	c := w.config().Class(class)
	system, err := c.SystemPrompt()
	if err != nil { // checked when the configuration was read
		w.log.Error("prompt cannot be made", "class", class, "error", err)
	}
	return system
}

// NewClient returns a client for a configured backend, with the key that its
// configuration names. A nil transport is one of the client's own. The backend's
// [config.Options] are the caller's to put into each request.
func NewClient(b *config.Backend, transport http.RoundTripper) (*backend.Client, error) {
	key, err := b.Key()
	if err != nil {
		return nil, err
	}
	headers := map[string]backend.Secret{}
	for k, v := range b.Headers {
		headers[k] = backend.Secret(v)
	}
	c, err := backend.New(backend.Config{
		Name: b.Name, Protocol: backend.Protocol(b.Protocol), BaseURL: b.URL, Model: b.Model,
		Key: backend.Secret(key), KeyHeader: b.KeyHeader, Headers: headers, Stall: ms(b.StallMS), Transport: transport,
		Path: b.Options.Path, Query: b.Options.Query, Body: b.Options.Body, LimitField: b.Options.LimitField,
		NoStream: off(b.Options.Stream), NoStreamUsage: off(b.Options.StreamUsage),
	})
	if err != nil {
		return nil, fmt.Errorf("backend %s: %w", b.Name, err)
	}
	return c, nil
}

// off reports whether a switch that is on by default was turned off.
func off(v *bool) bool { return v != nil && !*v }

// fallbackEnabled reads the flag for a class as it stood at a claim.
func (w *Worker) fallbackEnabled(ctx context.Context, c *broker.Claim) bool {
	p := w.partOf(c.ID)
	if c.FlagsVersion != p.flags.Load().Version {
		_ = p.refreshFlags(ctx) // with the store away, what was known last
	}
	return p.values(c.Class).Fallback
}

// now is the store's clock; the host's before the store was heard of.
func (w *Worker) now() time.Time {
	if ms := w.store.NowMS(); ms > 0 {
		return time.UnixMilli(ms)
	}
	return time.Now()
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// MetricsAddr is where the worker's metrics are.
func (w *Worker) MetricsAddr() string { return w.metricsAddr.String() }

// Stop takes no more jobs, lets those in flight end within the configured
// grace or until ctx is done, hands back the rest, and returns what had failed
// in the background. Pools that a reload has replaced hear of ctx too.
func (w *Worker) Stop(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.hurry()
	defer context.AfterFunc(ctx, w.hurry)()
	for _, p := range w.pools {
		w.stopPool(p)
	}
	clear(w.pools)
	w.leaving.Wait()
	return errors.Join(w.close(context.WithoutCancel(ctx)))
}
