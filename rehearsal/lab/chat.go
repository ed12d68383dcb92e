package lab

import (
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"
)

// chat serves POST /v1/chat/completions.
func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	rec := s.log.open(r.Header)
	w.Header().Set("X-Request-Id", rec.a.ID)
	// A deadline of an earlier request on this connection may have passed.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})

	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBodyBytes))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			rec.reject(w, newError(http.StatusRequestEntityTooLarge, invalidRequest, "", "", "the body is larger than 4 MiB"))
			return
		}
		rec.end(EndedClientGone)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	req, bad := decodeRequest(body)
	if bad == nil && len(key) > MaxIdempotencyKey {
		bad = badRequest("", "Idempotency-Key: want at most %d bytes", MaxIdempotencyKey)
	}
	var f fault
	if bad == nil {
		f, bad = s.faultFor(r.Header, req.model, key)
	}
	if bad != nil {
		rec.reject(w, bad)
		return
	}
	rec.update(func(a *Attempt) {
		a.Model, a.Fault, a.Stream, a.PromptTokens = req.model, f.String(), req.stream, req.promptTokens
	})

	p := &play{s: s, w: w, ctx: r.Context(), client: r.Context(), req: req, plan: newPlan(f, req.answer()), rec: rec}
	req.stream = req.stream && !p.plan.asBody
	dedupe := s.cfg.Dedupe && key != "" && p.plan.dedupable()
	if s.cfg.FinishAbandoned || dedupe {
		p.finish, p.ctx = true, s.base
	}
	if dedupe {
		s.deduped(p, key, sha256.Sum256(body))
		return
	}
	p.run()
}

// deduped runs p, or gives it the answer that another request with its key
// got or is getting.
func (s *Server) deduped(p *play, key string, body [sha256.Size]byte) {
	for {
		m, mine, conflict := s.answers.claim(key, body)
		if conflict {
			p.rec.reject(p.w, newError(http.StatusConflict, invalidRequest, "", "idempotency_key_reused",
				"this Idempotency-Key was used with another body"))
			return
		}
		if mine {
			ok := false
			defer func() { s.answers.finish(m, p.plan.ans, ok) }()
			ok = p.run()
			return
		}
		select {
		case <-m.done:
		case <-p.client.Done(): // nobody needs a copy whose reader has gone
			p.rec.end(p.gone())
			return
		}
		if !m.failed {
			p.copy(m.ans)
			return
		}
	}
}

// faultFor returns the fault that a request meets: the header's, else its
// model's, else the one that was set.
func (s *Server) faultFor(h http.Header, model, key string) (fault, *apiError) {
	f, bad := s.modelFault(model)
	if bad != nil {
		return fault{}, bad
	}
	if name := h.Get(FaultHeader); name != "" {
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
			s.setFault(Fault{}, fault{})
		}
	}
	return s.passing(f, key), nil
}

// passing returns health for a fault that has passed for this key or by now.
// s.mu is held.
func (s *Server) passing(f fault, key string) fault {
	switch f.name {
	case "retry-after", "flaky":
		met := f.name + " " + key
		if _, again := s.met.get(met); again {
			return fault{}
		}
		s.met.put(met, struct{}{})
	case "flap", "loading":
		now := time.Now()
		if s.flapEnd.IsZero() {
			s.flapEnd = now.Add(f.own(map[string]time.Duration{"flap": time.Minute, "loading": 3 * time.Second}[f.name]))
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
	return fault{}, newError(http.StatusNotFound, invalidRequest, "model", "model_not_found", "The model does not exist: see GET /v1/models.")
}
