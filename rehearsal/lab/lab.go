// Package lab is a backend to rehearse against: an HTTP server that speaks the
// OpenAI chat-completions wire, really summarises the text it is given, takes
// the time its profile declares, has a real limit on concurrency, and plays
// every backend fault by name.
//
// It is reached over the network like any other backend, so that a real
// endpoint takes its place by a change of address. Its control endpoint stands
// on a listener of its own.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Defaults and bounds of [Config].
const (
	// DefaultModel is the model's name unless configured.
	DefaultModel = "lab-summary"
	// MaxSummaryWords is how many words a summary has at most. A system prompt
	// may ask for fewer ("at most 120 words").
	MaxSummaryWords = 200
	// DefaultQueue is how many requests may wait for a slot.
	DefaultQueue = 4096
	// DefaultLogSize is how many attempts are remembered.
	DefaultLogSize = 16384
	// MaxBodyBytes is the largest request body.
	MaxBodyBytes = 4 << 20
	// MaxIdempotencyKey is the longest idempotency key, in bytes.
	MaxIdempotencyKey = 256

	maxSlots   = 1 << 20
	maxLogSize = 1 << 20
)

// Config says what a lab backend is. The zero Config is a backend that answers
// at once, without a limit.
type Config struct {
	// Model is the name it serves. Defaults to [DefaultModel]. A model name that
	// is neither this nor one of [FaultModels] is a 404.
	Model string
	// Profile is the time from entering service to the first byte. Defaults to
	// none.
	Profile Profile
	// Tail is the time from the first byte to the last. Defaults to none.
	Tail Tail
	// Slots is how many requests are served at once; the rest wait inside the
	// backend, in the order of arrival. 0, the default, is no limit.
	Slots int
	// Queue is how many requests may wait for a slot; beyond it the answer is
	// 503. Defaults to [DefaultQueue].
	Queue int
	// Dedupe makes a second request with the same Idempotency-Key get the first
	// one's answer, waiting for it if it is still being made. A request with a
	// key is then finished even if its caller goes away. The same key with
	// another body is a 409.
	Dedupe bool
	// FinishAbandoned makes the backend finish, and hold the slot for, every
	// request whose caller has gone away, as backends do that do not notice.
	FinishAbandoned bool
	// LogSize is how many attempts are remembered. Defaults to [DefaultLogSize].
	LogSize int
}

// withDefaults returns c with its defaults filled in, or an error that names
// the field.
func (c Config) withDefaults() (Config, error) {
	if c.Model == "" {
		c.Model = DefaultModel
	}
	if c.Queue == 0 {
		c.Queue = DefaultQueue
	}
	if c.LogSize == 0 {
		c.LogSize = DefaultLogSize
	}
	switch {
	case len(c.Model) > maxModel:
		return c, fmt.Errorf("lab: Model: want at most %d bytes", maxModel)
	case c.Slots < 0 || c.Slots > maxSlots:
		return c, fmt.Errorf("lab: Slots is %d: want 0 (no limit) to %d", c.Slots, maxSlots)
	case c.Queue < 0 || c.Queue > maxSlots:
		return c, fmt.Errorf("lab: Queue is %d: want 1 to %d", c.Queue, maxSlots)
	case c.LogSize < 0 || c.LogSize > maxLogSize:
		return c, fmt.Errorf("lab: LogSize is %d: want 1 to %d", c.LogSize, maxLogSize)
	}
	return c, checkPace(c.Profile, c.Tail)
}

func checkPace(p Profile, t Tail) error {
	if p.kind == kindLoad && t != (Tail{}) {
		return errors.New("lab: a load profile paces the whole answer: want no tail with it")
	}
	return nil
}

// Server is one lab backend.
type Server struct {
	cfg   Config
	slots slots
	log   attemptLog
	cache dedupe

	base context.Context // ends when the server is closed
	stop context.CancelFunc

	mu      sync.Mutex
	pace    pace
	fault   Fault // as set by the control endpoint; no name is health
	parsed  fault
	hits    int             // requests that met fault
	once    onceKeys        // keys that have met a one-shot fault
	flapEnd time.Time       // when flap ends; zero until a request meets it
	refuse  func(down bool) // closes and reopens the listener; nil without Serve
}

// pace is what can be changed together while running.
type pace struct {
	profile Profile
	tail    Tail
	slots   int
	sampler *sampler
}

// New returns a lab backend, or an error that names the field of cfg that is
// wrong.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, pace: pace{cfg.Profile, cfg.Tail, cfg.Slots, newSampler(cfg.Profile)}}
	s.slots.limit, s.slots.queue = cfg.Slots, cfg.Queue
	s.log.size = cfg.LogSize
	s.base, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Close ends every request that is being served or waits, and leaves the
// server unable to serve others. It does not wait for them.
func (s *Server) Close() { s.stop() }

// Handler returns the handler of the backend itself: POST
// /v1/chat/completions, GET /v1/models, GET /v1/models/{id} and GET /healthz.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.chat)
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("GET /v1/models/{id...}", s.model)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, newError(http.StatusNotFound, "invalid_request_error", "", "",
			fmt.Sprintf("no such route: %.16s %.128s", r.Method, r.URL.Path)))
	})
	return mux
}

// Relistener is a listener that can be opened again after Close, under the
// same address. A TCP listener needs none: its address is listened on anew.
type Relistener interface {
	net.Listener
	Relisten() (net.Listener, error)
}

// Serve serves the backend on api and, unless it is nil, the control endpoint
// on control until ctx ends, and closes both. It then returns nil, after every
// request has ended. It may be called once.
func (s *Server) Serve(ctx context.Context, api, control net.Listener) error {
	defer s.Close()
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // clients that break off are the lab's daily bread
	newServer := func(h http.Handler) *http.Server {
		return &http.Server{
			Handler: h, ErrorLog: quiet, MaxHeaderBytes: 64 << 10,
			ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		}
	}
	backend := newServer(s.Handler())
	failed := make(chan error, 2)
	var running sync.WaitGroup
	defer running.Wait()
	servers := []*http.Server{backend}
	door := newDoor(api)
	running.Go(func() { failed <- backend.Serve(door) })
	s.mu.Lock()
	s.refuse = door.setDown
	door.setDown(s.parsed.String() == "down.refused")
	s.mu.Unlock()
	if control != nil {
		c := newServer(s.ControlHandler())
		servers = append(servers, c)
		running.Go(func() { failed <- c.Serve(control) })
	}

	var err error
	select {
	case <-ctx.Done():
	case <-s.base.Done():
	case err = <-failed:
	}
	s.Close()
	for _, srv := range servers {
		// What is still being sent has been told to end; a client that does not
		// read is cut.
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		if srv.Shutdown(grace) != nil {
			_ = srv.Close()
		}
		cancel()
	}
	_ = door.Close()
	return err
}

// models lists the models, faults included.
func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	list := modelList{Object: "list"}
	for _, id := range append([]string{s.cfg.Model}, FaultModels()...) {
		list.Data = append(list.Data, newModel(id))
	}
	writeJSON(w, http.StatusOK, list)
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if _, err := s.modelFault(id); err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, newModel(id))
}

type modelList struct {
	Object string     `json:"object"`
	Data   []modelRow `json:"data"`
}

type modelRow struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func newModel(id string) modelRow {
	return modelRow{ID: id, Object: "model", Created: modelCreated, OwnedBy: "leeway-lab"}
}

// modelCreated is a fixed instant: the lab's models have no date.
const modelCreated = 1_750_000_000

func responseID(seq int64) string { return "req_lab_" + strconv.FormatInt(seq, 10) }
