// Package stage assembles the whole of Leeway in one process, to try it out, to
// rehearse and to test: an embedded Redis, the API, workers, and lab backends
// that play faults. Its ground can fail as well: a worker can be lost, and the
// store can stand still.
package stage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/alicebob/miniredis/v2"

	"leeway/broker/background"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/cmd/app"
	"leeway/rehearsal/lab"
	"leeway/rehearsal/pipenet"
	"leeway/slackgate"
)

// Options describe a [Stage].
type Options struct {
	// Config is copied. Labs are added to its pools' backends.
	Config *config.Config
	// Labs are the lab backends. See also [Declared].
	Labs []Lab
	// Log defaults to nowhere.
	Log *slog.Logger
	// InMemory keeps every connection inside the process, so that the stage runs
	// in the virtual time of a testing/synctest bubble. Otherwise the processes
	// listen where Config says, and the labs on ports of their own.
	InMemory bool
	// Apart names the pool whose worker is the first one and serves nothing else;
	// another serves the other pool. Reject: each worker serves both.
	Apart slackgate.Path
	// OverStore, if set, is put around connections to the store.
	OverStore func(Dial) Dial
	// WebhookTransport carries webhooks. See [app.Options].
	WebhookTransport http.RoundTripper
}

// Lab is one lab backend of a stage.
type Lab struct {
	Name string
	Path slackgate.Path
	// Model defaults to [lab.DefaultModel].
	Model string
	// Profile and Tail as package lab reads them. Slots is the backend's own
	// limit; 0: none.
	Profile, Tail string
	Slots         int
	// P95MS is its declared first-byte p95; 0: the pool's.
	P95MS int64
}

// Banner is what a process with an embedded store says at its start.
const Banner = "embedded Redis (miniredis): for trying things out; it keeps nothing when this process ends"

// patienceMS is patience enough for a store that shares its process, and perhaps
// a busy machine, with everything else.
const patienceMS = 2000

// labShare is the lab's fixed first byte in percent of the declared p95. A p95
// is what nineteen calls in twenty stay below, the way there and back included;
// a lab that took exactly as long would be later than declared every time.
const labShare = 95

// Declared describes a stage for trying a complete configuration out. Pools that
// name no backend get a lab backend as fast as the pool declares (see labShare)
// that serves as many calls at once as the pool has slots.
func Declared(cfg *config.Config, log *slog.Logger) Options {
	own := *cfg
	own.Redis.TimeoutMS = max(own.Redis.TimeoutMS, patienceMS)
	o := Options{Config: &own, Log: log}
	for _, path := range slackgate.Paths {
		p := cfg.Pool(path)
		if p.Limit == 0 || len(p.Backends) > 0 {
			continue
		}
		name := "lab-" + path.String()
		o.Labs = append(o.Labs, Lab{
			Name: name, Path: path, Model: name, Slots: p.Limit,
			Profile: fmt.Sprintf("fixed:%dms", p.FirstByteP95MS*labShare/100), Tail: fmt.Sprintf("%dms", p.HoldP95MS-p.FirstByteP95MS),
		})
	}
	return o
}

// price is what a pool's lab backends charge: made up, in the range of a small
// model.
func price(path slackgate.Path) config.Price {
	if path == slackgate.Free {
		return config.Price{}
	}
	return config.Price{Currency: "USD", Version: "lab", InputMicroPerMTok: 150_000, OutputMicroPerMTok: 600_000}
}

// Stage is a running Leeway.
type Stage struct {
	// Config is the configuration as completed. It is not to be changed.
	Config *config.Config
	Redis  *miniredis.Miniredis
	// Labs are the lab backends by their names.
	Labs map[string]*Backend
	API  *app.API
	// URL is the API's, HTTP reaches it and the labs.
	URL     string
	HTTP    *http.Client
	Workers []*app.Worker

	options    Options
	hosts      map[string]*pipenet.Listener // in memory, by address
	background *background.Group            // the labs
	transports []*http.Transport
	store      link    // of everybody to the store
	links      []*link // of the workers to everything
}

// Backend is a lab backend. URL is its base, as an OpenAI client takes it.
type Backend struct {
	*lab.Server

	URL string
}

// Start starts everything: a worker only if there are backends to call. Stop
// must be called.
func Start(o Options) (_ *Stage, err error) {
	cfg := *o.Config
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Stage{
		Config: &cfg, Redis: miniredis.NewMiniRedis(), Labs: map[string]*Backend{},
		options: o, hosts: map[string]*pipenet.Listener{}, background: background.New(context.Background(), o.Log),
	}
	s.Redis.ClockTTL(true)
	defer func() {
		if err != nil {
			_ = s.Stop(context.Background())
		}
	}()
	for i := range o.Labs {
		if err := s.startLab(&o.Labs[i]); err != nil {
			return nil, err
		}
	}
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	if s.backends() > 0 {
		if err := s.AnotherWorker(); err != nil {
			return nil, err
		}
		if o.Apart != slackgate.Reject {
			if err := s.startWorker(o.Apart); err != nil {
				return nil, err
			}
		}
	}
	return s, s.startAPI()
}

func (s *Stage) backends() int {
	return len(s.Config.Pools.Paid.Backends) + len(s.Config.Pools.Free.Backends)
}

