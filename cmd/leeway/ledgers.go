package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mattn/go-isatty"

	"leeway/broker/client"
	"leeway/broker/ledger"
)

type ledgersCmd struct {
	Spend  ledgersSpendCmd  `cmd:"" help:"What was spent."`
	Misses ledgersMissesCmd `cmd:"" help:"Which deadlines were missed."`
	Both   ledgersBothCmd   `cmd:"" help:"Both books side by side. They are never summed."`
	Check  ledgersCheckCmd  `cmd:"" help:"Hold the books against each other. Exit 0: they balance, 1: they do not, 2: they could not be read."`
}

// ledgerRange says which part of a ledger is wanted.
type ledgerRange struct {
	apiFlags
	Since    time.Duration `default:"1h" help:"How far back."`
	By       ledger.Step   `enum:"minute,hour" default:"minute" help:"minute or hour."`
	Path     string        `help:"reject, paid or free only."`
	Class    string        `help:"This class only."`
	Producer string        `help:"This producer only."`
	Backend  string        `help:"This backend only."`
}

func (r *ledgerRange) query() url.Values {
	q := url.Values{"from_ms": {strconv.FormatInt(time.Now().Add(-r.Since).UnixMilli(), 10)}}
	for name, v := range map[string]string{"path": r.Path, "class": r.Class, "producer": r.Producer, "backend": r.Backend} {
		if v != "" {
			q.Set(name, v)
		}
	}
	return q
}

// outputFlags say how a ledger is written.
type outputFlags struct {
	Rows   bool   `help:"The rows themselves in place of sums; as csv unless --format says ndjson."`
	Format string `enum:"table,csv,ndjson" default:"table" help:"table, csv or ndjson."`
	Group  string `default:"path,backend" help:"What sums are kept apart by: path, class, producer, backend."`
}

// write writes one ledger.
func (o *outputFlags) write(ctx context.Context, out io.Writer, r *ledgerRange, k ledger.Kind) error {
	q := r.query()
	format := ledger.Format(o.Format)
	if o.Rows {
		if o.Format == "table" {
			format = ledger.CSV
		}
		return r.client().StreamRows(ctx, k, format, q, out)
	}
	q.Set("by", string(r.By))
	q.Set("group", o.Group)
	if o.Format != "table" {
		return r.client().StreamRollups(ctx, k, format, q, out)
	}
	b, err := readBook(ctx, r, k, q)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(out, b.title(r))
	for _, line := range b.lines(isTerminal(out)) {
		_, _ = fmt.Fprintln(out, line)
	}
	return nil
}

type ledgersSpendCmd struct {
	ledgerRange
	outputFlags
}

// Run prints the spend ledger.
func (c *ledgersSpendCmd) Run(ctx context.Context, out io.Writer) error {
	return c.write(ctx, out, &c.ledgerRange, ledger.Spend)
}

type ledgersMissesCmd struct {
	ledgerRange
	outputFlags
}

// Run prints the deadline-miss ledger.
func (c *ledgersMissesCmd) Run(ctx context.Context, out io.Writer) error {
	return c.write(ctx, out, &c.ledgerRange, ledger.Misses)
}

type ledgersBothCmd struct{ ledgerRange }

// Run prints both ledgers side by side.
func (c *ledgersBothCmd) Run(ctx context.Context, out io.Writer) error {
	q := c.query()
	q.Set("by", string(c.By))
	q.Set("group", "path")
	var blocks [2][]string
	for i, k := range []ledger.Kind{ledger.Spend, ledger.Misses} {
		b, err := readBook(ctx, &c.ledgerRange, k, q)
		if err != nil {
			return err
		}
		blocks[i] = append([]string{b.title(&c.ledgerRange)}, b.lines(isTerminal(out))...)
	}
	for _, line := range sideBySide(blocks[0], blocks[1]) {
		_, _ = fmt.Fprintln(out, line)
	}
	return nil
}

// sideBySide sets two blocks of lines next to each other.
func sideBySide(left, right []string) (out []string) {
	width := 0
	for _, l := range left {
		width = max(width, len([]rune(l)))
	}
	at := func(block []string, i int) string {
		if i < len(block) {
			return block[i]
		}
		return ""
	}
	for i := range max(len(left), len(right)) {
		l := at(left, i)
		out = append(out, strings.TrimRight(l+strings.Repeat(" ", width-len([]rune(l)))+"  |  "+at(right, i), " "))
	}
	return out
}

