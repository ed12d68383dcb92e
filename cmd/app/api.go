package app

import (
	"context"
	"io"
	"net"
	"net/http"

	"leeway/broker/archive"
	"leeway/broker/config"
	"leeway/broker/flag"
	"leeway/broker/httpapi"
	"leeway/broker/measure"
	"leeway/broker/webhook"
	"leeway/runbooks"
	"leeway/slackgate"
)

// API is a running admission API.
type API struct {
	*base
	addr, metricsAddr net.Addr

	webhooks  *webhook.Sender
	transport http.RoundTripper // of webhooks; nil: each target's own
}

// StartAPI starts the admission API and its metrics listener. Stop must be
// called.
func StartAPI(o Options) (*API, error) {
	b, err := newBase(&o)
	if err != nil {
		return nil, err
	}
	a := &API{base: b}
	if err := a.start(&o); err != nil {
		_ = b.close(context.Background())
		return nil, err
	}
	return a, nil
}

func (a *API) start(o *Options) error {
	for _, p := range a.shards {
		a.background.Go("admission", p.gate.Run)
		a.background.Go("gate state", p.gate.Refresh)
	}
	if err := a.startArchive(); err != nil {
		return err
	}
	if err := a.startWebhooks(o); err != nil {
		return err
	}
	api := httpapi.New(httpapi.Options{
		Config: a.config, Admitter: a.admitter, Store: a.store,
		Latency:     func(path slackgate.Path) measure.Measured { return a.meter.Get(measure.PoolName(path)) },
		StartValues: func() flag.Values { return startValues(a.config()) },
		Background:  a.background, Log: a.log, Risks: a.risks,
	})
	var err error
	if a.addr, err = a.serve("api", o.Listener, a.config().Listen, httpapi.HTTP(api)); err != nil {
		return err
	}
	a.metricsAddr, err = a.serve("metrics", o.MetricsListener, a.config().MetricsListen, httpapi.HTTP(metricsMux(a.base)))
	return err
}

// startArchive archives the ledgers if there is where to, each shard's under its
// own name. A new URL takes a restart.
func (a *API) startArchive() error {
	cfg := a.config()
	if cfg.Archive.URL == "" {
		return nil
	}
	for _, p := range a.shards {
		archiver, err := archive.New(archive.Options{
			URL: cfg.Archive.URL, Deployment: p.prefix, Store: p.store, Log: a.log,
			Window: ms(cfg.Archive.WindowMS), BatchRows: cfg.Archive.BatchRows, Every: ms(cfg.Archive.EveryMS),
		})
		if err != nil {
			return err
		}
		a.background.Go("archive", archiver.Run)
	}
	return nil
}

// startWebhooks tells producers the ends of their jobs where the configuration
// says so.
func (a *API) startWebhooks(o *Options) error {
	a.transport = o.WebhookTransport
	targets, err := webhook.NewTargets(a.config(), a.transport)
	if err != nil {
		return err
	}
	a.webhooks = webhook.NewSender(a.store, a.background, a.log, targets)
	a.metrics.Webhooks(a.store, a.webhooks.Producers)
	a.background.Go("webhooks", a.webhooks.Run)
	return nil
}

// Reload takes over a configuration, or says what is wrong and changes
// nothing.
func (a *API) Reload(cfg *config.Config) error {
	targets, err := webhook.NewTargets(cfg, a.transport)
	if err != nil {
		return err
	}
	if err := a.reloadable(cfg); err != nil {
		return err
	}
	a.take(cfg)
	a.webhooks.SetTargets(targets)
	return nil
}

func metricsMux(b *base) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", b.metrics.Handler())
	mux.HandleFunc("GET /readyz", b.ready)
	mux.Handle("GET /runbooks/", runbooks.Handler())
	b.serveProfiles(mux)
	return mux
}

// ready tells whether the process's background loops all run. The API's own
// /readyz, on its other listener, asks the gate as well.
func (b *base) ready(w http.ResponseWriter, _ *http.Request) {
	if b.background.Err() != nil {
		http.Error(w, "a background loop has failed: see the log", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "ready\n")
}

// Addr is where the API listens.
func (a *API) Addr() string { return a.addr.String() }

// MetricsAddr is where its metrics are.
func (a *API) MetricsAddr() string { return a.metricsAddr.String() }

// Stop answers what is under way, stops, and returns what had failed in the
// background.
func (a *API) Stop(ctx context.Context) error { return a.close(ctx) }
