package httpapi

import (
	"context"
	"math"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/broker/wire"
	"leeway/slackgate"
	"leeway/slackgate/latency"
)

// knees are the measured knees of a pool's backends, at an instant of the
// store's clock.
func knees(p *config.Pool, nowMS int64) []wire.KneeView {
	out := []wire.KneeView{}
	for i := range p.Backends {
		if b := &p.Backends[i]; b.Knee != nil {
			out = append(out, wire.KneeView{
				Backend: b.Name, Limit: b.Knee.Limit, MeasuredOn: b.Knee.MeasuredOn, ValidUntil: b.Knee.LastDay(),
				OutOfDate: b.KneeOutOfDate(time.UnixMilli(nowMS)),
			})
		}
	}
	return out
}

func viewLatency(declared slackgate.Dist, e *latency.Estimate) wire.Latency {
	return wire.Latency{
		DeclaredP95MS: int64(math.Ceil(declared.P95MS)), P95MS: int64(math.Ceil(e.P95MS)), MeanMS: int64(math.Round(e.MeanMS)),
		Samples: e.Samples, WindowMS: e.WindowMS, State: e.State.String(),
	}
}

func (s *Server) poolViews(ctx context.Context, st *broker.GateState) (map[string]wire.PoolView, error) {
	flags, err := s.Store.Flags(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]wire.PoolView{}
	for _, path := range slackgate.Paths {
		p := &st.Pools[path]
		m := s.Latency(path)
		pool := s.Config().Pool(path)
		from := wire.LimitDeclared
		if pool.MeasuredLimit {
			from = wire.LimitMeasured
		}
		out[path.String()] = wire.PoolView{
			State:     drainState(flags, path, p, st.NowMS),
			LimitFrom: from, Knees: knees(pool, st.NowMS),
			Limit: p.Limit, Capacity: p.Capacity, Waiting: p.Waiting, Running: p.Running,
			QueueAgeMS: p.QueueAgeMS, FirstByteP95MS: p.FirstByteP95MS, Closed: p.Closed,
			FirstByte: viewLatency(m.Declared.FirstByte, &m.FirstByte), Hold: viewLatency(m.Declared.Hold, &m.Hold),
		}
	}
	return out, nil
}

func (s *Server) gate(c echo.Context) error {
	class := c.QueryParam("class")
	if err := s.knownClass(class); err != nil {
		return err
	}
	ctx := c.Request().Context()
	v, st, err := s.dryRun(ctx, class)
	if err != nil {
		return err
	}
	views, err := s.poolViews(ctx, st)
	if err != nil {
		return err
	}
	flags, err := s.Store.Flags(ctx)
	if err != nil {
		return err
	}
	policy := flags.Apply(s.StartValues(), class, st.NowMS).Policy
	recheck := "on"
	if s.Config().Lab.RecheckOff {
		recheck = "off"
	}
	return c.JSON(http.StatusOK, wire.GateAnswer{Policy: policy.String(), Recheck: recheck, NowMS: st.NowMS, Pools: views, Verdict: wire.NewVerdict(&v)})
}

// dryRun asks the gate about a job of a class with the class's deadline; empty:
// of the default class.
func (s *Server) dryRun(ctx context.Context, class string) (broker.Verdict, *broker.GateState, error) {
	job, err := (&submission{Class: class, Text: new("dry run")}).job(s.Config(), 0, time.Now())
	if err != nil {
		return broker.Verdict{}, nil, err
	}
	return s.Admitter.DryRun(ctx, job)
}
