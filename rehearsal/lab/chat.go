package lab

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"leeway/rehearsal/lab/extract"
)

// writePatience is how long a client may take to read what is being sent.
const writePatience = time.Minute

// chat serves POST /v1/chat/completions.
func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	rec := s.log.open(responseID, r.Header)
	w.Header().Set("X-Request-Id", rec.a.ID)
	// A deadline of an earlier request on this connection may have passed.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})

	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBodyBytes))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			s.refuseRequest(w, rec, newError(http.StatusRequestEntityTooLarge, "invalid_request_error", "", "", "the body is larger than 4 MiB"))
			return
		}
		rec.end(EndedClientGone)
		return
	}
	req, bad := decodeRequest(body)
	if bad != nil {
		s.refuseRequest(w, rec, bad)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	if len(key) > MaxIdempotencyKey {
		s.refuseRequest(w, rec, badRequest("", "Idempotency-Key: want at most %d bytes", MaxIdempotencyKey))
		return
	}
	f, bad := s.faultFor(r, req.model, key)
	if bad != nil {
		s.refuseRequest(w, rec, bad)
		return
	}
	p := newPlan(f, s.answer(req))
	rec.update(func(a *Attempt) {
		a.Model, a.Fault, a.Stream, a.PromptTokens = req.model, f.String(), req.stream, req.promptTokens
	})

	finish := s.cfg.FinishAbandoned || (s.cfg.Dedupe && key != "" && p.dedupable())
	ctx, cancel := s.lifetime(r.Context(), finish)
	defer cancel()
	play := &play{s: s, w: w, ctx: ctx, client: r.Context(), req: req, plan: p, rec: rec, finish: finish}
	if s.cfg.Dedupe && key != "" && p.dedupable() {
		s.deduped(play, key, sha256.Sum256(body))
		return
	}
	play.run()
}

// refuseRequest answers a request that is not one.
func (s *Server) refuseRequest(w http.ResponseWriter, rec *record, e *apiError) {
	rec.update(func(a *Attempt) { a.Status = e.status })
	writeError(w, e)
	rec.end(EndedRejected)
}

// lifetime returns the context under which a request is worked on. It ends
// when the server closes, and with the client unless the work is to be
// finished.
func (s *Server) lifetime(client context.Context, finish bool) (context.Context, context.CancelFunc) {
	if finish {
		client = context.WithoutCancel(client)
	}
	ctx, cancel := context.WithCancel(client)
	stop := context.AfterFunc(s.base, cancel)
	return ctx, func() { stop(); cancel() }
}

// answer summarises.
func (s *Server) answer(req *request) answer {
	text := extract.Summary(req.text, req.words)
	a := answer{prompt: req.promptTokens, finish: "stop"}
	a.pieces = SplitTokens(text, -1)
	if req.limit >= 0 && len(a.pieces) > req.limit {
		a.pieces, a.finish = a.pieces[:req.limit], "length"
	}
	return a
}

// deduped runs p, or gives it the answer that another request with its key
// got or is getting.
func (s *Server) deduped(p *play, key string, body [sha256.Size]byte) {
	for {
		m, mine, conflict := s.cache.claim(key, body)
		if conflict {
			s.refuseRequest(p.w, p.rec, newError(http.StatusConflict, "invalid_request_error", "", "idempotency_key_reused",
				"this Idempotency-Key was used with another body"))
			return
		}
		if mine {
			ok := false
			defer func() { s.cache.finish(key, m, p.plan.ans, ok) }()
			ok = p.run()
			return
		}
		select {
		case <-m.done:
		case <-p.client.Done(): // nobody needs a copy whose reader has gone
			p.rec.end(p.gone())
			return
		case <-p.ctx.Done():
			p.rec.end(p.gone())
			return
		}
		if m.ok {
			p.copy(m.ans)
			return
		}
	}
}

// faultFor returns the fault that a request meets: the header's, else its
// model's, else the one that was set.
func (s *Server) faultFor(r *http.Request, model, key string) (fault, *apiError) {
	f, bad := s.modelFault(model)
	if bad != nil {
		return fault{}, bad
	}
	if name := r.Header.Get(FaultHeader); name != "" {
		var err error
		if f, err = (Fault{Name: name}).parse(); err != nil {
			return fault{}, badRequest("", "%s: %v", FaultHeader, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.name == "" && s.fault.Name != "" {
		f = s.parsed
		if s.hits++; s.fault.Count > 0 && s.hits >= s.fault.Count {
			s.endFault()
		}
	}
	return s.passing(f, key), nil
}

// passing returns health for a fault that has passed for this key or by now.
// s.mu is held.
func (s *Server) passing(f fault, key string) fault {
	switch f.name {
	case "retry-after", "flaky":
		if !s.once.first(f.name + " " + key) {
			return fault{}
		}
	case "flap":
		now := time.Now()
		if s.flapEnd.IsZero() {
			s.flapEnd = now.Add(f.own(time.Minute))
		}
		if !now.Before(s.flapEnd) {
			return fault{}
		}
	}
	return f
}

// modelFault returns the fault that a model name selects, or a 404.
func (s *Server) modelFault(model string) (fault, *apiError) {
	if model == s.cfg.Model {
		return fault{}, nil
	}
	if name, ok := strings.CutPrefix(model, FaultModelPrefix); ok {
		if f, err := (Fault{Name: name}).parse(); err == nil {
			return f, nil
		}
	}
	return fault{}, newError(http.StatusNotFound, "invalid_request_error", "model", "model_not_found", "The model does not exist: see GET /v1/models.")
}
