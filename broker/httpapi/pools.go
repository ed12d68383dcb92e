package httpapi

import (
	"io"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/slackgate"
)

// poolsAnswer is GET /v1/pools.
type poolsAnswer struct {
	NowMS int64               `json:"now_ms"`
	Pools map[string]poolView `json:"pools"`
	// Backends are as each living worker sees them.
	Backends []broker.BackendState `json:"backends"`
}

func (s *Server) pools(c echo.Context) error {
	ctx := c.Request().Context()
	_, st, err := s.dryRun(ctx)
	if err != nil {
		return err
	}
	backends, err := s.Store.Backends(ctx)
	if err != nil {
		return err
	}
	if backends == nil {
		backends = []broker.BackendState{}
	}
	return c.JSON(http.StatusOK, poolsAnswer{NowMS: st.NowMS, Pools: s.poolViews(st), Backends: backends})
}

// MaxReasonBytes bounds the words an operator gives for an action.
const MaxReasonBytes = 500

// order is the body of an operator's action.
type order struct {
	Reason string `json:"reason"`
	By     string `json:"by"`
}

func readOrder(c echo.Context) (*order, error) {
	if err := wantMedia(c.Request(), "application/json"); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.Response(), c.Request().Body, 8<<10))
	if err != nil {
		return nil, bodyError(err)
	}
	var o order
	if err := json.Unmarshal(body, &o, json.RejectUnknownMembers(true)); err != nil {
		return nil, inputError(err)
	}
	if o.Reason == "" || len(o.Reason) > MaxReasonBytes {
		return nil, broker.Fieldf("reason", "must be there and at most %d bytes: it stands in the record", MaxReasonBytes)
	}
	if len(o.By) > MaxProducerBytes {
		return nil, broker.Fieldf("by", "is longer than %d bytes", MaxProducerBytes)
	}
	return &o, nil
}

// backendOf checks that a pool has the backend the route names.
func (s *Server) backendOf(c echo.Context) (*config.Backend, error) {
	var path slackgate.Path
	if err := path.UnmarshalText([]byte(c.Param("pool"))); err != nil || path == slackgate.Reject {
		return nil, problem(http.StatusNotFound, ReasonNotFound, "no such pool: paid or free")
	}
	p := s.Config().Pool(path)
	for i := range p.Backends {
		if p.Backends[i].Name == c.Param("backend") {
			return &p.Backends[i], nil
		}
	}
	return nil, problem(http.StatusNotFound, ReasonNotFound, "the pool has no such backend")
}

// drainBackend takes a backend out of service on all workers: calls under way
// end, no new ones begin. Its pool goes on with the others.
func (s *Server) drainBackend(c echo.Context) error {
	b, err := s.backendOf(c)
	if err != nil {
		return err
	}
	o, err := readOrder(c)
	if err != nil {
		return err
	}
	if err := s.Store.TakeOutBackend(c.Request().Context(), b.Name, broker.TakenOut{Why: o.Reason, By: o.By}); err != nil {
		return err
	}
	s.Log.Warn("backend taken out", "backend", b.Name, "reason", o.Reason, "by", o.By)
	return s.pools(c)
}

// resumeBackend undoes drainBackend.
func (s *Server) resumeBackend(c echo.Context) error {
	b, err := s.backendOf(c)
	if err != nil {
		return err
	}
	o, err := readOrder(c)
	if err != nil {
		return err
	}
	if err := s.Store.PutBackBackend(c.Request().Context(), b.Name); err != nil {
		return err
	}
	s.Log.Warn("backend put back", "backend", b.Name, "reason", o.Reason, "by", o.By)
	return s.pools(c)
}