func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// book is one ledger's sums over a range.
type book struct {
	kind            ledger.Kind
	fromMS, toMS    int64
	stepMS, reaches int64
	sums            []*ledger.Sum
}

func readBook(ctx context.Context, r *ledgerRange, k ledger.Kind, q url.Values) (*book, error) {
	a, err := r.client().Rollups(ctx, k, q)
	if err != nil {
		return nil, err
	}
	return &book{kind: k, fromMS: a.FromMS, toMS: a.ToMS, stepMS: a.By.MS(), reaches: a.ReachesBackToMS, sums: a.Rows}, nil
}

func (b *book) title(r *ledgerRange) string {
	name := "spend ledger"
	if b.kind == ledger.Misses {
		name = "deadline-miss ledger"
	}
	from := max(b.fromMS, b.reaches)
	t := fmt.Sprintf("%s, %s since %s", name, r.By, time.UnixMilli(from).UTC().Format("2006-01-02 15:04Z"))
	if from > b.fromMS {
		t += " (no sums are kept from before)"
	}
	return t
}

// column is one line's worth of sums: a group, its total and its course.
type column struct {
	cells  []string
	course []int64
	// weight is what lines are ordered by, largest first.
	weight int64
}

// lines is the ledger as a table, with the course of each line on a terminal.
func (b *book) lines(terminal bool) []string {
	if len(b.sums) == 0 {
		return []string{"nothing was booked"}
	}
	header := []string{"PATH", "CLASS", "PRODUCER", "BACKEND", "ATTEMPTS", "IN", "OUT", "PAID FOR", "COST MICRO", "KNOWN"}
	if b.kind == ledger.Misses {
		header = []string{"PATH", "CLASS", "PRODUCER", "BACKEND", "MISSES", "CAUSES"}
	}
	columns := b.columns()
	used := make([]bool, len(header)) // labels that the sums were not kept apart by stand in no column
	for _, c := range columns {
		for i := range header {
			used[i] = used[i] || i >= 4 || c.cells[i] != ""
		}
	}
	var buf bytes.Buffer
	w := tabwriter.NewWriter(&buf, 0, 8, 2, ' ', 0)
	write := func(cells []string, last string) {
		var out []string
		for i, c := range cells {
			if used[i] {
				out = append(out, orDash(c))
			}
		}
		if terminal {
			out = append(out, last)
		}
		_, _ = fmt.Fprintln(w, strings.Join(out, "\t"))
	}
	write(header, "COURSE")
	for _, c := range columns {
		write(c.cells, sparkline(c.course, courseWidth))
	}
	_ = w.Flush()
	return strings.Split(strings.TrimRight(buf.String(), "\n"), "\n")
}

