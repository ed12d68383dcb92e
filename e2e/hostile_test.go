//go:build server

package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"leeway/broker/client"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// A hostile producer stands beside a quiet one in rounds without faults: the quiet
// one submits alone, and then again once the other has what it can get. So each of
// its two rates is met by the same machine and the same pools, which can take all
// of it, and what is between them is the other's doing. Without faults, because a
// few seconds of a stopped Redis on one side alone would decide the comparison;
// the hostile one stays for the faults that follow.
//
// What it holds is bounded so that two cores with the race detector are not simply
// used up: some 200 connections that send a few bytes a second. It is enough to fail
// the test, because limits.in_flight_bytes is small here: without a share for each
// producer sixteen of its batches, of which each holds 128 KiB, have all of that
// and the quiet one is refused (`busy`).
const (
	hostileBytes = 2 << 20
	// quietJobs are submitted by the quiet producer alone, and again beside the
	// other, in each round; perSecond of them, of which paid can take all.
	quietJobs = 10
	perSecond = 12
	// A round for each ten seconds of faults, one at least.
	roundEvery = 10 * time.Second
	mostRounds = 10
)

// beside has the quiet producer submit alone and beside a hostile one, in turn. It
// leaves the hostile one there; relieved ends it.
func (c *chaos) beside(docs []string) (relieved func()) {
	c.t.Helper()
	rounds := min(max(1, int(*chaosFor/roundEvery)), mostRounds)
	var alone, beside []*submission
	for n := range rounds {
		alone = append(alone, c.quiet(docs)...)
		relieved = c.besieged(alone[0].verdict.JobID)
		<-time.After(time.Second / 2) // it has what it can get
		beside = append(beside, c.quiet(docs)...)
		if n+1 < rounds {
			relieved()
		}
	}
	before, after := reasons(alone), reasons(beside)
	c.t.Logf("a quiet producer alone %v, the slowest %v; beside a hostile one %v, the slowest %v",
		before, slowest(alone), after, slowest(beside))
	if 10*after[slackgate.ReasonPaid] < 9*before[slackgate.ReasonPaid] || before[slackgate.ReasonPaid] == 0 {
		c.t.Errorf("a hostile producer took more than a tenth of a quiet one's admissions: %v alone, %v beside it", before, after)
	}
	return relieved
}

func reasons(subs []*submission) map[slackgate.Reason]int {
	out := map[slackgate.Reason]int{}
	for _, s := range subs {
		out[s.reason()]++
	}
	return out
}

func slowest(subs []*submission) (d time.Duration) {
	for _, s := range subs {
		d = max(d, s.took)
	}
	return d.Round(time.Millisecond)
}

// quiet is a producer that submits a few jobs a second to the first API.
func (c *chaos) quiet(docs []string) []*submission {
	subs := make([]*submission, quietJobs)
	var wg sync.WaitGroup
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	for i := range subs {
		<-tick.C
		wg.Go(func() {
			subs[i] = c.submitTo(c.door(0), client.Job{Class: "paid-only", Producer: "quiet", Text: docs[i%len(docs)]})
		})
	}
	wg.Wait()
	return subs
}

// pressure is one way to take what all producers share: connections that send
// more, and read nothing.
type pressure struct {
	connections int
	head, more  string
	every       time.Duration
}

// pressures hold memory, polls and answers, and send what is no job.
func pressures(jobID, batchID string) []pressure {
	const chunked = "Host: localhost\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n"
	get := func(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n" }
	chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
	batch := fmt.Sprintf("POST /v1/jobs/batch HTTP/1.1\r\n"+chunked, "application/x-ndjson")
	events, poll := get("/v1/jobs/"+jobID+"/events"), get("/v1/batches/"+batchID+"?wait=60s")
	return []pressure{
		{48, batch, chunk("\n"), time.Second},
		{16, fmt.Sprintf("POST /v1/jobs HTTP/1.1\r\n"+chunked, "application/json"), chunk(" "), time.Second / 2},
		{64, events, events, time.Second},
		{64, poll, poll, time.Second},
		{2, batch, chunk(strings.Repeat("no job\n", 50)), time.Second / 2},
		{4, strings.Repeat(get("/openapi.json"), 200), get("/openapi.json"), time.Second},
		{4, get("/readyz"), get("/readyz"), time.Second / 10},
	}
}

// besieged has a producer at an address of its own press the first API until
// relieved.
func (c *chaos) besieged(jobID string) (relieved func()) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	batch := c.openBatch(ctx, from)
	var wg sync.WaitGroup
	for n, p := range pressures(jobID, batch) {
		for range p.connections {
			wg.Go(func() {
				// Not all at one instant: that a core is busy for as long as it takes
				// to let them in is no producer's share. The batches come first, and
				// find all of the memory.
				pause(ctx, time.Duration(n)*50*time.Millisecond)
				p.keepUp(ctx, from, strings.TrimPrefix(c.door(0).Base, "http://"))
			})
		}
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// openBatch opens a batch whose end does not come before that of ctx, so that
// whoever polls it waits.
func (c *chaos) openBatch(ctx context.Context, from *net.Dialer) (id string) {
	c.t.Helper()
	body, lines := io.Pipe()
	context.AfterFunc(ctx, func() { _ = lines.Close() })
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.door(0).Base+"/v1/jobs/batch", body)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	go func() { _, _ = io.WriteString(lines, "no job\n") }() // the head of the answer comes with its first line
	resp, err := (&http.Transport{DialContext: from.DialContext, DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		c.t.Fatal(err)
	}
	context.AfterFunc(ctx, func() { _ = resp.Body.Close() })
	return resp.Header.Get(wire.HeaderBatchID)
}

// keepUp connects again whenever it is cut off.
func (p *pressure) keepUp(ctx context.Context, from *net.Dialer, addr string) {
	for ctx.Err() == nil {
		if conn, err := from.DialContext(ctx, "tcp", addr); err == nil {
			p.press(ctx, conn)
		}
		pause(ctx, p.every)
	}
}

func (p *pressure) press(ctx context.Context, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()
	_, err := io.WriteString(conn, p.head)
	for err == nil && ctx.Err() == nil {
		pause(ctx, p.every)
		_, err = io.WriteString(conn, p.more)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
