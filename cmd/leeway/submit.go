package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"leeway/broker"
	"leeway/broker/httpapi"
)

// submitCmd offers documents to the gate and brings back what became of them.
type submitCmd struct {
	apiFlags
	Files    []string      `arg:"" help:"Files, folders, patterns, or - for standard input. A .jsonl file is one submission a line; all else is text."`
	Class    string        `help:"The jobs' class; the default class if left out."`
	Deadline time.Duration `help:"How long each may take, for example 15s; the class's deadline if left out."`
	JSONL    bool          `name:"jsonl" help:"Read every input as JSONL, standard input too."`
	Out      string        `placeholder:"PATH" help:"Where answers go: a folder, a .jsonl file, or - for JSONL on standard output. Printed with the lines, if left out."`
	Retry    string        `name:"retry-rejected-until" placeholder:"TIME" help:"Offer what was refused again, as the gate says, until then: a duration such as 2h, an hour such as 06:00, or an RFC 3339 time."`
	Parallel int           `default:"64" help:"How many documents are under way at once; 1..1024."`

	stdin io.Reader  // for tests; os.Stdin if nil
	mu    sync.Mutex // guards what follows, and out
	count counts
	res   *results
	say   io.Writer // where lines go
	live  bool      // say is a terminal: the last line is the progress
	until time.Time // zero: nothing is offered again
	run   string    // begins the idempotency keys of this run
}