// columns sums the steps of each group.
func (b *book) columns() []*column {
	steps := int((b.toMS-b.fromMS)/b.stepMS) + 1
	type group struct{ path, class, producer, backend string }
	totals := map[group]*ledger.Sum{}
	courses := map[group][]int64{}
	for _, s := range b.sums {
		g := group{s.Path, s.Class, s.Producer, s.Backend}
		if totals[g] == nil {
			totals[g] = &ledger.Sum{}
			courses[g] = make([]int64, steps)
			if b.kind == ledger.Spend {
				totals[g].SpendSum = &ledger.SpendSum{CostMicro: map[string]int64{}, Known: map[string]int64{}}
			} else {
				totals[g].MissSum = &ledger.MissSum{Causes: map[string]int64{}}
			}
		}
		t := totals[g]
		var n int64
		if b.kind == ledger.Spend {
			t.Attempts += s.Attempts
			t.InputTokens += s.InputTokens
			t.OutputTokens += s.OutputTokens
			t.SpentTokens += s.SpentTokens
			addAll(t.CostMicro, s.CostMicro)
			addAll(t.Known, s.Known)
			n = s.InputTokens + s.OutputTokens
		} else {
			t.Misses += s.Misses
			addAll(t.Causes, s.Causes)
			n = s.Misses
		}
		if i := int((s.AtMS - b.fromMS) / b.stepMS); i >= 0 && i < steps {
			courses[g][i] += n
		}
	}
	var out []*column
	for g, t := range totals {
		c := &column{cells: []string{g.path, g.class, g.producer, g.backend}, course: courses[g]}
		if b.kind == ledger.Spend {
			c.weight = t.InputTokens + t.OutputTokens
			c.cells = append(c.cells, num(t.Attempts), num(t.InputTokens), num(t.OutputTokens), num(t.SpentTokens), ledger.Pairs(t.CostMicro), ledger.Pairs(t.Known))
		} else {
			c.weight = t.Misses
			c.cells = append(c.cells, num(t.Misses), ledger.Pairs(t.Causes))
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(x, y *column) int {
		if x.weight != y.weight {
			return int(min(max(y.weight-x.weight, -1), 1))
		}
		return slices.Compare(x.cells, y.cells)
	})
	return out
}

func num(n int64) string { return strconv.FormatInt(n, 10) }

func addAll(to, from map[string]int64) {
	for k, n := range from {
		to[k] += n
	}
}

// courseWidth is how wide a course is drawn.
const courseWidth = 40

// sparkline draws values from left to right in at most width characters; the
// largest is a full block, and what is not zero is never blank.
func sparkline(values []int64, width int) string {
	if len(values) > width {
		squeezed := make([]int64, width)
		for i, v := range values {
			squeezed[i*width/len(values)] += v
		}
		values = squeezed
	}
	most := slices.Max(append(slices.Clone(values), 1))
	blocks := []rune("▁▂▃▄▅▆▇█")
	var out []rune
	for _, v := range values {
		if v <= 0 {
			out = append(out, ' ')
			continue
		}
		out = append(out, blocks[min(int(float64(v)/float64(most)*float64(len(blocks))), len(blocks)-1)])
	}
	return string(out)
}

type ledgersCheckCmd struct {
	apiFlags
	Metrics string `help:"Address of a metrics page, for example http://127.0.0.1:9090/metrics: it must say what the ledgers say."`
}

// Run exits with a code that says whether the books balance.
func (c *ledgersCheckCmd) Run(ctx context.Context, out io.Writer) error {
	ok, err := checkLedgers(ctx, out, c.client(), c.Metrics)
	switch {
	case err != nil:
		_, _ = fmt.Fprintln(out, "the ledgers could not be checked:", err)
		return exitError(2)
	case !ok:
		return exitError(1)
	}
	return nil
}

// checkLedgers prints a check, item by item, and reports whether all hold. With
// the address of a metrics page that is held against the totals too.
func checkLedgers(ctx context.Context, out io.Writer, api *client.Client, metrics string) (bool, error) {
	var before, after []byte
	var err error
	if metrics != "" {
		if before, err = scrapePage(ctx, metrics); err != nil {
			return false, err
		}
	}
	r, err := api.CheckLedgers(ctx)
	if err != nil {
		return false, err
	}
	if metrics != "" {
		if after, err = scrapePage(ctx, metrics); err != nil {
			return false, err
		}
		item := compareMetrics(ledger.Series(r.Totals), before, after)
		r.Items = append(r.Items, item)
		r.Balanced = r.Balanced && item.OK
	}
	for _, i := range r.Items {
		mark := "✓"
		if !i.OK {
			mark = "✗"
		}
		_, _ = fmt.Fprintf(out, "  %s %s\n", mark, i.Detail)
		for _, p := range i.Problems {
			_, _ = fmt.Fprintf(out, "      %s\n", p)
		}
		if more := i.Found - len(i.Problems); more > 0 {
			_, _ = fmt.Fprintf(out, "      and %d more\n", more)
		}
	}
	return r.Balanced, nil
}

// compareMetrics holds the totals between what a metrics page said before and
// after they were read: on a quiet system these are the same.
func compareMetrics(totals map[string]int64, before, after []byte) *ledger.Item {
	i := &ledger.Item{Name: "metrics", Detail: fmt.Sprintf("the metrics say what the ledgers say: %d series", len(totals))}
	for series, n := range totals {
		lo, err := client.Metric(before, series)
		if err != nil {
			lo = 0 // its first event came since
		}
		hi, err := client.Metric(after, series)
		if err != nil || n < int64(lo) || n > int64(hi) {
			i.Found++
			i.Problems = append(i.Problems, fmt.Sprintf("%s is %.0f; the ledgers say %d", series, hi, n))
		}
	}
	slices.Sort(i.Problems)
	i.Problems = i.Problems[:min(len(i.Problems), ledger.MostProblems)]
	i.OK = i.Found == 0
	return i
}

func scrapePage(ctx context.Context, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", address, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, client.MaxResponseBytes))
}
