package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/broker/wire"
)

// Bounds of what may be asked of the roll-ups.
const (
	// MaxRollupMinutes is the longest range of one request: 31 days.
	MaxRollupMinutes = 31 * 24 * 60
	// MaxRollupRows bounds the sums in one JSON answer; streams are not
	// bounded.
	MaxRollupRows = 50_000
	// DefaultRollupMS is the range if none is asked for: the last hour.
	DefaultRollupMS = 3600_000
)

// rollups reads the sums of one ledger by minute or hour. Steps in which
// nothing was booked have no row.
func (s *Server) rollups(c echo.Context) error {
	q := newQuery(c, "ledger", "by", "group", "from_ms", "to_ms", "path", "class", "producer", "backend", "cause", "format")
	format := q.format(c)
	r := &ledger.Rollup{
		Kind: oneOf(q, "ledger", ledger.Spend, ledger.Misses), Step: oneOf(q, "by", ledger.ByMinute, ledger.ByHour),
		Group: ledger.LabelNames, Filter: *q.filter(),
	}
	if r.Kind == "" {
		q.failf("ledger", "must be spend or misses: the two are never summed")
	}
	if r.Step == "" {
		r.Step = ledger.ByMinute
	}
	if q.Has("group") {
		r.Group = slices.DeleteFunc(strings.Split(q.Get("group"), ","), func(g string) bool { return g == "" })
		for _, g := range r.Group {
			if !slices.Contains(ledger.LabelNames, g) {
				q.failf("group", "%q is not one of %v", g, ledger.LabelNames)
			}
		}
	}
	if r.Kind == ledger.Spend && r.Filter.Cause != "" {
		q.failf("cause", "is not for the spend ledger")
	}
	if q.err != nil {
		return q.err
	}
	ctx := c.Request().Context()
	if err := s.endNow(ctx, &r.Filter); err != nil {
		return err
	}
	a := &wire.RollupAnswer{Ledger: r.Kind, By: r.Step, ToMS: r.Filter.ToMS, OldestAtMS: s.Store.OldestRollupAtMS()}
	if a.FromMS = r.Filter.FromMS; q.Get("from_ms") == "" {
		a.FromMS = max(0, a.ToMS-DefaultRollupMS)
	}
	a.FromMS -= a.FromMS % r.Step.MS()
	first, last := ledger.MinuteOf(a.FromMS), ledger.MinuteOf(a.ToMS-1)+1
	if last-first > MaxRollupMinutes {
		return broker.Fieldf("from_ms", "the range is longer than %d days", MaxRollupMinutes/24/60)
	}
	if format != ledger.JSON {
		return s.streamSums(c, format, r, first, last)
	}
	a.Rows = []*ledger.Sum{}
	err := s.Store.Minutes(ctx, first, last, func(m ledger.MinuteSums) error {
		r.Add(m.Minute, m.Sums)
		if r.Len() > MaxRollupRows {
			return broker.Fieldf("group", "more than %d sums: group by fewer labels, ask for a shorter range, or stream them as ndjson", MaxRollupRows)
		}
		return nil
	})
	if err != nil {
		return err
	}
	a.Rows = append(a.Rows, r.Take()...)
	return c.JSON(http.StatusOK, a)
}

// streamSums writes each step as soon as it is complete.
func (s *Server) streamSums(c echo.Context, f ledger.Format, r *ledger.Rollup, first, last int64) error {
	return s.streamRows(c, f, ledger.SumHeader(r.Kind), func(out *ledger.Writer) error {
		write := func() error {
			for _, sum := range r.Take() {
				if err := out.Write(sum, func() []string { return ledger.SumRecord(sum) }); err != nil {
					return err
				}
			}
			return nil
		}
		step := r.Step.MS() / ledger.MinuteMS(1)
		err := s.Store.Minutes(c.Request().Context(), first, last, func(m ledger.MinuteSums) error {
			if m.Minute%step == 0 {
				if err := write(); err != nil {
					return err
				}
			}
			r.Add(m.Minute, m.Sums)
			return nil
		})
		if err != nil {
			return err
		}
		return write()
	})
}
