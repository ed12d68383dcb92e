package app

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/alicebob/miniredis/v2"

	"leeway/broker/background"
	"leeway/broker/config"
	"leeway/rehearsal/lab"
	"leeway/slackgate"
)

// Embedded is the whole of Leeway in one process: an embedded Redis that keeps
// nothing, the API, both pools, and a lab backend for each on a port of its
// own.
type Embedded struct {
	redis  *miniredis.Miniredis
	labs   *background.Group
	api    *API
	worker *Worker
}

// Banner is what a process with an embedded store says at its start.
const Banner = "embedded Redis (miniredis): for trying things out; it keeps nothing when this process ends"

// StartEmbedded starts everything. Pools that name no backend get a lab
// backend as fast as the pool declares (see labShare) that serves as many calls
// at once as the pool has slots. Stop must be called.
func StartEmbedded(o Options) (_ *Embedded, err error) {
	e := &Embedded{redis: miniredis.NewMiniRedis()}
	e.redis.ClockTTL(true)
	if err := e.redis.StartAddr("127.0.0.1:0"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = e.Stop(context.Background())
		}
	}()
	cfg := *o.Config
	cfg.Redis.URL = "redis://" + e.redis.Addr() + "/0"
	cfg.Redis.TimeoutMS = max(cfg.Redis.TimeoutMS, embeddedTimeoutMS)
	o.Config, o.EmbeddedRedis = &cfg, true
	e.labs = background.New(context.Background(), o.Log)
	for _, path := range slackgate.Paths {
		p := cfg.Pool(path)
		if p.Limit == 0 || len(p.Backends) > 0 {
			continue
		}
		b, err := e.startLab(path, p)
		if err != nil {
			return nil, err
		}
		p.Backends = []config.Backend{*b}
	}
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	if e.worker, err = StartWorker(Options{Config: &cfg, Log: o.Log, EmbeddedRedis: true}); err != nil {
		return nil, err
	}
	e.api, err = StartAPI(o)
	return e, err
}

// embeddedTimeoutMS is patience enough for a Redis that shares its process, and
// perhaps a busy machine, with everything else.
const embeddedTimeoutMS = 2000

// labShare is the lab's fixed first byte in percent of the declared p95. A p95
// is what nineteen calls in twenty stay below, the way there and back included;
// a lab that took exactly as long would be later than declared every time.
const labShare = 95

// Prices of the lab's paid backend: made up, in the range of a small model.
const (
	labInputMicroPerMTok  = 150_000
	labOutputMicroPerMTok = 600_000
)

// labPrice is what a pool's lab backends charge.
func labPrice(path slackgate.Path) config.Price {
	if path == slackgate.Free {
		return config.Price{}
	}
	return config.Price{Currency: "USD", Version: "lab", InputMicroPerMTok: labInputMicroPerMTok, OutputMicroPerMTok: labOutputMicroPerMTok}
}

// newLab makes a lab backend of a profile and a tail, as package lab reads them.
func newLab(profile, tail string, cfg lab.Config) (*lab.Server, error) {
	var err error
	if cfg.Profile, err = lab.ParseProfile(profile); err != nil {
		return nil, err
	}
	if cfg.Tail, err = lab.ParseTail(tail); err != nil {
		return nil, err
	}
	return lab.New(cfg)
}

// startLab starts a lab backend for a pool and returns how to reach it.
func (e *Embedded) startLab(path slackgate.Path, p *config.Pool) (*config.Backend, error) {
	model := "lab-" + path.String()
	srv, err := newLab(
		fmt.Sprintf("fixed:%dms", p.FirstByteP95MS*labShare/100), fmt.Sprintf("%dms", p.HoldP95MS-p.FirstByteP95MS),
		lab.Config{Model: model, Slots: p.Limit},
	)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e.labs.Go(model, func(ctx context.Context) error { return srv.Serve(ctx, l, nil) })
	return &config.Backend{Name: model, URL: "http://" + l.Addr().String() + "/v1", Model: model, Price: labPrice(path)}, nil
}

// Addr is where the API listens.
func (e *Embedded) Addr() string { return e.api.Addr() }

// MetricsAddr is where the API's metrics are.
func (e *Embedded) MetricsAddr() string { return e.api.MetricsAddr() }

// WorkerMetricsAddr is where the worker's metrics are.
func (e *Embedded) WorkerMetricsAddr() string { return e.worker.MetricsAddr() }

// Stop stops everything and returns what had failed in the background.
func (e *Embedded) Stop(ctx context.Context) error {
	var errs []error
	if e.api != nil {
		errs = append(errs, e.api.Stop(ctx))
	}
	if e.worker != nil {
		errs = append(errs, e.worker.Stop(ctx))
	}
	if e.labs != nil {
		errs = append(errs, e.labs.Stop())
	}
	e.redis.Close()
	return errors.Join(errs...)
}
