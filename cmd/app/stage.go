package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"leeway/broker/background"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/broker/redisstore"
	"leeway/rehearsal/lab"
	"leeway/rehearsal/pipenet"
	"leeway/slackgate"
)

// StageOptions describe a [Stage].
type StageOptions struct {
	// Config is copied. Its pools' backends are the labs.
	Config *config.Config
	Labs   []StageLab
	// Log defaults to nowhere.
	Log *slog.Logger
	// InMemory keeps every connection inside the process, so that the stage runs
	// in the virtual time of a testing/synctest bubble; otherwise they are TCP
	// on loopback.
	InMemory bool
}

// StageLab is one lab backend of a stage.
type StageLab struct {
	Name string
	Path slackgate.Path
	// Profile and Tail as package lab reads them. Slots is the backend's own
	// limit; 0: none.
	Profile, Tail string
	Slots         int
	// P95MS is its declared first-byte p95; 0: the pool's.
	P95MS int64
}

// Stage is a whole Leeway in one process for rehearsals: an embedded Redis, the
// API, a worker, and lab backends that play faults. Its floor can be broken as
// well: the worker can be lost and the store can stand still.
type Stage struct {
	cfg   *config.Config
	log   *slog.Logger
	redis *miniredis.Miniredis
	labs  map[string]*lab.Server
	hosts map[string]*pipenet.Listener // of the labs, in memory
	base  *background.Group

	api       *API
	workers   []*Worker
	cables    []*cable // of the workers
	stores    []redis.UniversalClient
	transport []*http.Transport
	http      *http.Client

	valve   valve // of the store
	inMem   bool
	baseURL string
	labURLs map[string]string
}

