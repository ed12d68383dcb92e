package lab

import (
	"encoding/json"
	"net/http"
	"strconv"

	strict "github.com/go-json-experiment/json"
)

// maxControlBody bounds the body of a control request, in bytes.
const maxControlBody = 64 << 10

// ForgottenHeader is on the list of attempts: how many are no longer in it.
const ForgottenHeader = "X-Lab-Forgotten"

// controlHandler returns the handler of the control endpoint, for a listener
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
func (s *Server) controlHandler() http.Handler {
	mux := http.NewServeMux()
	show := func(pattern string, v func() any) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) { jsonResponse(http.StatusOK, v()).write(w) })
	}
	fault := func() any { return s.Fault() }
	pace := func() any { return s.Pace() }
	show("GET /control/faults", func() any { return FaultKinds() })
	show("GET /control/fault", fault)
	mux.HandleFunc("PUT /control/fault", change(s.SetFault, fault))
	show("DELETE /control/fault", func() any {
		s.ClearFault()
		return fault()
	})
	show("GET /control/profile", pace)
	mux.HandleFunc("PUT /control/profile", change(s.SetPace, pace))
	mux.HandleFunc("GET /control/attempts", s.listAttempts)
	mux.HandleFunc("DELETE /control/attempts", func(w http.ResponseWriter, _ *http.Request) {
		s.ClearAttempts()
		w.WriteHeader(http.StatusNoContent)
	})
	show("GET /control/state", func() any { return s.State() })
	return mux
}

// change returns the handler of a PUT: it decodes the body strictly, sets what
// it says and shows what is then set.
func change[T any](set func(T) error, show func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var v T
		err := strict.UnmarshalRead(http.MaxBytesReader(w, r.Body, maxControlBody), &v, strict.RejectUnknownMembers(true))
		if err != nil {
			errorResponse(badRequest("", "the body is not what this control reads: %v", err)).write(w)
			return
		}
		if err := set(v); err != nil {
			errorResponse(badRequest("", "%v", err)).write(w)
			return
		}
		jsonResponse(http.StatusOK, show()).write(w)
	}
}

func (s *Server) listAttempts(w http.ResponseWriter, r *http.Request) {
	var since int64
	if v := r.URL.Query().Get("since"); v != "" {
		var err error
		if since, err = strconv.ParseInt(v, 10, 64); err != nil || since < 0 {
			errorResponse(badRequest("since", "since: want a sequence number")).write(w)
			return
		}
	}
	attempts, forgotten := s.log.since(since)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set(ForgottenHeader, strconv.FormatInt(forgotten, 10))
	for _, a := range attempts {
		if err := json.NewEncoder(w).Encode(a); err != nil {
			return
		}
	}
}
