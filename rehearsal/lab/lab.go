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
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

	maxCount = 1 << 20 // of slots, of those who wait, of attempts remembered
)

// Config says what a lab backend is. The zero Config is a backend that answers
// at once, without a limit.
type Config struct {
	// Model is the name it serves. Defaults to [DefaultModel]. A model name that
	// is neither this nor one of [FaultModels] is a 404.
	Model string
	// Profile is the time from entering service to the first byte, as for
	// [ParseProfile]. Defaults to none.
	Profile string
	// Tail is the time from the first byte to the last, as for [ParseTail].
	// Defaults to none.
	Tail string
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

// validate returns an error that names the field that is wrong.
func (c *Config) validate() error {
	if len(c.Model) > maxModel {
		return fmt.Errorf("lab: Model: want at most %d bytes", maxModel)
	}
	switch {
	case c.Slots < 0 || c.Slots > maxCount:
		return fmt.Errorf("lab: Slots is %d: want 0 (no limit) to %d", c.Slots, maxCount)
	case c.Queue < 1 || c.Queue > maxCount:
		return fmt.Errorf("lab: Queue is %d: want 1 to %d", c.Queue, maxCount)
	case c.LogSize < 1 || c.LogSize > maxCount:
		return fmt.Errorf("lab: LogSize is %d: want 1 to %d", c.LogSize, maxCount)
	}
	return nil
}

// Server is one lab backend.
type Server struct {
	cfg     Config
	slots   slots
	log     attemptLog
	answers dedupe

	base context.Context // ends when the server is closed
	stop context.CancelFunc

	mu      sync.Mutex // guards what follows
	profile Profile
	tail    Tail
	draws   *rand.Rand // of the profile
	fault   Fault      // as set by the control endpoint; no name is health
	parsed  fault
	hits    int              // requests that met fault
	met     newest[struct{}] // faults that show themselves once, with the keys that met them
	flapEnd time.Time        // when flap or loading ends; zero until a request meets it
	address *address         // nil unless it is being served
}

// New returns a lab backend, or an error that names the field of cfg that is
// wrong.
func New(cfg Config) (*Server, error) {
	cfg.Model = cmp.Or(cfg.Model, DefaultModel)
	cfg.Queue = cmp.Or(cfg.Queue, DefaultQueue)
	cfg.LogSize = cmp.Or(cfg.LogSize, DefaultLogSize)
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, draws: Profile{}.source()}
	s.slots.queue, s.log.size = cfg.Queue, cfg.LogSize
	if err := s.SetPace(Pace{Profile: cfg.Profile, Tail: cfg.Tail, Slots: &cfg.Slots}); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	s.base, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Close ends every request that is being served or waits, and leaves the
// server unable to serve others. It does not wait for them.
func (s *Server) Close() { s.stop() }

// Pace is what can be changed about a running backend's time. An empty field
// is left as it is.
type Pace struct {
	Profile string `json:"profile,omitempty"` // as for ParseProfile
	Tail    string `json:"tail,omitempty"`    // as for ParseTail
	Slots   *int   `json:"slots,omitempty"`   // as Config.Slots
}

// SetPace changes the backend's time for requests that enter service from now
// on. A lognormal profile begins its draws anew.
func (s *Server) SetPace(p Pace) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	profile, tail, draws := s.profile, s.tail, s.draws
	if p.Profile != "" {
		if profile, err = ParseProfile(p.Profile); err != nil {
			return err
		}
		draws = profile.source()
	}
	if p.Tail != "" {
		if tail, err = ParseTail(p.Tail); err != nil {
			return err
		}
	}
	if profile.kind == kindLoad && tail != (Tail{}) {
		return errors.New("a load profile paces the whole answer: want no tail with it")
	}
	if p.Slots != nil {
		if *p.Slots < 0 || *p.Slots > maxCount {
			return fmt.Errorf("slots: want 0 (no limit) to %d", maxCount)
		}
		s.slots.resize(*p.Slots)
	}
	s.profile, s.tail, s.draws = profile, tail, draws
	return nil
}

// Pace returns the backend's time as it is now.
func (s *Server) Pace() Pace {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Pace{Profile: s.profile.String(), Tail: s.tail.String(), Slots: new(s.slots.size())}
}

// SetFault makes every request meet f that names no fault of its own, in place
// of the one that was set before. The counts of faults that show themselves
// once, or for a while, begin anew.
func (s *Server) SetFault(f Fault) error {
	parsed, err := f.parse()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setFault(f, parsed)
	s.met, s.flapEnd = newest[struct{}]{}, time.Time{}
	return nil
}

// ClearFault makes the backend healthy again, with its counts begun anew.
func (s *Server) ClearFault() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setFault(Fault{}, fault{})
	s.met, s.flapEnd = newest[struct{}]{}, time.Time{}
}

// setFault puts a fault, or health, in place of the one that was set. s.mu is
// held.
func (s *Server) setFault(f Fault, parsed fault) {
	s.fault, s.parsed, s.hits = f, parsed, 0
	s.refuseConnections()
}

// Fault returns the fault that is set; one without a name is health.
func (s *Server) Fault() Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault
}

// Attempts returns the attempts after sequence number since that are still
// remembered, oldest first, open ones included, and how many have been
// forgotten.
func (s *Server) Attempts(since int64) (attempts []Attempt, forgotten int64) {
	return s.log.since(since)
}

// ClearAttempts forgets all attempts. Sequence numbers go on.
func (s *Server) ClearAttempts() { s.log.clear() }

// State is what the backend is doing now.
type State struct {
	InService int   `json:"in_service"` // requests that hold a slot
	Waiting   int   `json:"waiting"`    // requests that wait for one
	Attempts  int64 `json:"attempts"`   // requests received since the start
}

// State returns what the backend is doing now.
func (s *Server) State() State {
	st := State{Attempts: s.log.count()}
	st.InService, st.Waiting = s.slots.counts()
	return st
}
