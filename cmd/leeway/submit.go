package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"leeway/broker"
	"leeway/broker/wire"
)

// submitCmd offers documents to the gate, as one batch, and brings back what
// became of them.
type submitCmd struct {
	apiFlags
	Files    []string      `arg:"" help:"Files, folders, patterns, or - for standard input. A .jsonl file is one submission a line; all else is text."`
	Class    string        `help:"The jobs' class; the default class if left out."`
	Deadline time.Duration `help:"How long each may take, for example 15s; the class's deadline if left out."`
	JSONL    bool          `name:"jsonl" help:"Read every input as JSONL, standard input too."`
	Encoding string        `placeholder:"NAME" help:"What the files are in, if not UTF-8: utf-16, latin1, windows-1251, ... A byte order mark overrides it. What cannot be read in it is not submitted."`
	Out      string        `placeholder:"PATH" help:"Where answers go: a folder, a .jsonl file, or - for JSONL on standard output. Printed with the lines, if left out."`
	Retry    string        `name:"retry-rejected-until" placeholder:"TIME" help:"Offer what was refused again, as the gate says, until then: a duration such as 2h, an hour such as 06:00, or an RFC 3339 time."`
	Parallel int           `help:"How many documents are under way at once; all, if left out."`

	until time.Time // zero: nothing is offered again
	run   string    // the batch's idempotency key

	mu     sync.Mutex // guards what follows, and out
	count  counts
	res    *results
	say    io.Writer            // where lines go
	live   bool                 // say is a terminal: the last line is the progress
	broken error                // of the results
	docs   map[string]*document // by custom_id
	names  map[string]bool      // of documents
}

// Run submits everything, waits for every end and prints a line for each.
func (c *submitCmd) Run(ctx context.Context, out io.Writer) (err error) {
	if c.until, err = parseUntil(c.Retry, time.Now()); err != nil {
		return err
	}
	if c.Parallel < 0 {
		return errors.New("--parallel must be at least 1: leave it out to offer everything at once")
	}
	if c.Deadline < 0 || c.Deadline%time.Millisecond != 0 {
		return errors.New("--deadline must be a whole number of milliseconds, for example 15s or 1500ms")
	}
	in := input{jsonl: c.JSONL, out: c.Out, fail: c.unread, leave: c.leftOut}
	if in.encoding, err = encodingOf(c.Encoding); err != nil {
		return err
	}
	paths, err := expand(c.Files)
	if err != nil {
		return err
	}
	if c.res, err = openResults(c.Out, out); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.res.close()) }()
	c.say, c.run, c.docs, c.names = out, "cli-"+rand.Text(), map[string]*document{}, map[string]bool{}
	if c.Out == "-" {
		c.say = os.Stderr // standard output is the results'
	}
	c.live = terminal(c.say)

	read := make(chan *document)
	s := newSender(c, read)
	in.yield = func(d document) error {
		c.prepare(&d)
		select {
		case read <- &d:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-s.sent:
			return errStopped
		}
	}
	var reading error
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(read)
		reading = in.read(ctx, paths, os.Stdin)
	})
	sending := s.run(ctx)
	wg.Wait()
	if errors.Is(reading, errStopped) {
		reading = nil // sending says why
	}
	if c.live { // the progress leaves the last line to what comes next
		fmt.Fprint(c.say, eraseLine)
		c.live = false
	}
	c.printf("%s\n", c.count.line())
	switch {
	case ctx.Err() != nil:
		c.printf("interrupted: jobs that were admitted go on; %s\n", s.afterwards())
		return exitError(exitFailed)
	case sending != nil || reading != nil || c.broken != nil:
		if s.batch() != "" {
			c.printf("what was admitted goes on; %s\n", s.afterwards())
		}
		return errors.Join(reading, sending, c.broken)
	case c.count.offered == 0:
		return errors.New("there is nothing to submit: the folder or file is empty")
	}
	return c.count.exit()
}

// errStopped ends the reading of documents that nobody can send any more.
var errStopped = errors.New("stopped")

// maxCustomID is the longest that the API takes, in bytes.
const maxCustomID = wire.MaxProducerBytes

