package httpapi

import (
	"context"
	"net/http"
	"slices"

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
	_, st, err := s.dryRun(ctx, "")
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

func poolOf(c echo.Context) (slackgate.Path, error) {
	var path slackgate.Path
	if err := path.UnmarshalText([]byte(c.Param("pool"))); err != nil || path == slackgate.Reject {
		return path, problem(http.StatusNotFound, wire.ReasonNotFound, "no such pool: paid or free")
	}
	return path, nil
}

func readOrder(c echo.Context) (*wire.Order, error) {
	o, err := readJSON[wire.Order](c)
	if err != nil {
		return nil, err
	}
	o.By = actor(c, o.By)
	return o, checkWords(o.Reason, o.By)
}

// drainPool closes a pool to newcomers. Its waiting jobs are offered to the gate
// once more, or run; those in flight end by their deadlines. Free goes before
// paid: with paid closed first, everything would be pushed onto free.
func (s *Server) drainPool(c echo.Context) error {
	return s.orderPool(c, "1", func(path slackgate.Path, o *wire.Order) error {
		if path != slackgate.Paid || o.Force || s.Config().Pools.Free.Limit == 0 {
			return nil
		}
		now, err := s.readPools(c.Request().Context())
		if err != nil {
			return err
		}
		if free := now.Pools[slackgate.Free.String()]; free.State != wire.PoolDrained {
			return problem(http.StatusConflict, wire.ReasonOrder, "free is "+free.State+": drain free before paid, or say force")
		}
		return nil
	})
}

// resumePool undoes drainPool.
func (s *Server) resumePool(c echo.Context) error {
	return s.orderPool(c, "", func(slackgate.Path, *wire.Order) error { return nil })
}

func (s *Server) orderPool(c echo.Context, value string, check func(slackgate.Path, *wire.Order) error) error {
	path, err := poolOf(c)
	if err != nil {
		return err
	}
	o, err := readOrder(c)
	if err != nil {
		return err
	}
	if err := check(path, o); err != nil {
		return err
	}
	if err := s.Store.SetFlag(c.Request().Context(), flag.Drain(path), "", value, o.By, o.Reason, 0); err != nil {
		return err
	}
	s.Log.Warn("drain changed", "path", path.String(), "draining", value != "", "by", o.By, "reason", o.Reason)
	return s.pools(c)
}

// drainBackend takes a backend out of service on all workers: calls under way
// end, no new ones begin. Its pool goes on with the others.
func (s *Server) drainBackend(c echo.Context) error {
	return s.orderBackend(c, "taken out", func(ctx context.Context, name string, o *wire.Order) error {
		return s.Store.TakeOutBackend(ctx, name, broker.TakenOut{Why: o.Reason, By: o.By})
	})
}

// resumeBackend undoes drainBackend, and whatever else keeps workers from a
// backend.
func (s *Server) resumeBackend(c echo.Context) error {
	return s.orderBackend(c, "put back", func(ctx context.Context, name string, _ *wire.Order) error {
		return s.Store.PutBackBackend(ctx, name)
	})
}

func (s *Server) orderBackend(c echo.Context, what string, give func(ctx context.Context, name string, o *wire.Order) error) error {
	path, err := poolOf(c)
	if err != nil {
		return err
	}
	name := c.Param("backend")
	if !slices.ContainsFunc(s.Config().Pool(path).Backends, func(b config.Backend) bool { return b.Name == name }) {
		return problem(http.StatusNotFound, wire.ReasonNotFound, "the pool has no such backend")
	}
	o, err := readOrder(c)
	if err != nil {
		return err
	}
	if err := give(c.Request().Context(), name, o); err != nil {
		return err
	}
	s.Log.Warn("backend changed by order", "order", what, "backend", name, "reason", o.Reason, "by", o.By)
	return s.pools(c)
}
