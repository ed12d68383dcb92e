package httpapi

import (
	"mime"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// query reads the parameters of a request, and refuses those it was not asked
// for: a filter with a slip of the pen must not pass for no filter.
type query struct {
	url.Values
	err error
}

func newQuery(c echo.Context, known ...string) *query {
	q := &query{Values: c.QueryParams()}
	for name, values := range q.Values {
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

func (q *query) int(name string, def, lo, hi int64) int64 {
	if q.Get(name) == "" {
		return def
	}
	n, err := strconv.ParseInt(q.Get(name), 10, 64)
	if err != nil || n < lo || n > hi {
		q.failf(name, "must be a whole number in %d..%d", lo, hi)
		return def
	}
	return n
}

// text reads a filter that compares.
func (q *query) text(name string) string {
	v := q.Get(name)
	if len(v) > wire.MaxProducerBytes {
		q.failf(name, "is longer than %d bytes", wire.MaxProducerBytes)
	}
	return v
}

// oneOf reads one of a closed set; empty if it is not there.
func oneOf[T ~string](q *query, name string, set ...T) T {
	v := T(q.Get(name))
	if v != "" && !slices.Contains(set, v) {
		q.failf(name, "%q is not one of %v", string(v), set)
		return ""
	}
	return v
}

// Bounds of pages.
const (
	listedByDefault = 50
	rowsByDefault   = 100
	// maxCursor bounds a ledger's cursor, in bytes: one of a store is below 50, and
	// there may be one for each of 64 shards.
	maxCursor = 4096
)

// limit reads how long a page of a list may be.
func (q *query) limit() int { return int(q.int("limit", listedByDefault, 1, wire.MaxListed)) }

// maxInstantMS is far beyond any instant a ledger holds, and far from where
// sums of milliseconds overflow.
const maxInstantMS = 1 << 53

func (q *query) filter() *ledger.Filter {
	f := &ledger.Filter{
		FromMS: q.int("from_ms", 0, 0, maxInstantMS), ToMS: q.int("to_ms", 0, 1, maxInstantMS),
		Class: q.text("class"), Producer: q.text("producer"), Backend: q.text("backend"),
		Known:   oneOf(q, "known", broker.Knowns[:]...),
		Cause:   oneOf(q, "cause", broker.Causes[:]...),
		Outcome: oneOf(q, "outcome", broker.Outcomes[:]...),
	}
	if path := q.Get("path"); path != "" {
		f.Path = new(slackgate.Path)
		if f.Path.UnmarshalText([]byte(path)) != nil {
			q.failf("path", "%q is not one of reject, paid, free", path)
		}
	}
	return f
}

// format is ?format= or, without it, what Accept asks for.
func (q *query) format(c echo.Context) ledger.Format {
	if q.Get("format") != "" {
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
