package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/broker/wire"
)

// rowsAsked are the parameters that both ledgers take.
type rowsAsked struct {
	filter *ledger.Filter
	format ledger.Format
	cursor string
	// limit is 0 when a stream is to have no end but the ledger's.
	limit int
}

func askRows(c echo.Context, own ...string) (*rowsAsked, error) {
	q := newQuery(c, append([]string{"cursor", "limit", "from_ms", "to_ms", "path", "class", "producer", "backend", "format"}, own...)...)
	a := &rowsAsked{filter: q.filter(), format: q.format(c), cursor: q.Get("cursor")}
	if len(a.cursor) > maxCursor {
		q.failf("cursor", "is not one of ours")
	}
	def, most := int64(rowsByDefault), int64(wire.MaxRows)
	if a.format != ledger.JSON {
		def, most = 0, 1<<40
	}
	a.limit = int(q.int("limit", def, 1, most))
	return a, q.err
}

// spend reads the spend ledger: as JSON by page, with the attempts still open
// on the first one; as CSV or NDJSON all settled rows in a stream.
func (s *Server) spend(c echo.Context) error {
	a, err := askRows(c, "known")
	if err != nil {
		return err
	}
	if a.format != ledger.JSON {
		return streamLedger(s, c, a, ledger.SpendHeader, ledger.SpendRecord, s.Store.SpendRows)
	}
	ctx := c.Request().Context()
	var out struct {
		*broker.Page[broker.SpendRow]
		Open []broker.SpendRow `json:"open,omitempty"`
	}
	var open *broker.Page[broker.SpendRow]
	if a.cursor == "" {
		// Read first: a row that is settled meanwhile is then in both lists, and
		// not in neither.
		if open, err = s.Store.OpenSpendRows(ctx); err != nil {
			return err
		}
		out.Open = slices.DeleteFunc(open.Rows, func(r broker.SpendRow) bool { return !a.filter.WantsSpend(&r) })
	}
	if out.Page, err = s.Store.SpendRows(ctx, a.filter, a.cursor, a.limit); err != nil {
		return err
	}
	if open != nil {
		out.Unreadable = append(out.Unreadable, open.Unreadable...)
	}
	return c.JSON(http.StatusOK, out)
}

// misses reads the deadline-miss ledger.
func (s *Server) misses(c echo.Context) error {
	a, err := askRows(c, "cause", "outcome")
	if err != nil {
		return err
	}
	if a.format != ledger.JSON {
		return streamLedger(s, c, a, ledger.MissHeader, ledger.MissRecord, s.Store.MissRows)
	}
	page, err := s.Store.MissRows(c.Request().Context(), a.filter, a.cursor, a.limit)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, page)
}

// streamLedger writes the rows that were booked before the request came.
func streamLedger[T any](s *Server, c echo.Context, a *rowsAsked, header []string, record func(*T) []string,
	read func(context.Context, *ledger.Filter, string, int) (*broker.Page[T], error),
) error {
	ctx := c.Request().Context()
	if err := s.endNow(ctx, a.filter); err != nil {
		return err
	}
	page, err := read(ctx, a.filter, a.cursor, wire.MaxRows)
	if err != nil {
		return err
	}
	return s.streamRows(c, a.format, header, func(out *ledger.Writer) error {
		for written := 0; ; {
			for _, u := range page.Unreadable {
				s.Log.Warn("a row of a ledger cannot be read and is not in the stream", "row", u.ID, "error", u.Why)
			}
			for i := range page.Rows {
				if a.limit > 0 && written == a.limit {
					return nil
				}
				written++
				row := &page.Rows[i]
				if err := out.Write(row, func() []string { return record(row) }); err != nil {
					return err
				}
			}
			if page.Next == "" {
				return nil
			}
			if err := out.Flush(); err != nil {
				return err
			}
			c.Response().Flush()
			if page, err = read(ctx, a.filter, page.Next, wire.MaxRows); err != nil {
				return err
			}
		}
	})
}

// endNow gives a stream an end: without it a busy ledger has none.
func (s *Server) endNow(ctx context.Context, f *ledger.Filter) error {
	if f.ToMS != 0 {
		return nil
	}
	if err := s.Store.SyncClock(ctx); err != nil {
		return err
	}
	f.ToMS = s.Store.NowMS() + 1
	return nil
}

// streamRows answers with rows as CSV or NDJSON. A stream that breaks ends without
// its last chunk, so that nobody takes it for whole.
func (s *Server) streamRows(c echo.Context, f ledger.Format, header []string, rows func(out *ledger.Writer) error) error {
	c.Response().Header().Set("Content-Type", f.MediaType())
	c.Response().WriteHeader(http.StatusOK)
	out, err := ledger.NewWriter(c.Response(), f, header)
	if err == nil {
		err = rows(out)
	}
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		s.abort(c, err)
	}
	return nil
}

// checkLedgers holds the books against each other. One check at a time: it
// reads much.
func (s *Server) checkLedgers(c echo.Context) error {
	if q := newQuery(c); q.err != nil {
		return q.err
	}
	ctx := c.Request().Context()
	select {
	case s.checking <- struct{}{}:
		defer func() { <-s.checking }()
	case <-ctx.Done():
		return nil
	}
	r, err := s.Store.CheckLedgers(ctx)
	if err != nil {
		return fmt.Errorf("ledgers: %w", err)
	}
	return c.JSON(http.StatusOK, r)
}
