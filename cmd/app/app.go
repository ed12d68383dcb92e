// Package app assembles Leeway's processes from their parts, so that commands
// are shells around it and tests can embed it.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/broker/admission"
	"leeway/broker/background"
	"leeway/broker/config"
	"leeway/broker/flag"
	"leeway/broker/measure"
	"leeway/broker/metrics"
	"leeway/broker/redisstore"
	"leeway/broker/shard"
	"leeway/broker/store"
	"leeway/slackgate"
)

// Options are what a process is made of. Config is required.
type Options struct {
	Config *config.Config
	// Log defaults to JSON lines on Stdout; see [Logger].
	Log *slog.Logger
	// Redis is a client to use instead of connecting to Config.Redis.URL. It is
	// left open, and its server is the caller's to judge.
	Redis redis.UniversalClient
	// EmbeddedRedis connects to a Redis in this process, which is used instead.
	// Nobody else deletes its keys, and it reads all of them for a page.
	EmbeddedRedis func(ctx context.Context, network, addr string) (net.Conn, error)
	// Listener and MetricsListener are used instead of listening on the
	// configured addresses.
	Listener, MetricsListener net.Listener
	// Transport carries backend calls. Defaults to each backend's own.
	Transport http.RoundTripper
	// WebhookTransport carries webhooks. Defaults to each target's own, which
	// looks at addresses before it connects.
	WebhookTransport http.RoundTripper
}

// Logger writes one JSON object a line.
func Logger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
}

// exitCode is how a process ends that could not start: 2 for what its
// configuration says, 1 for everything else.
func exitCode(err error) int {
	if _, ok := errors.AsType[*broker.FieldError](err); ok {
		return 2
	}
	return 1
}

// base is what an API process and a worker process have in common.
type base struct {
	cfg        atomic.Pointer[config.Config]
	log        *slog.Logger
	rdb        redis.UniversalClient
	ownRedis   bool
	embedded   bool // Redis is
	shards     []*part
	store      store.Store  // of all shards
	several    *shard.Store // the same; nil with one
	metrics    *metrics.Metrics
	background *background.Group
	admitter   *shard.Admitter
	meter      *measure.Meter
	servers    []*http.Server
	atRisk     atomic.Pointer[[]string]

	keepRedis atomic.Bool // asynq still uses it; it ends with the process

	closing sync.Once
	closed  error // what close returned
}

func newBase(o *Options) (*base, error) {
	b := &base{log: o.Log, rdb: o.Redis, ownRedis: o.Redis == nil, embedded: o.EmbeddedRedis != nil}
	b.cfg.Store(o.Config)
	switch {
	case b.embedded:
		b.rdb = redisstore.DialClient(o.EmbeddedRedis)
	case b.ownRedis:
		rdb, err := redisstore.Client(o.Config.Redis.URL, o.Config.RedisTimeout())
		if err != nil {
			return nil, err
		}
		b.rdb = rdb
	}
	cfg := o.Config
	b.makeShards()
	b.metrics = metrics.New()
	b.metrics.Share(b.store, b.config, b.poolPolicy)
	b.metrics.Budgets(b.budgets)
	b.background = background.New(context.Background(), o.Log)
	b.meter = measure.New(b.store, b.declaredPolicy, o.Log, subjects(cfg))
	b.metrics.Measured(b.meter)
	b.metrics.Process(metrics.Process{
		Failed:      func() bool { return b.background.Err() != nil },
		Fingerprint: func() string { return b.config().Fingerprint() },
		Recheck:     func() bool { return !b.config().Lab.RecheckOff },
		Knees:       b.knees,
		Risks:       b.risks,
	})
	if cfg.Lab.RecheckOff {
		o.Log.Warn("lab.recheck_off: backends are called whatever is left of a job's time, and answers are waited for past the deadline; promises will be broken")
	}
	if err := b.agreeOnLayout(); err != nil {
		return nil, errors.Join(err, b.close(context.Background()))
	}
	b.background.Go("latencies", b.meter.Run)
	b.makeGates()
	b.background.Go("flags", b.followFlags)
	if b.ownRedis && !b.embedded {
		b.background.Go("durability", b.watchDurability)
	}
	for _, p := range b.shards {
		b.background.Go("reconciler", p.reconciler().Run)
	}
	return b, nil
}

// config is the configuration now.
func (b *base) config() *config.Config { return b.cfg.Load() }

// startValues are the flags' values as configured.
func startValues(cfg *config.Config) flag.Values {
	return flag.Values{
		AdmitPaid: cfg.Gate.AdmitPaid, AdmitFree: cfg.Gate.AdmitFree, FreeCutMS: cfg.Gate.FreeQueueAgeCutMS,
		ReserveMS: cfg.Gate.ReserveMS, Fallback: cfg.Gate.FallbackEnabled, Policy: cfg.Gate.Policy,
	}
}

