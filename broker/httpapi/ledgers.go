package httpapi

import (
	"context"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/broker/redisstore"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// Bounds of what may be asked of the ledgers.
const (
	// MaxRollupMinutes is the longest range of roll-ups of one request: 31
	// days.
	MaxRollupMinutes = 31 * 24 * 60
	// MaxRollupRows bounds the sums in one JSON answer; streams are not
	// bounded.
	MaxRollupRows = 50_000
	// DefaultRollupMS is the range of roll-ups if none is asked for: the last
	// hour.
	DefaultRollupMS = 3600_000
)

// query reads the parameters of a request, and refuses those it was not asked
// for: a filter with a slip of the pen must not pass for no filter.
type query struct {
	v   url.Values
	err error
}

func newQuery(c echo.Context, known ...string) *query {
	q := &query{v: c.QueryParams()}
	for name, values := range q.v {
		switch {
		case !slices.Contains(known, name):
			q.failf(name, "is no parameter of this route: %s", strings.Join(known, ", "))
		case len(values) > 1:
			q.failf(name, "is there twice")
		}
	}
	return q
}

func (q *query) failf(field, format string, args ...any) {
	if q.err == nil {
		q.err = broker.Fieldf(field, format, args...)
	}
}

func (q *query) has(name string) bool { return q.v.Get(name) != "" }

func (q *query) int(name string, def, lo, hi int64) int64 {
	if !q.has(name) {
		return def
	}
	n, err := strconv.ParseInt(q.v.Get(name), 10, 64)
	if err != nil || n < lo || n > hi {
		q.failf(name, "must be a whole number in %d..%d", lo, hi)
		return def
	}
	return n
}

// text reads a filter that compares.
func (q *query) text(name string) string {
	v := q.v.Get(name)
	if len(v) > wire.MaxProducerBytes {
		q.failf(name, "is longer than %d bytes", wire.MaxProducerBytes)
	}
	return v
}

// oneOf reads one of a closed set; empty if it is not there.
func oneOf[T ~string](q *query, name string, set ...T) T {
	v := T(q.v.Get(name))
	if v != "" && !slices.Contains(set, v) {
		q.failf(name, "%q is not one of %v", string(v), set)
		return ""
	}
	return v
}

// maxInstantMS is far beyond any instant a ledger holds, and far from where
// sums of milliseconds overflow.
const maxInstantMS = 1 << 53

func (q *query) filter() *ledger.Filter {
	f := &ledger.Filter{
		FromMS: q.int("from_ms", 0, 0, maxInstantMS), ToMS: q.int("to_ms", 0, 1, maxInstantMS),
		Class: q.text("class"), Producer: q.text("producer"), Backend: q.text("backend"),
		Known:   oneOf(q, "known", broker.KnownReported, broker.KnownEstimated, broker.KnownUnknown),
		Cause:   oneOf(q, "cause", broker.Causes[:]...),
		Outcome: oneOf(q, "outcome", broker.Outcomes[:]...),
	}
	if q.has("path") {
		f.Path = new(slackgate.Path)
		if f.Path.UnmarshalText([]byte(q.v.Get("path"))) != nil {
			q.failf("path", "%q is not one of reject, paid, free", q.v.Get("path"))
		}
	}
	return f
}

// format is ?format= or, without it, what Accept asks for.
func (q *query) format(c echo.Context) ledger.Format {
	if q.has("format") {
		return oneOf(q, "format", ledger.JSON, ledger.CSV, ledger.NDJSON)
	}
	for part := range strings.SplitSeq(c.Request().Header.Get("Accept"), ",") {
		switch t, _, _ := mime.ParseMediaType(part); t {
		case "text/csv":
			return ledger.CSV
		case "application/x-ndjson":
			return ledger.NDJSON
		case "application/json":
			return ledger.JSON
		}
	}
	return ledger.JSON
}

var rowParams = []string{"cursor", "limit", "from_ms", "to_ms", "path", "class", "producer", "backend", "format"}

// rowsAsked are the parameters that both ledgers take.
type rowsAsked struct {
	filter *ledger.Filter
	format ledger.Format
	cursor string
	// limit is 0 when a stream is to have no end but the ledger's.
	limit int
}

func askRows(c echo.Context, own ...string) (*rowsAsked, error) {
	q := newQuery(c, append(slices.Clone(rowParams), own...)...)
	a := &rowsAsked{filter: q.filter(), format: q.format(c), cursor: q.v.Get("cursor")}
	if len(a.cursor) > maxCursor {
		q.failf("cursor", "is not one of ours")
	}
	def, most := int64(defaultPage), int64(wire.MaxRows)
	if a.format != ledger.JSON {
		def, most = 0, 1<<40
	}
	a.limit = int(q.int("limit", def, 1, most))
	return a, q.err
}

const defaultPage = 100

// spend reads the spend ledger: as JSON by page, with the attempts still open
// on the first one; as CSV or NDJSON all settled rows in a stream.
func (s *Server) spend(c echo.Context) error {
	a, err := askRows(c, "known")
	if err != nil {
		return err
	}
	if a.format != ledger.JSON {
		return streamRows(s, c, a, ledger.SpendHeader, ledger.SpendRecord, s.Store.SpendRows)
	}
	ctx := c.Request().Context()
	var out struct {
		*redisstore.Page[broker.SpendRow]
		Open []broker.SpendRow `json:"open,omitempty"`
	}
	if a.cursor == "" {
		// Read first: a row that is settled meanwhile is then in both lists, and
		// not in neither.
		open, err := s.Store.OpenSpendRows(ctx)
		if err != nil {
			return err
		}
		out.Open = slices.DeleteFunc(open, func(r broker.SpendRow) bool { return !a.filter.WantsSpend(&r) })
	}
	if out.Page, err = s.Store.SpendRows(ctx, a.filter, a.cursor, a.limit); err != nil {
		return err
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
		return streamRows(s, c, a, ledger.MissHeader, ledger.MissRecord, s.Store.MissRows)
	}
	page, err := s.Store.MissRows(c.Request().Context(), a.filter, a.cursor, a.limit)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, page)
}

