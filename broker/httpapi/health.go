package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/wire"
)

// ReadyFor is how long what /readyz has found stands: it asks the store, and
// anybody may ask it.
const ReadyFor = 100 * time.Millisecond

// readiness is what /readyz answers.
type readiness struct {
	Status  string            `json:"status"`
	Checks  map[string]string `json:"checks"`
	Verdict *wire.Verdict     `json:"verdict,omitempty"`
	code    int
	at      time.Time
}

// readyz says what was found a moment ago, or looks; one looks for all who ask.
func (s *Server) readyz(c echo.Context) error {
	ctx := c.Request().Context()
	select {
	case a := <-s.ready:
		if time.Since(a.at) >= ReadyFor {
			a = s.lookReady(context.WithoutCancel(ctx))
			a.at = time.Now()
		}
		s.ready <- a
		return c.JSON(a.code, a)
	case <-ctx.Done():
		return errClientGone
	}
}

// lookReady exercises an admission dry run: a gate that cannot decide is not
// ready, whatever a ping says. A failed background loop shows here too.
func (s *Server) lookReady(ctx context.Context) readiness {
	a := readiness{Status: "ready", Checks: map[string]string{"background": "ok", "gate": "ok", "store": "ok"}, code: http.StatusOK}
	if risks := s.Risks(); len(risks) > 0 { // no reason to decide nothing
		a.Checks["store"] = strings.Join(risks, "; ")
	}
	v, _, err := s.dryRun(ctx, "")
	// A shard that cannot decide keeps none of the others from it.
	decided := err == nil || (v.Reason != "" && !v.Reason.Unavailable())
	if decided {
		if full := s.Store.Writable(ctx); full != nil {
			decided, err = false, full
		}
	}
	if err != nil {
		a.Checks["gate"] = gateTrouble(err)
	}
	if decided {
		a.Verdict = wire.NewVerdict(&v)
		if v.Reason.Unavailable() {
			decided, a.Checks["gate"] = false, string(v.Reason)+s.misconfigured(ctx)
		}
	}
	failed := s.Background.Err() != nil
	if failed {
		a.Checks["background"] = "a background loop has failed: see the log"
	}
	if failed || !decided {
		a.code, a.Status = http.StatusServiceUnavailable, "not ready"
	}
	return a
}

// misconfigured says of each backend whose options are wrong which one to set.
// Nothing else of what backends look like is anybody's who may ask for this.
func (s *Server) misconfigured(ctx context.Context) string {
	backends, err := s.Store.Backends(ctx)
	if err != nil {
		return "" // the gate has decided without
	}
	told := map[string]bool{} // by several workers
	var out strings.Builder
	for i := range backends {
		b := &backends[i]
		if b.State == broker.BackendOut && strings.HasPrefix(b.Why, broker.WhyUnsupported) && !told[b.Backend] {
			told[b.Backend] = true
			out.WriteString("; backend " + b.Backend + " is out: " + b.Why)
		}
	}
	return out.String()
}

// gateTrouble says why the gate cannot decide.
func gateTrouble(err error) string {
	if !errors.Is(err, broker.ErrUnavailable) {
		return err.Error()
	}
	if layout, ok := errors.AsType[*broker.LayoutError](err); ok {
		return layout.Error()
	}
	return broker.TroubleOf(err).Sentence()
}
