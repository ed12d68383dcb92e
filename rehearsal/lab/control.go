package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// maxControlBody bounds the body of a control request, in bytes.
const maxControlBody = 64 << 10

// State is what the backend is doing now.
type State struct {
	InService int   `json:"in_service"` // requests that hold a slot
	Waiting   int   `json:"waiting"`    // requests that wait for one
	Attempts  int64 `json:"attempts"`   // requests received since the start
}

// Pace is what can be changed about a running backend's time. An empty field
// is left as it is.
type Pace struct {
	Profile string `json:"profile,omitempty"` // as for ParseProfile
	Tail    string `json:"tail,omitempty"`    // as for ParseTail
	Slots   *int   `json:"slots,omitempty"`   // as Config.Slots
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
	s.endFault()
	s.fault, s.parsed, s.hits = f, parsed, 0
	s.once, s.flapEnd = onceKeys{}, time.Time{}
	if parsed.String() == "down.refused" && s.refuse != nil {
		s.refuse(true)
	}
	return nil
}

// ClearFault makes the backend healthy again, with its counts begun anew.
func (s *Server) ClearFault() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endFault()
	s.once, s.flapEnd = onceKeys{}, time.Time{}
}

// endFault unsets the fault that was set. s.mu is held.
func (s *Server) endFault() {
	if s.parsed.String() == "down.refused" && s.refuse != nil {
		s.refuse(false)
	}
	s.fault, s.parsed = Fault{}, fault{}
}

// Fault returns the fault that is set; one without a name is health.
func (s *Server) Fault() Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault
}

// SetPace changes the backend's time for requests that enter service from now
// on. A lognormal profile begins its draws anew.
func (s *Server) SetPace(p Pace) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.pace
	if p.Profile != "" {
		profile, err := ParseProfile(p.Profile)
		if err != nil {
			return err
		}
		next.profile, next.sampler = profile, newSampler(profile)
	}
	if p.Tail != "" {
		tail, err := ParseTail(p.Tail)
		if err != nil {
			return err
		}
		next.tail = tail
	}
	if p.Slots != nil {
		if *p.Slots < 0 || *p.Slots > maxSlots {
			return fmt.Errorf("slots: want 0 (no limit) to %d", maxSlots)
		}
		next.slots = *p.Slots
	}
	if err := checkPace(next.profile, next.tail); err != nil {
		return err
	}
	s.pace = next
	s.slots.resize(next.slots)
	return nil
}

// Pace returns the backend's time as it is now.
func (s *Server) Pace() Pace {
	s.mu.Lock()
	defer s.mu.Unlock()
	slots := s.pace.slots
	return Pace{Profile: s.pace.profile.String(), Tail: s.pace.tail.String(), Slots: &slots}
}

// Attempts returns the attempts after sequence number since that are still
// remembered, oldest first, open ones included, and how many have been
// forgotten.
func (s *Server) Attempts(since int64) (attempts []Attempt, forgotten int64) {
	return s.log.since(since)
}

// ClearAttempts forgets all attempts. Sequence numbers go on.
func (s *Server) ClearAttempts() { s.log.clear() }

// State returns what the backend is doing now.
func (s *Server) State() State {
	var st State
	st.InService, st.Waiting = s.slots.counts()
	st.Attempts = s.log.count()
	return st
}

// ControlHandler returns the handler of the control endpoint, for a listener
// of its own:
//
//	GET    /control/faults    every fault there is, with its variants
//	GET    /control/fault     the one that is set; {} is health
//	PUT    /control/fault     {"name":"stall","count":0,"ms":0}
//	DELETE /control/fault     healthy again
//	GET    /control/profile   {"profile":"fixed:1.2s","tail":"0","slots":2}
//	PUT    /control/profile   the same; fields left out stay as they are
//	GET    /control/attempts  JSON lines, oldest first; ?since=SEQ for those after it
//	DELETE /control/attempts  forget them
//	GET    /control/state     requests in service, waiting, received
func (s *Server) ControlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /control/faults", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, FaultKinds())
	})
	mux.HandleFunc("GET /control/fault", func(w http.ResponseWriter, _ *http.Request) {
		s.showFault(w)
	})
	mux.HandleFunc("PUT /control/fault", func(w http.ResponseWriter, r *http.Request) {
		var f Fault
		if !readControl(w, r, &f) {
			return
		}
		if err := s.SetFault(f); err != nil {
			writeError(w, badRequest("", "%v", err))
			return
		}
		s.showFault(w)
	})
	mux.HandleFunc("DELETE /control/fault", func(w http.ResponseWriter, _ *http.Request) {
		s.ClearFault()
		s.showFault(w)
	})
	mux.HandleFunc("GET /control/profile", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, s.Pace())
	})
	mux.HandleFunc("PUT /control/profile", func(w http.ResponseWriter, r *http.Request) {
		var p Pace
		if !readControl(w, r, &p) {
			return
		}
		if err := s.SetPace(p); err != nil {
			writeError(w, badRequest("", "%v", err))
			return
		}
		writeJSON(w, http.StatusOK, s.Pace())
	})
	mux.HandleFunc("GET /control/attempts", s.listAttempts)
	mux.HandleFunc("DELETE /control/attempts", func(w http.ResponseWriter, _ *http.Request) {
		s.ClearAttempts()
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /control/state", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, s.State())
	})
	return mux
}

func (s *Server) showFault(w http.ResponseWriter) {
	f := s.Fault()
	if f.Name == "" {
		writeJSON(w, http.StatusOK, struct{}{})
		return
	}
	writeJSON(w, http.StatusOK, f)
}

// ForgottenHeader is on the list of attempts: how many are no longer in it.
const ForgottenHeader = "X-Lab-Forgotten"

func (s *Server) listAttempts(w http.ResponseWriter, r *http.Request) {
	var since int64
	if v := r.URL.Query().Get("since"); v != "" {
		var err error
		if since, err = strconv.ParseInt(v, 10, 64); err != nil || since < 0 {
			writeError(w, badRequest("since", "since: want a sequence number"))
			return
		}
	}
	attempts, forgotten := s.log.since(since)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set(ForgottenHeader, strconv.FormatInt(forgotten, 10))
	for _, a := range attempts {
		if _, err := w.Write(append(marshal(a), '\n')); err != nil {
			return // the reader has gone
		}
	}
}

// readControl decodes a control request strictly. If it cannot, it has
// answered.
func readControl(w http.ResponseWriter, r *http.Request, into any) bool {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxControlBody))
	dec.DisallowUnknownFields()
	err := dec.Decode(into)
	if err == nil {
		if _, end := dec.Token(); !errors.Is(end, io.EOF) {
			err = errors.New("more than one value")
		}
	}
	if err != nil {
		writeError(w, badRequest("", "the body is not what this control reads: %v", err))
		return false
	}
	return true
}
