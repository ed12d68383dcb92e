package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"leeway/broker/client"
	"leeway/broker/ledger"
	"leeway/broker/wire"
)

type ledgersCmd struct {
	Spend  ledgerCmd       `cmd:"" help:"What was spent."`
	Misses ledgerCmd       `cmd:"" help:"Which deadlines were missed."`
	Both   ledgersBothCmd  `cmd:"" help:"Both books side by side. They are never summed."`
	Check  ledgersCheckCmd `cmd:"" help:"Hold the books against each other. Exit 0: they balance, 1: they do not, 2: they could not be read."`
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

// rows asks for the rows of a ledger.
func (r *ledgerRange) rows() url.Values {
	from := time.Now().Add(-r.Since).UnixMilli()
	return query(map[string]string{
		"from_ms": strconv.FormatInt(from, 10), "path": r.Path, "class": r.Class, "producer": r.Producer, "backend": r.Backend,
	})
}

// sums asks for its sums.
func (r *ledgerRange) sums(group string) url.Values {
	q := r.rows()
	q.Set("by", string(r.By))
	q.Set("group", group)
	return q
}

// ledgerCmd prints one of the ledgers, the one that it is named after.
type ledgerCmd struct {
	ledgerRange
	Rows   bool   `help:"The rows themselves in place of sums; as csv unless --format says ndjson."`
	Format string `enum:"table,csv,ndjson" default:"table" help:"table, csv or ndjson."`
	Group  string `default:"path,backend" help:"What sums are kept apart by: path, class, producer, backend."`
}

// Run prints sums or rows.
func (c *ledgerCmd) Run(ctx context.Context, out io.Writer, k *kong.Context) error {
	kind, format := ledger.Kind(k.Selected().Name), ledger.Format(c.Format)
	switch {
	case c.Rows && c.Format == "table":
		return c.client().StreamRows(ctx, kind, ledger.CSV, c.rows(), out)
	case c.Rows:
		return c.client().StreamRows(ctx, kind, format, c.rows(), out)
	case c.Format != "table":
		return c.client().StreamRollups(ctx, kind, format, c.sums(c.Group), out)
	}
	a, err := c.client().Rollups(ctx, kind, c.sums(c.Group))
	if err != nil {
		return err
	}
	printLines(out, sumLines(a, terminal(out)))
	return nil
}

type ledgersBothCmd struct{ ledgerRange }

// Run prints both ledgers side by side.
func (c *ledgersBothCmd) Run(ctx context.Context, out io.Writer) error {
	q := c.sums("path")
	spend, err := c.client().Rollups(ctx, ledger.Spend, q)
	if err != nil {
		return err
	}
	misses, err := c.client().Rollups(ctx, ledger.Misses, q)
	if err != nil {
		return err
	}
	live := terminal(out)
	printLines(out, sideBySide(sumLines(spend, live), sumLines(misses, live)))
	return nil
}

func printLines(out io.Writer, lines []string) {
	for _, l := range lines {
		fmt.Fprintln(out, l)
	}
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

// total is what was booked under one set of labels over the whole range.
type total struct {
	labels [4]string // path, class, producer, backend
	ledger.Sum
	course []int64 // the size of each step
}

// size is what a course is drawn of: tokens, or misses.
func size(s *ledger.Sum) int64 {
	if s.MissSum != nil {
		return s.Misses
	}
	return s.InputTokens + s.OutputTokens
}

// totals sums the steps of each set of labels; the largest first.
func totals(a *wire.RollupAnswer) []*total {
	steps := int((a.ToMS-a.FromMS)/a.By.MS()) + 1
	byLabels := map[[4]string]*total{}
	for _, s := range a.Rows {
		labels := [4]string{s.Path, s.Class, s.Producer, s.Backend}
		t := byLabels[labels]
		if t == nil {
			t = &total{labels: labels, course: make([]int64, steps)}
			byLabels[labels] = t
		}
		t.add(s)
		if i := int((s.AtMS - a.FromMS) / a.By.MS()); i >= 0 && i < steps {
			t.course[i] += size(s)
		}
	}
	return slices.SortedFunc(maps.Values(byLabels), func(x, y *total) int {
		return cmp.Or(cmp.Compare(size(&y.Sum), size(&x.Sum)), slices.Compare(x.labels[:], y.labels[:]))
	})
}

func (t *total) add(s *ledger.Sum) {
	if s.MissSum != nil {
		if t.MissSum == nil {
			t.MissSum = &ledger.MissSum{Causes: map[string]int64{}}
		}
		t.Misses += s.Misses
		addAll(t.Causes, s.Causes)
		return
	}
	if t.SpendSum == nil {
		t.SpendSum = &ledger.SpendSum{CostMicro: map[string]int64{}, Known: map[string]int64{}}
	}
	t.Attempts += s.Attempts
	t.InputTokens += s.InputTokens
	t.OutputTokens += s.OutputTokens
	t.SpentTokens += s.SpentTokens
	addAll(t.CostMicro, s.CostMicro)
	addAll(t.Known, s.Known)
}

func addAll(to, from map[string]int64) {
	for k, n := range from {
		to[k] += n
	}
}

// sumLines is one ledger as text: a title and a table, with the course of each
// line where it is for a terminal.
func sumLines(a *wire.RollupAnswer, terminal bool) []string {
	title, numbers := "spend ledger", []string{"ATTEMPTS", "IN", "OUT", "PAID FOR", "COST MICRO", "KNOWN"}
	if a.Ledger == ledger.Misses {
		title, numbers = "deadline-miss ledger", []string{"MISSES", "CAUSES"}
	}
	from := max(a.FromMS, a.OldestAtMS)
	title += fmt.Sprintf(", %s since %s", a.By, time.UnixMilli(from).UTC().Format("2006-01-02 15:04Z"))
	if from > a.FromMS {
		title += " (no sums are kept from before)"
	}
	all := totals(a)
	if len(all) == 0 {
		return []string{title, "nothing was booked"}
	}
	rowOf := func(labels, numbers []string, course string) (r cells) {
		for i, l := range labels { // a label that the sums were not kept apart by has no column
			if slices.ContainsFunc(all, func(t *total) bool { return t.labels[i] != "" }) {
				r = append(r, orDash(l))
			}
		}
		for _, n := range numbers {
			r = append(r, orDash(n))
		}
		if terminal {
			r = append(r, course)
		}
		return r
	}
	var table strings.Builder
	header := rowOf([]string{"PATH", "CLASS", "PRODUCER", "BACKEND"}, numbers, "COURSE")
	_ = printTable(&table, all, header, func(t *total) cells {
		return rowOf(t.labels[:], ledger.SumRecord(&t.Sum)[1+len(t.labels):], sparkline(t.course, courseWidth))
	})
	return append([]string{title}, strings.Split(strings.TrimRight(table.String(), "\n"), "\n")...)
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
		fmt.Fprintln(out, "the ledgers could not be checked:", err)
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
		fmt.Fprintf(out, "  %s %s\n", mark, i.Detail)
		for _, p := range i.Problems {
			fmt.Fprintf(out, "      %s\n", p)
		}
		if more := i.Found - len(i.Problems); more > 0 {
			fmt.Fprintf(out, "      and %d more\n", more)
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
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, err := get(ctx, address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	return io.ReadAll(io.LimitReader(resp.Body, client.MaxResponseBytes))
}