// StartStage starts everything. Stop must be called.
func StartStage(o StageOptions) (_ *Stage, err error) {
	cfg := *o.Config
	s := &Stage{
		cfg: &cfg, log: o.Log, redis: miniredis.NewMiniRedis(), inMem: o.InMemory,
		labs: map[string]*lab.Server{}, hosts: map[string]*pipenet.Listener{}, labURLs: map[string]string{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.base = background.New(context.Background(), s.log)
	s.redis.ClockTTL(true)
	defer func() {
		if err != nil {
			_ = s.Stop(context.Background())
		}
	}()
	if !o.InMemory {
		if err := s.redis.StartAddr("127.0.0.1:0"); err != nil {
			return nil, err
		}
	}
	for i := range o.Labs {
		if err := s.startLab(&o.Labs[i]); err != nil {
			return nil, err
		}
	}
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	if len(o.Labs) > 0 {
		if err := s.AnotherWorker(); err != nil {
			return nil, err
		}
	}
	return s, s.startAPI()
}

func (s *Stage) startLab(l *StageLab) error {
	srv, err := newLab(l.Profile, l.Tail, lab.Config{Slots: l.Slots})
	if err != nil {
		return err
	}
	listener, url, err := s.listen()
	if err != nil {
		srv.Close()
		return err
	}
	s.labs[l.Name], s.labURLs[l.Name] = srv, url+"/v1"
	s.base.Go("lab "+l.Name, func(ctx context.Context) error { return srv.Serve(ctx, listener, nil) })
	b := config.Backend{Name: l.Name, URL: url + "/v1", Model: lab.DefaultModel, FirstByteP95MS: l.P95MS, Price: labPrice(l.Path)}
	p := s.cfg.Pool(l.Path)
	p.Backends = append(slices.Clip(p.Backends), b)
	return nil
}

// listen opens a listener on loopback: on TCP, or under a made-up port in memory.
func (s *Stage) listen() (net.Listener, string, error) {
	if s.inMem {
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

// dial connects to something of the stage.
func (s *Stage) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if !s.inMem {
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}
	l := s.hosts[addr]
	if l == nil {
		return nil, fmt.Errorf("nobody listens at %s", addr)
	}
	return l.DialContext(ctx, network, addr)
}

func (s *Stage) dialStore(ctx context.Context, _, _ string) (net.Conn, error) {
	if s.inMem {
		return s.redis.Dial()
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", s.redis.Addr())
}

func (s *Stage) transportOver(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *http.Transport {
	t := &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 64}
	s.transport = append(s.transport, t)
	return t
}

// AnotherWorker starts one more worker process.
func (s *Stage) AnotherWorker() error {
	line := &cable{}
	metrics, _, err := s.listen()
	if err != nil {
		return err
	}
	rdb := redisstore.DialClient(line.over(s.valve.over(s.dialStore)))
	s.stores = append(s.stores, rdb)
	w, err := StartWorker(Options{
		Config: s.cfg, Log: s.log, Redis: rdb, EmbeddedRedis: true, Transport: s.transportOver(line.over(s.dial)), MetricsListener: metrics,
	})
	if err != nil {
		return errors.Join(err, metrics.Close())
	}
	s.workers, s.cables = append(s.workers, w), append(s.cables, line)
	return nil
}

func (s *Stage) startAPI() error {
	front, url, err := s.listen()
	if err != nil {
		return err
	}
	metrics, _, err := s.listen()
	if err != nil {
		return errors.Join(err, front.Close())
	}
	rdb := redisstore.DialClient(s.valve.over(s.dialStore))
	s.stores = append(s.stores, rdb)
	s.baseURL = url
	s.http = &http.Client{Transport: s.transportOver(s.dial)}
	s.api, err = StartAPI(Options{Config: s.cfg, Log: s.log, Redis: rdb, EmbeddedRedis: true, Listener: front, MetricsListener: metrics})
	return err
}

// Config is the configuration as completed. It is not to be changed.
func (s *Stage) Config() *config.Config { return s.cfg }

// Client talks to the API.
func (s *Stage) Client() *client.Client { return &client.Client{Base: s.baseURL, HTTP: s.http} }

// HTTP reaches the labs and the API.
func (s *Stage) HTTP() *http.Client { return s.http }

// Lab is a backend by its name; nil if there is none. LabURL is its base URL.
func (s *Stage) Lab(name string) *lab.Server { return s.labs[name] }

// LabURL is a lab's base URL, as an OpenAI client takes it.
func (s *Stage) LabURL(name string) string { return s.labURLs[name] }

// LoseWorker cuts the first worker off from the store and from its backends.
// It is what everybody else sees of a worker that is killed: its connections
// break, its backends see a client go, and nothing is heard of it again.
func (s *Stage) LoseWorker() error {
	if len(s.cables) == 0 {
		return errors.New("the stage has no worker")
	}
	s.cables[0].cut()
	return nil
}

// PauseStore makes the store stand still: it takes connections and commands,
// and answers none until ResumeStore. Both may be called again.
func (s *Stage) PauseStore() { s.valve.close() }

// ResumeStore ends a pause.
func (s *Stage) ResumeStore() { s.valve.open() }

// redialPause is a little more than the second after which go-redis looks again
// for a store that it had lost. It does so in a goroutine that Close does not
// end.
const redialPause = 1100 * time.Millisecond

// Stop stops everything and returns what had failed in the background. A lost
// worker is joined up again first, so that it can end.
func (s *Stage) Stop(ctx context.Context) error {
	s.ResumeStore()
	lost := false
	for _, c := range s.cables {
		lost = c.join() || lost
	}
	if lost {
		t := time.NewTimer(redialPause)
		defer t.Stop()
		<-t.C
	}
	var errs []error
	if s.api != nil {
		errs = append(errs, s.api.Stop(ctx))
	}
	for _, w := range s.workers {
		errs = append(errs, w.Stop(ctx))
	}
	errs = append(errs, s.base.Stop())
	for _, t := range s.transport {
		t.CloseIdleConnections()
	}
	for _, rdb := range s.stores {
		errs = append(errs, rdb.Close())
	}
	s.redis.Close()
	return errors.Join(errs...)
}

// cable is what a worker's connections run over.
type cable struct {
	mu     sync.Mutex // guards what follows
	broken bool
	conns  map[*cabled]struct{}
}

// cabled is one connection.
type cabled struct {
	net.Conn

	cable *cable
}

func (c *cabled) Close() error {
	c.cable.mu.Lock()
	delete(c.cable.conns, c)
	c.cable.mu.Unlock()
	return c.Conn.Close()
}

var errCut = errors.New("the worker's cable is cut")

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// over makes connections run over the cable.
func (c *cable) over(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c.mu.Lock()
		broken := c.broken
		c.mu.Unlock()
		if broken {
			return nil, errCut
		}
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		t := &cabled{Conn: conn, cable: c}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.broken { // meanwhile
			return nil, errors.Join(errCut, conn.Close())
		}
		if c.conns == nil {
			c.conns = map[*cabled]struct{}{}
		}
		c.conns[t] = struct{}{}
		return t, nil
	}
}

func (c *cable) cut() {
	c.mu.Lock()
	c.broken = true
	conns := c.conns
	c.conns = nil
	c.mu.Unlock()
	for t := range conns {
		_ = t.Conn.Close()
	}
}

// join makes the cable whole and reports whether it was cut.
func (c *cable) join() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.broken
	c.broken = false
	return was
}
