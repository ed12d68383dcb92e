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
}

// Run prints the decision on out. A reject is an answer, not an error.
func (c *gateCmd) Run(_ context.Context, out io.Writer) error {
	if c.Snapshot == "-" {
		return decide(out, os.Stdin, time.Now())
	}
	f, err := os.Open(c.Snapshot)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return decide(out, f, time.Now())
}

// decide prints the decision about a snapshot, which is of now if it says
// nothing else.
func decide(out io.Writer, snapshot io.Reader, now time.Time) error {
	doc, err := io.ReadAll(io.LimitReader(snapshot, slackgate.MaxArticleBytes+1)) // one more than the parser takes
	if err != nil {
		return err
	}
	a, err := slackgate.ParseArticle(doc)
	if err != nil {
		return err
	}
	if a.NowMS == 0 {
		a.NowMS = now.UnixMilli()
	}
	r := a.Decide()
	_, err = fmt.Fprintln(out, a.Line(&r))
	return err
}