// prepare fills in what the command line says of all documents, and a name and a
// custom_id that no other has. A line of JSONL may say otherwise.
func (c *submitCmd) prepare(d *document) {
	if d.job.Class == "" {
		d.job.Class = c.Class
	}
	if d.job.DeadlineMS == 0 && d.job.DeadlineAt == "" {
		d.job.DeadlineMS = c.Deadline.Milliseconds()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if id := d.job.CustomID; id == "" || len(id) > maxCustomID || c.docs[id] != nil {
		d.job.CustomID = "doc-" + strconv.Itoa(len(c.docs)+1)
		for c.docs[d.job.CustomID] != nil {
			d.job.CustomID += "'"
		}
	}
	c.docs[d.job.CustomID] = d
	if c.names[d.name] {
		d.name = d.place
	}
	if !utf8.ValidString(d.name) { // it goes into JSON, where two might become one
		d.name = strings.Trim(strconv.Quote(d.name), `"`)
	}
	name := d.name
	for n := 2; c.names[d.name]; n++ {
		d.name = fmt.Sprintf("%s (%d)", name, n)
	}
	c.names[d.name] = true
	c.count.offered++
}

// unread takes note of a document that cannot be read.
func (c *submitCmd) unread(name string, err error) {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err // the line names the path
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count.offered++
	c.count.failed++
	c.printf("-> failed            %s: %v\n", name, err)
	c.keep(&result{Name: name, Error: err.Error()})
}

// leftOut says what is not submitted, as it should be.
func (c *submitCmd) leftOut(name, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.printf("-- left out %s: %s\n", name, why)
}

// verdict takes note of what the gate said of a document. It reports whether the
// document is to be offered again, and when.
func (c *submitCmd) verdict(d *document, l *wire.BatchLine) (again bool, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.Error == nil {
		d.job.Text = "" // it is the store's by now
		d.verdict = l.Verdict
		c.count.admitted++
		c.printf("-> %-16s slack %d ms, predicted wait %d ms  %s  %s\n", l.Path, l.SlackMS, l.PredictedWaitMS, l.JobID, d.name)
		return false, time.Time{}
	}
	p := l.Error
	p.RetryAfterMS = l.RetryAfterMS
	at = time.Now().Add(time.Duration(p.RetryAfterMS) * time.Millisecond)
	if p.RetryAfterMS > 0 && !c.until.IsZero() && !at.After(c.until) {
		return true, at
	}
	if p.Verdict != nil {
		c.count.refused++
		c.printf("-> %-16s slack %d ms, need %v  %s\n", p.Reason, p.Verdict.SlackMS, p.Verdict.NeedMS, d.name)
	} else {
		c.count.failed++
		c.printf("-> failed            %s: %v\n", d.name, p)
	}
	if next := problemAdvice(p); next != "" && (p.Verdict == nil || c.until.IsZero()) {
		c.printf("   %s\n", next)
	}
	c.keep(&result{Name: d.name, Verdict: p.Verdict, Error: p.Error()})
	return false, time.Time{}
}

// outcome takes note of a document's end; its job is nil when it is not known.
// An end may be told before the verdict is: the two come over connections of
// their own. It reports whether the document is one of this command's.
func (c *submitCmd) outcome(l *wire.ResultLine) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, view := c.docs[l.CustomID], l.Job
	switch {
	case d == nil:
		return false
	case view == nil:
		c.count.failed++
		c.printf("<- unknown           %s: its record is gone\n", d.name)
		c.keep(&result{Name: d.name, Verdict: d.verdict, Error: "the job's record is gone"})
		return true
	case view.Outcome == broker.OutcomeUsable:
		c.count.usable++
	default:
		c.count.missed++
	}
	c.printf("<- %-16s in all %d ms  %s  %s\n", view.Outcome, view.ElapsedMS, view.ID, d.name)
	if view.Detail != "" {
		c.printf("   the provider's words: %s\n", view.Detail)
	}
	if c.Out == "" && view.Answer != "" {
		c.printf("   %s\n", strings.ReplaceAll(strings.TrimSpace(view.Answer), "\n", "\n   "))
	}
	c.keep(&result{Name: d.name, Verdict: d.verdict, Job: view})
	return true
}

// lost takes note of jobs that will never have an end.
func (c *submitCmd) lost(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count.failed += int(n)
}

// keep adds to the results. The caller holds mu.
func (c *submitCmd) keep(r *result) { c.broken = errors.Join(c.broken, c.res.add(r)) }

// printf prints a line; on a terminal above the progress, which stays last. The
// caller holds mu while others may print.
func (c *submitCmd) printf(format string, args ...any) {
	if !c.live {
		fmt.Fprintf(c.say, format, args...)
		return
	}
	fmt.Fprint(c.say, eraseLine, printable(fmt.Sprintf(format, args...)), lastLine(c.count.progress()))
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
