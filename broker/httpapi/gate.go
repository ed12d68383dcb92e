package httpapi

import (
	"context"
	"math"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/broker/redisstore"
	"leeway/slackgate"
	"leeway/slackgate/latency"
)

// GateAnswer is GET /v1/gate: the snapshot, and what the gate would say to a job
// of the class with the class's own deadline.
type GateAnswer struct {
	Policy string `json:"policy"`
	// Recheck is on, or off in a lab that was told so.
	Recheck string              `json:"recheck"`
	NowMS   int64               `json:"now_ms"`
	Pools   map[string]PoolView `json:"pools"`
	Verdict *Verdict            `json:"verdict"`
}

// PoolView is a pool's state on the wire.
type PoolView struct {
	// State is open, draining or drained.
	State string `json:"state"`
	Limit int    `json:"limit"`
	// LimitFrom is declared, or measured.
	LimitFrom string `json:"limit_from"`
	// Knees are those of the pool's backends that were measured.
	Knees          []KneeView `json:"knees"`
	Capacity       int        `json:"capacity"`
	Waiting        int        `json:"waiting"`
	Running        int        `json:"running"`
	QueueAgeMS     int64      `json:"queue_age_ms"`
	FirstByteP95MS int64      `json:"first_byte_p95_ms"`
	// Closed is set while a flag or a drain closes the pool to every class.
	Closed bool `json:"closed"`
	// FirstByte and Hold are where the gate's beliefs come from.
	FirstByte latencyView `json:"first_byte"`
	Hold      latencyView `json:"hold"`
}

// KneeView is a backend's measured knee on the wire.
type KneeView struct {
	Backend    string `json:"backend"`
	Limit      int    `json:"limit"`
	MeasuredOn string `json:"measured_on"`
	ValidUntil string `json:"valid_until"`
	// OutOfDate says why the measurement is not to be believed any more: it has
	// expired, or the backend has changed. Empty: it is current.
	OutOfDate string `json:"out_of_date,omitempty"`
}

// Where a pool's limit comes from.
const (
	LimitDeclared = "declared"
	LimitMeasured = "measured"
)

// knees are the measured knees of a pool's backends, at an instant of the
// store's clock.
func knees(p *config.Pool, nowMS int64) []KneeView {
	out := []KneeView{}
	for i := range p.Backends {
		if b := &p.Backends[i]; b.Knee != nil {
			out = append(out, KneeView{
				Backend: b.Name, Limit: b.Knee.Limit, MeasuredOn: b.Knee.MeasuredOn, ValidUntil: b.Knee.LastDay(),
				OutOfDate: b.KneeOutOfDate(time.UnixMilli(nowMS)),
			})
		}
	}
	return out
}

func limitFrom(p *config.Pool) string {
	if p.MeasuredLimit {
		return LimitMeasured
	}
	return LimitDeclared
}

// latencyView is a measured latency on the wire.
type latencyView struct {
	DeclaredP95MS int64  `json:"declared_p95_ms"`
	P95MS         int64  `json:"p95_ms"`
	MeanMS        int64  `json:"mean_ms"`
	Samples       int    `json:"samples"`
	WindowMS      int64  `json:"window_ms"`
	State         string `json:"state"`
}

func viewLatency(declared slackgate.Dist, e *latency.Estimate) latencyView {
	return latencyView{
		DeclaredP95MS: int64(math.Ceil(declared.P95MS)), P95MS: int64(math.Ceil(e.P95MS)), MeanMS: int64(math.Round(e.MeanMS)),
		Samples: e.Samples, WindowMS: e.WindowMS, State: e.State.String(),
	}
}

func (s *Server) poolViews(ctx context.Context, st *redisstore.GateState) (map[string]PoolView, error) {
	flags, err := s.Store.Flags(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]PoolView{}
	for _, path := range slackgate.Paths {
		p := &st.Pools[path]
		m := s.Latency(path)
		pool := s.Config().Pool(path)
		out[path.String()] = PoolView{
			State:     drainState(flags, path, p, st.NowMS),
			LimitFrom: limitFrom(pool), Knees: knees(pool, st.NowMS),
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
	v, st, err := s.dryRunOf(ctx, class)
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
	return c.JSON(http.StatusOK, GateAnswer{Policy: policy.String(), Recheck: recheck, NowMS: st.NowMS, Pools: views, Verdict: verdict(&v)})
}

// dryRun asks the gate about a job of the default class.
func (s *Server) dryRun(ctx context.Context) (broker.Verdict, *redisstore.GateState, error) {
	return s.dryRunOf(ctx, "")
}

// dryRunOf asks the gate about a job of a class with the class's deadline.
func (s *Server) dryRunOf(ctx context.Context, class string) (broker.Verdict, *redisstore.GateState, error) {
	text := "dry run"
	job, err := (&submission{Class: class, Text: &text}).job(s.Config(), 0, time.Now())
	if err != nil {
		return broker.Verdict{}, nil, err
	}
	return s.Admitter.DryRun(ctx, job)
}
