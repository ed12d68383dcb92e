package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"leeway/slackgate"
)

// gateCmd asks the seed rule about one snapshot in the article's form, and
// prints the line the article prints. It needs no server.
type gateCmd struct {
	Snapshot string `required:"" placeholder:"FILE" help:"Snapshot as JSON: paid_inflight, paid_limit, free_queue_age_ms, free_inflight, enqueued_at_ms; optional now_ms (else the clock), deadline_ms, reserve_ms, paid_p95_first_byte_ms, free_p95_first_byte_ms, free_queue_age_cut_ms. - reads standard input."`

	stdin io.Reader        // for tests; os.Stdin if nil
	now   func() time.Time // for tests; time.Now if nil
}

// Run prints the decision on out. A reject is an answer, not an error.
func (c *gateCmd) Run(_ context.Context, out io.Writer) error {
	doc, err := c.read()
	if err != nil {
		return err
	}
	a, err := slackgate.ParseArticle(doc)
	if err != nil {
		return err
	}
	if a.NowMS == 0 {
		now := time.Now
		if c.now != nil {
			now = c.now
		}
		a.NowMS = now().UnixMilli()
	}
	r := a.Decide()
	_, err = fmt.Fprintln(out, a.Line(&r))
	return err
}

// read returns the document, at most one byte longer than the parser takes.
func (c *gateCmd) read() ([]byte, error) {
	in := c.stdin
	if in == nil {
		in = os.Stdin
	}
	if c.Snapshot != "-" {
		f, err := os.Open(c.Snapshot)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	return io.ReadAll(io.LimitReader(in, slackgate.MaxArticleBytes+1))
}
