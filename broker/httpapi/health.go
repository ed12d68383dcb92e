package httpapi

import (
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/wire"
)

// ready exercises an admission dry run: a gate that cannot decide is not
// ready, whatever a ping says. A failed background loop shows here too.
func (s *Server) ready(c echo.Context) error {
	a := struct {
		Status  string            `json:"status"`
		Checks  map[string]string `json:"checks"`
		Verdict *wire.Verdict     `json:"verdict,omitempty"`
	}{Status: "ready", Checks: map[string]string{"background": "ok", "gate": "ok"}}
	ctx := c.Request().Context()
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
			decided, a.Checks["gate"] = false, string(v.Reason)
		}
	}
	failed := s.Background.Err() != nil
	if failed {
		a.Checks["background"] = "a background loop has failed: see the log"
	}
	status := http.StatusOK
	if failed || !decided {
		status, a.Status = http.StatusServiceUnavailable, "not ready"
	}
	return c.JSON(status, a)
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