func (s *Stage) startLab(l *Lab) error {
	listener, url, err := s.listen()
	if err != nil {
		return err
	}
	srv, err := lab.New(lab.Config{Model: l.Model, Profile: l.Profile, Tail: l.Tail, Slots: l.Slots})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	s.Labs[l.Name] = &Backend{Server: srv, URL: url + "/v1"}
	s.background.Go("lab "+l.Name, func(ctx context.Context) error { return srv.Serve(ctx, listener, nil) })
	p := s.Config.Pool(l.Path)
	p.Backends = append(slices.Clip(p.Backends), config.Backend{
		Name: l.Name, URL: url + "/v1", Model: cmp.Or(l.Model, lab.DefaultModel), FirstByteP95MS: l.P95MS, Price: price(l.Path),
	})
	return nil
}

// listen opens a listener on loopback: on TCP, or under a made-up port in memory.
func (s *Stage) listen() (net.Listener, string, error) {
	if s.options.InMemory {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(len(s.hosts)+1))
		l := pipenet.Listen()
		s.hosts[addr] = l
		return l, "http://" + addr, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	return l, "http://" + l.Addr().String(), nil
}

// dial connects to the API or to a backend.
func (s *Stage) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if !s.options.InMemory {
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}
	l := s.hosts[addr]
	if l == nil {
		return nil, fmt.Errorf("nobody listens at %s", addr)
	}
	return l.DialContext(ctx, network, addr)
}

// DialStore connects to the store as the API does.
func (s *Stage) DialStore(ctx context.Context, network, addr string) (net.Conn, error) {
	dial := s.store.over(func(context.Context, string, string) (net.Conn, error) { return s.Redis.Dial() })
	if s.options.OverStore != nil {
		dial = s.options.OverStore(dial)
	}
	return dial(ctx, network, addr)
}

func (s *Stage) transportOver(dial Dial) *http.Transport {
	t := &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 64}
	s.transports = append(s.transports, t)
	return t
}

// AnotherWorker starts one more worker process, like the first.
func (s *Stage) AnotherWorker() error { return s.startWorker(s.options.Apart.Other()) }

// startWorker starts a worker that leaves one pool out; Reject: none.
func (s *Stage) startWorker(without slackgate.Path) error {
	line, cfg := &link{}, *s.Config
	switch without {
	case slackgate.Paid:
		cfg.Worker.PaidSlots = new(0)
	case slackgate.Free:
		cfg.Worker.FreeSlots = new(0)
	case slackgate.Reject:
	}
	o := app.Options{Config: &cfg, Log: s.options.Log, EmbeddedRedis: line.over(s.DialStore)}
	if s.backends() == len(s.Labs) { // those of others are called as everywhere
		o.Transport = s.transportOver(line.over(s.dial))
	}
	if s.options.InMemory {
		o.MetricsListener = pipenet.Listen() // nobody asks
	}
	w, err := app.StartWorker(o)
	if err != nil {
		return err
	}
	s.Workers, s.links = append(s.Workers, w), append(s.links, line)
	return nil
}

func (s *Stage) startAPI() (err error) {
	o := app.Options{Config: s.Config, Log: s.options.Log, EmbeddedRedis: s.DialStore, WebhookTransport: s.options.WebhookTransport}
	if s.options.InMemory {
		o.MetricsListener = pipenet.Listen()
		if o.Listener, s.URL, err = s.listen(); err != nil {
			return err
		}
	}
	if s.API, err = app.StartAPI(o); err != nil {
		return err
	}
	if !s.options.InMemory {
		s.URL = "http://" + s.API.Addr()
	}
	s.HTTP = &http.Client{Transport: s.transportOver(s.dial)}
	return nil
}

// Client talks to the API.
func (s *Stage) Client() *client.Client { return &client.Client{Base: s.URL, HTTP: s.HTTP} }

// LoseWorker cuts the first worker off from the store and from its backends.
// It is what everybody else sees of a worker that is killed: its connections
// break, its backends see a client go, and nothing is heard of it again.
func (s *Stage) LoseWorker() error {
	if len(s.links) == 0 {
		return errors.New("the stage has no worker")
	}
	s.links[0].cut()
	return nil
}

// PauseStore makes the store stand still: it takes connections and commands,
// and answers none until ResumeStore. Both may be called again.
func (s *Stage) PauseStore() { s.store.pause() }

// ResumeStore ends a pause.
func (s *Stage) ResumeStore() { s.store.resume() }

// Reload is refused: a stage is made once.
func (s *Stage) Reload(*config.Config) error {
	return errors.New("an embedded process is not reloaded: restart it")
}

// redialPause is a little more than the second after which go-redis looks again
// for a store that it had lost. It does so in a goroutine that Close does not
// end.
const redialPause = 1100 * time.Millisecond

// Stop stops everything and returns what had failed in the background. A lost
// worker is joined up again first, so that it can end.
func (s *Stage) Stop(ctx context.Context) error {
	s.ResumeStore()
	lost := false
	for _, l := range s.links {
		lost = l.mend() || lost
	}
	if lost {
		time.Sleep(redialPause)
	}
	var errs []error
	if s.API != nil {
		errs = append(errs, s.API.Stop(ctx))
	}
	for _, w := range s.Workers {
		errs = append(errs, w.Stop(ctx))
	}
	errs = append(errs, s.background.Stop())
	for _, t := range s.transports {
		t.CloseIdleConnections()
	}
	s.Redis.Close()
	return errors.Join(errs...)
}
