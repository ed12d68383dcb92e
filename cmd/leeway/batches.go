package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"leeway/broker/client"
	"leeway/broker/wire"
)

type batchesCmd struct {
	List    batchesListCmd    `cmd:"" default:"withargs" help:"The newest batches."`
	Show    batchesShowCmd    `cmd:"" help:"How far a batch is. Exit as submit's, once it is done."`
	Lines   batchesLinesCmd   `cmd:"" help:"Its lines with verdicts and outcomes."`
	Results batchesResultsCmd `cmd:"" help:"Download its answers."`
	Cancel  batchesCancelCmd  `cmd:"" help:"Take it back: no more lines, waiting jobs cancelled, running ones cut."`
}

type batchesListCmd struct {
	apiFlags
	listFlags
}

// Run lists batches, newest first.
func (c *batchesListCmd) Run(ctx context.Context, out io.Writer) error {
	l, err := c.client().Batches(ctx, c.query(nil))
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
	header := cells{"BATCH", "CREATED", "PRODUCER", "STATUS", "LINES", "ADMITTED", "REFUSED", "INVALID", "PENDING"}
	return printTable(out, l.Batches, header, func(b *wire.Batch) cells {
		return cells{b.BatchID, instant(b.CreatedAtMS), b.Producer, b.Status, b.Lines, b.Admitted, b.Refused, b.Invalid, b.Pending}
	})
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
	q := query(map[string]string{"verdict": c.Verdict, "outcome": c.Outcome})
	return c.client().BatchLines(ctx, c.ID, q, func(l *wire.LineView) error {
		if c.JSON {
			return printJSON(out, l)
		}
		_, err := fmt.Fprintf(out, "%s: %s\n", cmp.Or(l.CustomID, "line "+strconv.Itoa(l.Line)), lineState(l))
		return err
	})
}

// lineState is what became of a line so far.
func lineState(l *wire.LineView) string {
	if l.Error != nil {
		if l.RetryAfterMS > 0 {
			return fmt.Sprintf("%v (again after %d ms)", l.Error, l.RetryAfterMS)
		}
		return l.Error.Error()
	}
	state := "its record has lapsed"
	if l.Job != nil {
		state = cmp.Or(string(l.Job.Outcome), string(l.Job.State))
	}
	return fmt.Sprintf("%s, %s: %s", l.Path, l.JobID, state)
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
	n, wait := 0, time.Duration(0)
	if c.Follow {
		wait = resultsWait
	}
	f := follower{api: c.client(), id: c.ID}
	for {
		b, quiet, err := f.next(ctx, wait, func(r *wire.ResultLine) error {
			n++
			return res.add(&result{Name: cmp.Or(r.CustomID, "line-"+strconv.Itoa(r.Line)), Job: r.Job})
		})
		if err != nil {
			return err
		}
		if !c.Follow || quiet && isDone(b) {
			break
		}
	}
	if c.Out != "-" {
		fmt.Fprintf(out, "%d answers in %s\n", n, c.Out)
	} else if n == 0 {
		fmt.Fprintf(os.Stderr, "nothing has ended yet: --follow waits\n")
	}
	return nil
}

// follower reads the answers of a batch as its jobs end.
type follower struct {
	api    *client.Client
	id     string
	cursor int64 // behind the last answer told
}

// next tells the answers that have come since, and waits up to wait for the
// first. It is quiet when there are none, and then returns how far the batch is.
func (f *follower) next(ctx context.Context, wait time.Duration, tell func(*wire.ResultLine) error) (b *wire.Batch, quiet bool, err error) {
	before := f.cursor
	err = f.api.BatchResults(ctx, f.id, f.cursor, wait, func(r *wire.ResultLine) error {
		f.cursor = r.NextCursor
		return tell(r)
	})
	if err != nil || f.cursor > before {
		return nil, false, err
	}
	if b, err = f.api.Batch(ctx, f.id, 0); err != nil {
		return nil, false, err
	}
	var ended int64
	for _, o := range b.Outcomes {
		ended += o
	}
	return b, ended <= f.cursor, nil // else one has ended since
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
