package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"leeway/broker/wire"
)

type batchesCmd struct {
	List    batchesListCmd    `cmd:"" default:"withargs" help:"The newest batches."`
	Show    batchesShowCmd    `cmd:"" help:"How far a batch is. Exit as submit's, once it is done."`
	Lines   batchesLinesCmd   `cmd:"" help:"Its lines with verdicts and outcomes."`
	Results batchesResultsCmd `cmd:"" help:"Download its answers."`
	Cancel  batchesCancelCmd  `cmd:"" help:"Take it back: no more lines, waiting jobs cancelled, running ones cut."`
}

// listFlags are those of the lists of batches and jobs.
type listFlags struct {
	Producer string `help:"Only this producer's; with a producer's key they are its own anyway."`
	Limit    int    `default:"50" help:"How many; 1..200."`
	JSON     bool   `help:"As the API gives it."`
}

func (f *listFlags) query() url.Values {
	q := url.Values{"limit": {strconv.Itoa(f.Limit)}}
	if f.Producer != "" {
		q.Set("producer", f.Producer)
	}
	return q
}

// instant is a time on the broker's clock for people to read.
func instant(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

func printJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

type batchesListCmd struct {
	apiFlags
	listFlags
}

// Run lists batches, newest first.
func (c *batchesListCmd) Run(ctx context.Context, out io.Writer) error {
	l, err := c.client().Batches(ctx, c.query())
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(out, l)
	}
	if len(l.Batches) == 0 {
		fmt.Fprintln(out, "no batches: `leeway submit` makes one")
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "BATCH\tCREATED\tPRODUCER\tSTATUS\tLINES\tADMITTED\tREFUSED\tINVALID\tPENDING")
	for _, b := range l.Batches {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\n", b.BatchID, instant(b.CreatedAtMS), b.Producer, b.Status, b.Lines, b.Admitted, b.Refused, b.Invalid, b.Pending)
	}
	return w.Flush()
}

type batchesShowCmd struct {
	apiFlags
	ID   string        `arg:"" help:"The batch's id."`
	Wait time.Duration `help:"Wait up to this long for it to be done."`
	JSON bool          `help:"As the API gives it."`
}

// mostWait is how long one call waits; longer waits are made of several.
const mostWait = 30 * time.Second

// Run prints how far the batch is.
func (c *batchesShowCmd) Run(ctx context.Context, out io.Writer) error {
	until := time.Now().Add(c.Wait)
	var b *wire.Batch
	for {
		var err error
		if b, err = c.client().Batch(ctx, c.ID, min(max(time.Until(until), 0), mostWait)); err != nil {
			return err
		}
		if isDone(b) || !time.Now().Before(until) {
			break
		}
	}
	if c.JSON {
		if err := printJSON(out, b); err != nil {
			return err
		}
	} else {
		printBatch(out, b)
	}
	if !isDone(b) {
		return nil
	}
	t := counts{usable: int(b.Outcomes["usable"]), refused: int(b.Refused), failed: int(b.Invalid + b.Lost)}
	t.missed = int(b.Admitted-b.Lost) - t.usable
	return t.exit()
}

func isDone(b *wire.Batch) bool {
	return b.Status == wire.BatchDone || b.Status == wire.BatchCancelled
}

func printBatch(out io.Writer, b *wire.Batch) {
	fmt.Fprintf(out, "%s: %s, created %s, kept until %s\n", b.BatchID, b.Status, instant(b.CreatedAtMS), instant(b.ExpiresAtMS))
	fmt.Fprintf(out, "%d lines: %d admitted, %d refused, %d invalid\n", b.Lines, b.Admitted, b.Refused, b.Invalid)
	fmt.Fprintf(out, "verdicts: %s\n", sums(b.Verdicts))
	fmt.Fprintf(out, "outcomes: %s; %d pending\n", sums(b.Outcomes), b.Pending)
	if b.Lost > 0 {
		fmt.Fprintf(out, "%d jobs are lost: their records are gone\n", b.Lost)
	}
	if !isDone(b) {
		fmt.Fprintf(out, "not done yet: `leeway batches show --wait 10m %s` waits for it\n", b.BatchID)
	}
}