// Run submits everything, waits for every end and prints a line for each.
func (c *submitCmd) Run(ctx context.Context, out io.Writer) (err error) {
	if c.until, err = parseUntil(c.Retry, time.Now()); err != nil {
		return err
	}
	if c.Parallel < 1 || c.Parallel > 1024 {
		return errors.New("--parallel must be in 1..1024")
	}
	if c.Deadline < 0 || c.Deadline%time.Millisecond != 0 {
		return errors.New("--deadline must be a whole number of milliseconds, for example 15s or 1500ms")
	}
	if c.res, err = openResults(c.Out, out); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.res.close()) }()
	c.say, c.run = out, rand.Text()
	if c.Out == "-" {
		c.say = os.Stderr // standard output is the results'
	}
	c.live = terminal(c.say)
	in := c.stdin
	if in == nil {
		in = os.Stdin
	}

	docs := make(chan document)
	var wg sync.WaitGroup
	var broken error // of the results; guarded by mu
	for range c.Parallel {
		wg.Go(func() {
			for d := range docs {
				if err := c.one(ctx, &d); err != nil {
					c.mu.Lock()
					broken = errors.Join(broken, err)
					c.mu.Unlock()
				}
			}
		})
	}
	n := 0
	err = documents(ctx, c.Files, in, c.JSONL, func(d document) error {
		c.prepare(&d, n)
		n++
		select {
		case docs <- d:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	close(docs)
	wg.Wait()
	c.printf("%s\n", c.count.line())
	switch {
	case ctx.Err() != nil:
		c.printf("interrupted: jobs that were admitted go on; `leeway jobs show` and `leeway jobs cancel` take their ids\n")
		return exitError(exitFailed)
	case err != nil || broken != nil:
		return errors.Join(err, broken)
	case n == 0:
		return errors.New("there is nothing to submit: the folder or file is empty")
	}
	return c.count.exit()
}

// prepare fills in what the command line says of all documents. A line of JSONL
// may say otherwise.
func (c *submitCmd) prepare(d *document, n int) {
	if d.job.Class == "" {
		d.job.Class = c.Class
	}
	if d.job.DeadlineMS == 0 && d.job.DeadlineAt == "" {
		d.job.DeadlineMS = c.Deadline.Milliseconds()
	}
	// Offering it again after a lost reply must not make it two jobs.
	d.job.IdempotencyKey = "cli-" + c.run + "-" + strconv.Itoa(n)
}

// one takes a document to its end. The error is one of the results.
func (c *submitCmd) one(ctx context.Context, d *document) error {
	c.note(func(t *counts) { t.offered++ })
	v, err := c.offer(ctx, d)
	if err != nil {
		res := &result{Name: d.name, Error: err.Error()}
		p, refused := errors.AsType[*httpapi.Problem](err)
		if refused = refused && p.Verdict != nil; refused {
			res.Verdict = p.Verdict
			c.note(func(t *counts) { t.refused++ })
			c.printf("-> %-16s slack %d ms, need %v  %s\n", p.Reason, p.Verdict.SlackMS, p.Verdict.NeedMS, d.name)
		} else {
			c.note(func(t *counts) { t.failed++ })
			c.printf("-> failed            %s: %v\n", d.name, err)
		}
		if next := advice(err); next != "" && (!refused || c.until.IsZero()) {
			c.printf("   %s\n", next)
		}
		return c.keep(res)
	}
	c.note(func(t *counts) { t.admitted++ })
	c.printf("-> %-16s slack %d ms, predicted wait %d ms  %s  %s\n", v.Path, v.SlackMS, v.PredictedWaitMS, v.JobID, d.name)
	view, err := c.wait(ctx, v.JobID)
	if err != nil {
		c.note(func(t *counts) { t.failed++ })
		c.printf("<- unknown           %s  %s: %v; `leeway jobs show --wait 1m %s` asks again\n", v.JobID, d.name, err, v.JobID)
		return c.keep(&result{Name: d.name, Verdict: v, Error: err.Error()})
	}
	c.note(func(t *counts) {
		if view.Outcome == broker.OutcomeUsable {
			t.usable++
		} else {
			t.missed++
		}
	})
	c.printf("<- %-16s in all %d ms  %s  %s\n", view.Outcome, view.ElapsedMS, view.ID, d.name)
	if c.Out == "" && view.Answer != "" {
		c.printf("   %s\n", strings.ReplaceAll(strings.TrimSpace(view.Answer), "\n", "\n   "))
	}
	return c.keep(&result{Name: d.name, Verdict: v, Job: view})
}

// netTries is how often a call is made again whose reply was lost.
const netTries = 5

// offer submits a document, again where the gate said when, until it is
// admitted or the time for that is over.
func (c *submitCmd) offer(ctx context.Context, d *document) (*httpapi.Verdict, error) {
	for tries := 1; ; tries++ {
		v, err := c.client().Submit(ctx, &d.job)
		var pause time.Duration
		p, told := errors.AsType[*httpapi.Problem](err)
		switch {
		case err == nil:
			return v, nil
		case told && p.RetryAfterMS > 0 && !c.until.IsZero():
			pause = time.Duration(p.RetryAfterMS) * time.Millisecond
			if time.Now().Add(pause).After(c.until) {
				return nil, err
			}
		case !told && tries < netTries && ctx.Err() == nil:
			pause = time.Duration(tries) * 200 * time.Millisecond
		default:
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// wait reads a job until it has ended, and does not give up on a call or two.
func (c *submitCmd) wait(ctx context.Context, id string) (*broker.View, error) {
	for tries := 1; ; tries++ {
		v, err := c.client().Wait(ctx, id)
		p, told := errors.AsType[*httpapi.Problem](err)
		lost := err != nil && (!told || p.Status/100 == 5)
		if !lost || tries == netTries || ctx.Err() != nil {
			return v, err
		}
		select {
		case <-time.After(time.Duration(tries) * time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (c *submitCmd) note(change func(*counts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.count)
}

func (c *submitCmd) keep(r *result) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.res.add(r)
}

// printf prints a line; on a terminal above the progress, which stays last.
func (c *submitCmd) printf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.live {
		fmt.Fprintf(c.say, format, args...)
		return
	}
	fmt.Fprintf(c.say, "\r\x1b[K"+format, args...)
	fmt.Fprintf(c.say, "\r\x1b[K%s\r", c.count.line())
}

// parseUntil reads an end: a duration from now, the next time the clock shows
// an hour, or an RFC 3339 time. The empty one is zero.
func parseUntil(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return now.Add(d), nil
	}
	if at, err := time.ParseInLocation("15:04", s, now.Location()); err == nil {
		t := time.Date(now.Year(), now.Month(), now.Day(), at.Hour(), at.Minute(), 0, 0, now.Location())
		if !t.After(now) {
			t = t.AddDate(0, 0, 1)
		}
		return t, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil && t.After(now) {
		return t, nil
	}
	return time.Time{}, fmt.Errorf("--retry-rejected-until %q: want a duration such as 2h, an hour such as 06:00, or an RFC 3339 time to come", s)
}
