package httpapi

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/broker/flag"
	"leeway/broker/wire"
	"leeway/slackgate"
)

func (s *Server) pools(c echo.Context) error {
	out, err := s.readPools(c.Request().Context())
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

func (s *Server) readPools(ctx context.Context) (*wire.Pools, error) {
	_, st, err := s.dryRun(ctx)
	if err != nil {
		return nil, err
	}
	views, err := s.poolViews(ctx, st)
	if err != nil {
		return nil, err
	}
	out := &wire.Pools{NowMS: st.NowMS, Pools: views, Backends: []broker.BackendState{}}
	backends, err := s.Store.Backends(ctx)
	out.Backends = append(out.Backends, backends...)
	return out, err
}

// drainState is where a pool stands.
func drainState(t *flag.Table, path slackgate.Path, p *slackgate.PoolState, nowMS int64) string {
	switch {
	case !t.Draining(path, nowMS):
		return wire.PoolOpen
	case p.InFlight() > 0:
		return wire.PoolDraining
	}
	return wire.PoolDrained
}

func readOrder(c echo.Context) (*wire.Order, error) {
	var o wire.Order
	if err := readJSON(c, &o); err != nil {
		return nil, err
	}
	o.By = actor(c, o.By)
	return &o, checkWords(o.Reason, o.By)
}

func poolOf(c echo.Context) (slackgate.Path, error) {
	var path slackgate.Path
	if err := path.UnmarshalText([]byte(c.Param("pool"))); err != nil || path == slackgate.Reject {
		return path, problem(http.StatusNotFound, wire.ReasonNotFound, "no such pool: paid or free")
	}
	return path, nil
}

// drain closes a pool to newcomers. Its waiting jobs are offered to the gate
// once more, or run; those in flight end by their deadlines. Free goes before
// paid: with paid closed first, everything would be pushed onto free.
func (s *Server) drain(c echo.Context) error {
	path, err := poolOf(c)
	if err != nil {
		return err
	}
	o, err := readOrder(c)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	if path == slackgate.Paid && !o.Force && s.Config().Pools.Free.Limit > 0 {
		now, err := s.readPools(ctx)
		if err != nil {
			return err
		}
		if free := now.Pools[slackgate.Free.String()]; free.State != wire.PoolDrained {
			return problem(http.StatusConflict, wire.ReasonOrder, "free is "+free.State+": drain free before paid, or say force")
		}
	}
	return s.setDrain(c, path, "1", o)
}

// resume undoes drain.
func (s *Server) resume(c echo.Context) error {
	path, err := poolOf(c)
	if err != nil {
		return err
	}
	o, err := readOrder(c)
	if err != nil {
		return err
	}
	return s.setDrain(c, path, "", o)
}

func (s *Server) setDrain(c echo.Context, path slackgate.Path, value string, o *wire.Order) error {
	if err := s.Store.SetFlag(c.Request().Context(), flag.Drain(path), "", value, o.By, o.Reason, 0); err != nil {
		return err
	}
	s.Log.Warn("drain changed", "path", path.String(), "draining", value != "", "by", o.By, "reason", o.Reason)
	return s.pools(c)
}

// backendOf checks that a pool has the backend the route names.
func (s *Server) backendOf(c echo.Context) (*config.Backend, error) {
	path, err := poolOf(c)
	if err != nil {
		return nil, err
	}
	p := s.Config().Pool(path)
	for i := range p.Backends {
		if p.Backends[i].Name == c.Param("backend") {
			return &p.Backends[i], nil
		}
	}
	return nil, problem(http.StatusNotFound, wire.ReasonNotFound, "the pool has no such backend")
}

// drainBackend takes a backend out of service on all workers: calls under way
// end, no new ones begin. Its pool goes on with the others.
func (s *Server) drainBackend(c echo.Context) error {
	return s.orderBackend(c, "taken out", func(ctx context.Context, name string, o *wire.Order) error {
		return s.Store.TakeOutBackend(ctx, name, broker.TakenOut{Why: o.Reason, By: o.By})
	})
}

// resumeBackend undoes drainBackend.
func (s *Server) resumeBackend(c echo.Context) error {
	return s.orderBackend(c, "put back", func(ctx context.Context, name string, _ *wire.Order) error {
		return s.Store.PutBackBackend(ctx, name)
	})
}

func (s *Server) orderBackend(c echo.Context, what string, give func(ctx context.Context, name string, o *wire.Order) error) error {
	b, err := s.backendOf(c)
	if err != nil {
		return err
	}
	o, err := readOrder(c)
	if err != nil {
		return err
	}
	if err := give(c.Request().Context(), b.Name, o); err != nil {
		return err
	}
	s.Log.Warn("backend changed by order", "order", what, "backend", b.Name, "reason", o.Reason, "by", o.By)
	return s.pools(c)
}