// sums prints counts by name, in the order of the names.
func sums[K ~string](m map[K]int64) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%d %s", m[k], k))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

type batchesLinesCmd struct {
	apiFlags
	ID      string `arg:"" help:"The batch's id."`
	Verdict string `enum:",admitted,refused,invalid" default:"" help:"Only lines that were admitted, refused or invalid."`
	Outcome string `help:"Only lines whose jobs ended so: usable, late, ..."`
	JSON    bool   `help:"One JSON object a line, as the API gives it."`
}

// Run prints the lines in their order.
func (c *batchesLinesCmd) Run(ctx context.Context, out io.Writer) error {
	q := url.Values{}
	if c.Verdict != "" {
		q.Set("verdict", c.Verdict)
	}
	if c.Outcome != "" {
		q.Set("outcome", c.Outcome)
	}
	return c.client().BatchLines(ctx, c.ID, q, func(l *wire.LineView) error {
		if c.JSON {
			return printJSON(out, l)
		}
		var what string
		name := l.CustomID
		if name == "" {
			name = "line " + strconv.Itoa(l.Line)
		}
		switch {
		case l.Error != nil:
			what = l.Error.Error()
			if l.RetryAfterMS > 0 {
				what += fmt.Sprintf(" (again after %d ms)", l.RetryAfterMS)
			}
		case l.Job == nil:
			what = fmt.Sprintf("%s, %s: its record has lapsed", l.Path, l.JobID)
		case l.Job.Outcome != "":
			what = fmt.Sprintf("%s, %s: %s", l.Path, l.JobID, l.Job.Outcome)
		default:
			what = fmt.Sprintf("%s, %s: %s", l.Path, l.JobID, l.Job.State)
		}
		_, err := fmt.Fprintf(out, "%s: %s\n", name, what)
		return err
	})
}

type batchesResultsCmd struct {
	apiFlags
	ID     string `arg:"" help:"The batch's id."`
	Out    string `default:"-" placeholder:"PATH" help:"Where answers go: a folder, a .jsonl file, or - for JSONL on standard output."`
	Follow bool   `help:"Wait for those to come, until the batch is done."`
}

// Run downloads the answers.
func (c *batchesResultsCmd) Run(ctx context.Context, out io.Writer) (err error) {
	res, err := openResults(c.Out, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, res.close()) }()
	n, cursor, wait := 0, int64(0), time.Duration(0)
	if c.Follow {
		wait = resultsWait
	}
	for {
		before := cursor
		err := c.client().BatchResults(ctx, c.ID, cursor, wait, func(r *wire.ResultLine) error {
			cursor = r.NextCursor
			name := r.CustomID
			if name == "" {
				name = "line-" + strconv.Itoa(r.Line)
			}
			n++
			return res.add(&result{Name: name, Job: r.Job})
		})
		if err != nil {
			return err
		}
		if !c.Follow {
			break
		}
		if cursor == before { // nothing came: is there anything to come?
			b, err := c.client().Batch(ctx, c.ID, 0)
			if err != nil {
				return err
			}
			if isDone(b) {
				break
			}
		}
	}
	if c.Out != "-" {
		fmt.Fprintf(out, "%d answers in %s\n", n, c.Out)
	} else if n == 0 {
		fmt.Fprintf(os.Stderr, "nothing has ended yet: --follow waits\n")
	}
	return nil
}

type batchesCancelCmd struct {
	apiFlags
	ID string `arg:"" help:"The batch's id."`
}

// Run takes the batch back and says what its jobs met.
func (c *batchesCancelCmd) Run(ctx context.Context, out io.Writer) error {
	r, err := c.client().CancelBatch(ctx, c.ID)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: takes no more lines; %d waiting jobs cancelled, %d running ones will be cut, %d had ended, of %d the deadline had passed\n",
		c.ID, r.Results["cancelled"], r.Results["running"], r.Results["done"], r.Results["late"])
	return nil
}