// declaredPolicy is the pools' side of a decision as configured.
func (b *base) declaredPolicy() [slackgate.NumPaths]broker.PoolPolicy {
	var out [slackgate.NumPaths]broker.PoolPolicy
	cfg := b.config()
	for _, path := range slackgate.Paths {
		p := cfg.Pool(path)
		out[path] = broker.PoolPolicy{Limit: p.Limit, FirstByteP95MS: p.FirstByteP95MS}
	}
	return out
}

// poolPolicy is the same with the p95s as measured and what is closed to every
// class, without ladders.
func (b *base) poolPolicy() [slackgate.NumPaths]broker.PoolPolicy {
	out := b.declaredPolicy()
	v := b.values()
	out[slackgate.Paid].Closed, out[slackgate.Free].Closed = !v.AdmitPaid, !v.AdmitFree
	for _, path := range slackgate.Paths {
		out[path].FirstByteP95MS = b.firstByteP95(path)
	}
	return out
}

// firstByteP95 is a pool's first-byte p95: measured where the gate goes by
// measurements, declared under the article's rule.
func (b *base) firstByteP95(path slackgate.Path) int64 {
	pool := b.config().Pool(path)
	if b.values().Policy == slackgate.Seed || pool.Limit == 0 { // what is left out is not measured
		return pool.FirstByteP95MS
	}
	m := b.meter.Get(measure.PoolName(path))
	return int64(math.Ceil(m.FirstByte.P95MS))
}

// holdP95 is a pool's hold p95 as measured; 0 under the article's rule, which
// promises the first byte alone.
func (b *base) holdP95(path slackgate.Path) int64 {
	if b.values().Policy == slackgate.Seed {
		return 0
	}
	m := b.meter.Get(measure.PoolName(path))
	return int64(math.Ceil(m.Belief().Hold.P95MS))
}

// knees tells of each backend whose knee was measured whether that is out of
// date.
func (b *base) knees() map[string]bool {
	out := map[string]bool{}
	cfg := b.config()
	for _, path := range slackgate.Paths {
		for _, be := range cfg.Pool(path).Backends {
			if be.Knee != nil {
				out[be.Name] = be.KneeOutOfDate(time.Now()) != ""
			}
		}
	}
	return out
}

// subjects are the pools and backends whose latency is measured.
func subjects(cfg *config.Config) []measure.Subject {
	var out []measure.Subject
	for _, path := range slackgate.Paths {
		p := cfg.Pool(path)
		if p.Limit == 0 {
			continue
		}
		out = append(out, measure.Subject{
			Name: measure.PoolName(path), Path: path, Declared: slackgate.FixedBelief(p.FirstByteP95MS, p.HoldP95MS),
		})
		for i := range p.Backends {
			be := &p.Backends[i]
			out = append(out, measure.Subject{
				Name:     measure.BackendName(be.Name),
				Declared: slackgate.FixedBelief(be.FirstByteP95MS, max(be.FirstByteP95MS, p.HoldP95MS)),
			})
		}
	}
	return out
}

// dispatchPolls is how many polling intervals pass, at most, from a ticket's
// arrival to its claim (asynq waits 0.5 to 1.5 of them), and a little for the
// claim itself.
const dispatchPolls = 2

func classSettings(v flag.Values) admission.ClassSettings {
	c := admission.ClassSettings{
		Policy:    slackgate.Policy{Rule: v.Policy, FreeQueueAgeCutMS: slackgate.Unbounded},
		ReserveMS: v.ReserveMS,
	}
	switch {
	case v.FreeCutMS != nil:
		c.Policy.FreeQueueAgeCutMS = *v.FreeCutMS
	case v.Policy == slackgate.Seed:
		c.Policy.FreeQueueAgeCutMS = config.SeedFreeQueueAgeCutMS
	}
	c.Closed[slackgate.Paid], c.Closed[slackgate.Free] = !v.AdmitPaid, !v.AdmitFree
	return c
}

// serve runs an HTTP server in the background until close.
func (b *base) serve(name string, l net.Listener, addr string, h *http.Server) (net.Addr, error) {
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", addr); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	h.ErrorLog = slog.NewLogLogger(b.log.Handler(), slog.LevelDebug)
	b.servers = append(b.servers, h)
	b.background.Go(name, func(context.Context) error {
		if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	return l.Addr(), nil
}

// shutdownHTTP is how long answers under way may take to be written when a
// process stops.
const shutdownHTTP = 5 * time.Second

// close ends servers, loops and connections, and returns what had failed. A
// second call returns what the first did.
func (b *base) close(ctx context.Context) error {
	b.closing.Do(func() { b.closed = b.end(ctx) })
	return b.closed
}

func (b *base) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shutdownHTTP)
	defer cancel()
	var errs []error
	for _, h := range b.servers {
		if err := h.Shutdown(ctx); err != nil {
			errs = append(errs, h.Close())
		}
	}
	errs = append(errs, b.background.Stop())
	if b.ownRedis && !b.keepRedis.Load() {
		errs = append(errs, b.rdb.Close())
	}
	return errors.Join(errs...)
}