// streamRows writes the rows that were booked before the request came, page
// after page. A stream that breaks ends without its last chunk, so that nobody
// takes it for whole.
func streamRows[T any](s *Server, c echo.Context, a *rowsAsked, header []string, record func(*T) []string,
	read func(context.Context, *ledger.Filter, string, int) (*redisstore.Page[T], error),
) error {
	ctx := c.Request().Context()
	if err := s.endNow(ctx, a.filter); err != nil {
		return err
	}
	first, err := read(ctx, a.filter, a.cursor, wire.MaxRows)
	if err != nil {
		return err
	}
	out := s.stream(c, a.format, header)
	written := 0
	for page := first; ; {
		for i := range page.Rows {
			if a.limit > 0 && written == a.limit {
				return out.end()
			}
			written++
			row := &page.Rows[i]
			if err := out.Write(row, func() []string { return record(row) }); err != nil {
				out.broken(err)
			}
		}
		if page.Next == "" {
			return out.end()
		}
		if err := out.flush(); err != nil {
			out.broken(err)
		}
		if page, err = read(ctx, a.filter, page.Next, wire.MaxRows); err != nil {
			out.broken(err)
		}
	}
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

// rowStream is a body of rows under way.
type rowStream struct {
	*ledger.Writer
	s *Server
	c echo.Context
}

func (s *Server) stream(c echo.Context, f ledger.Format, header []string) *rowStream {
	c.Response().Header().Set("Content-Type", f.MediaType())
	c.Response().WriteHeader(http.StatusOK)
	w, err := ledger.NewWriter(c.Response(), f, header)
	out := &rowStream{Writer: w, s: s, c: c}
	if err != nil {
		out.broken(err)
	}
	return out
}

func (o *rowStream) flush() error {
	err := o.Flush()
	o.c.Response().Flush()
	return err
}

func (o *rowStream) end() error {
	if err := o.Flush(); err != nil {
		o.broken(err)
	}
	return nil
}

// broken ends the request so that its client sees that the body is not whole.
func (o *rowStream) broken(err error) {
	if o.c.Request().Context().Err() == nil {
		o.s.Log.Warn("ledger stream broke", "route", o.c.Path(), "error", err)
	}
	panic(http.ErrAbortHandler)
}

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
	if _, ok := q.v["group"]; ok {
		r.Group = slices.DeleteFunc(strings.Split(q.v.Get("group"), ","), func(g string) bool { return g == "" })
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
	a := &wire.RollupAnswer{Ledger: r.Kind, By: r.Step, ToMS: r.Filter.ToMS, ReachesBackToMS: s.Store.RollupsReachBackToMS()}
	if a.FromMS = r.Filter.FromMS; !q.has("from_ms") {
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
	out := s.stream(c, f, ledger.SumHeader(r.Kind))
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
	if err == nil {
		err = write()
	}
	if err != nil {
		out.broken(err)
	}
	return out.end()
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

// maxCursor bounds a cursor, in bytes: one of a store is below 50, and there may
// be one for each of 64 shards.
const maxCursor = 4096

// pageParams reads ?cursor= and ?limit=.
func pageParams(c echo.Context) (cursor string, limit int, err error) {
	q := newQuery(c, "cursor", "limit")
	cursor, limit = q.v.Get("cursor"), int(q.int("limit", defaultPage, 1, wire.MaxRows))
	if len(cursor) > maxCursor {
		q.failf("cursor", "is not one of ours")
	}
	return cursor, limit, q.err
}
