package backend

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"leeway/broker"
)

// fault is one row of what a backend can do, and what must come of it.
type fault struct {
	name string
	play func(d *dialect, o *out)
	// only limits the row to protocols that can show it.
	only     []Protocol
	cfg      Config
	limit    int
	first    time.Duration // Request.FirstByte
	deadline time.Duration // defaults to 30 s

	reason Reason // "" whole
	text   string
	how    broker.Known
	in     int64 // 0: the estimate of the input
	out    int64
	status int
	// clamped is set where the usage is marked as not quite believed.
	clamped bool
	// took is when the call had to be over, exactly.
	took  time.Duration
	check func(t *testing.T, g got)
}

func pieces(d *dialect, n int) string {
	var b strings.Builder
	for range n {
		b.WriteString(d.text("tok "))
	}
	return b.String()
}

func status(code int, body string) func(*dialect, *out) {
	return func(_ *dialect, o *out) {
		o.header("Content-Type", "application/json")
		o.w.WriteHeader(code)
		o.send(body)
	}
}

// pings are events that carry nothing.
func pings(d *dialect) []string {
	p := []string{`{}`, `null`, `{"type":"ping"}`, `{"id":"c1","created":1}`, `[]`, `""`, `0`}
	for i := range p {
		if d.lines() {
			p[i] += "\n"
		} else {
			p[i] = "data: " + p[i] + "\n\n"
		}
	}
	if !d.lines() {
		p = append(p, "event: ping\ndata: {}\n\n", "event: ping\ndata: alive\n\n", "event: ping\n\n", "data:\n\n", "data:  \n\n")
	}
	return p
}

// indexed is an event of the OpenAI protocol with another index of its choice.
func indexed(event string, i int) string {
	return strings.Replace(event, `"index":0`, `"index":`+strconv.Itoa(i), 1)
}

// halves is a piece of text whose JSON is given, which may be half a character.
func halves(d *dialect, s string) string { return strings.Replace(d.text("@"), "@", s, 1) }

// forever is longer than any call in this file may take.
const forever = time.Hour

func isSSE() []Protocol { return []Protocol{OpenAI, Anthropic} }

var faults = []fault{
	{
		name: "ok",
		play: func(d *dialect, o *out) {
			o.send(d.open)
			o.sleep(200 * time.Millisecond)
			o.send(d.text("Hello"))
			o.sleep(300 * time.Millisecond)
			o.send(d.text(" world."), d.end(FinishStop, 12, 3), d.terminator)
		},
		text: "Hello world.", how: broker.KnownReported, in: 12, out: 3, took: 500 * time.Millisecond,
		check: func(t *testing.T, g got) {
			if g.first != 200*time.Millisecond || g.firsts != 1 || g.answer.FirstByte != g.first {
				t.Errorf("first byte %v, %d times, %v", g.first, g.firsts, g.answer.FirstByte)
			}
			if g.answer.LastByte != 500*time.Millisecond || g.answer.Finish != FinishStop {
				t.Errorf("last byte %v, finish %v", g.answer.LastByte, g.answer.Finish)
			}
		},
	},
	{
		name: "ok in one piece",
		play: func(d *dialect, o *out) {
			o.header("Content-Type", "application/json")
			o.sleep(time.Second)
			o.send(d.whole("Hello.", "hm", FinishStop, 12, 3))
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3, took: time.Second,
		check: func(t *testing.T, g got) {
			if g.answer.Reasoning != "hm" || g.first != time.Second {
				t.Errorf("reasoning %q, first byte %v", g.answer.Reasoning, g.first)
			}
		},
	},
	{
		name: "one piece although a stream was asked for",
		play: func(d *dialect, o *out) {
			o.header("Content-Type", "application/json; charset=utf-8")
			o.send(d.whole("Hello.", "", FinishStop, 12, 3))
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3,
	},
	{
		name: "content type missing",
		play: func(d *dialect, o *out) {
			o.header("Content-Type", "")
			o.send(d.text("Hi."), d.end(FinishStop, 12, 3), d.terminator)
		},
		text: "Hi.", how: broker.KnownReported, in: 12, out: 3,
	},
	{
		name: "retry-after",
		play: func(d *dialect, o *out) {
			o.header("Retry-After", "2")
			status(429, `{"error":{"message":"slow down","type":"rate_limit_error"}}`)(d, o)
		},
		reason: ReasonRateLimited, how: notBilled, status: 429,
		check: func(t *testing.T, g got) {
			if g.err.RetryAfter != 2*time.Second || g.err.Retry() != RetrySame {
				t.Errorf("retry after %v, %v", g.err.RetryAfter, g.err.Retry())
			}
		},
	},
	{name: "throttled", play: status(429, ``), reason: ReasonRateLimited, how: notBilled, status: 429},
	{
		name: "flaky", play: status(500, `oops`), reason: ReasonUpstreamError, how: notBilled, status: 500,
		check: func(t *testing.T, g got) {
			if g.err.Retry() != RetrySame {
				t.Error(g.err.Retry())
			}
		},
	},
	{name: "a gateway's timeout may be billed", play: status(504, ``), reason: ReasonUpstreamError, how: broker.KnownUnknown, status: 504},
	{
		name: "down", play: status(503, `{"error":"overloaded"}`), reason: ReasonUpstreamError, how: notBilled, status: 503,
		check: func(t *testing.T, g got) {
			if g.err.Retry() != RetrySame || !g.err.NotNow() {
				t.Error(g.err.Retry(), g.err.NotNow())
			}
		},
	},
	{
		name: "reset",
		play: func(_ *dialect, o *out) {
			conn, _, err := http.NewResponseController(o.w).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		},
		reason: ReasonReset, how: broker.KnownUnknown,
	},
	{
		name: "silent", first: 3 * time.Second,
		play:   func(_ *dialect, o *out) { o.sleep(forever) },
		reason: ReasonFirstByte, how: broker.KnownUnknown, took: 3 * time.Second,
	},
	{
		name: "headers-only", first: 3 * time.Second,
		play:   func(_ *dialect, o *out) { o.send(""); o.sleep(forever) },
		reason: ReasonFirstByte, how: broker.KnownUnknown, took: 3 * time.Second, status: 200,
	},
	{
		name: "role chunk, comments and reasoning are no first byte", first: 3 * time.Second,
		play: func(d *dialect, o *out) {
			o.send(d.open)
			for {
				o.sleep(400 * time.Millisecond)
				o.send(d.comment, d.reasoning("hm "))
			}
		},
		reason: ReasonFirstByte, how: broker.KnownEstimated, out: 7, took: 3 * time.Second, status: 200,
		check: func(t *testing.T, g got) {
			if g.firsts != 0 || g.answer.HasText || g.answer.Reasoning == "" {
				t.Errorf("%d first bytes, reasoning %q", g.firsts, g.answer.Reasoning)
			}
		},
	},
	{
		name: "blank text is no first byte", first: 3 * time.Second,
		play:   func(d *dialect, o *out) { o.send(d.text("\n\n")); o.sleep(forever) },
		reason: ReasonFirstByte, text: "\n\n", how: broker.KnownEstimated, out: 1, took: 3 * time.Second, status: 200,
	},
	{
		name: "slow, within its time", first: 6001 * time.Millisecond,
		play: func(d *dialect, o *out) {
			o.sleep(6 * time.Second)
			o.send(d.text("Late."), d.end(FinishStop, 1, 1), d.terminator)
		},
		text: "Late.", how: broker.KnownReported, in: 1, out: 1, took: 6 * time.Second,
	},
	{
		name: "slow, one millisecond too slow", first: 5999 * time.Millisecond,
		play:   func(_ *dialect, o *out) { o.sleep(6 * time.Second) },
		reason: ReasonFirstByte, how: broker.KnownUnknown, took: 5999 * time.Millisecond,
	},
	{
		name: "stall", cfg: Config{Stall: 4 * time.Second},
		play: func(d *dialect, o *out) {
			o.send(pieces(d, 20))
			for range 100 {
				o.sleep(time.Second)
				o.send(d.comment) // keeps the connection alive, not the answer
			}
		},
		reason: ReasonStall, text: strings.Repeat("tok ", 20), how: broker.KnownEstimated, out: 20, took: 4 * time.Second, status: 200,
	},
	{
		name: "drip", deadline: 12 * time.Second,
		play: func(d *dialect, o *out) {
			for {
				o.send(d.text("tok "))
				o.sleep(5 * time.Second)
			}
		},
		reason: ReasonDeadline, text: strings.Repeat("tok ", 3), how: broker.KnownEstimated, out: 3, took: 12 * time.Second, status: 200,
	},
	{
		name:   "cut, the body ends",
		play:   func(d *dialect, o *out) { o.send(d.open, pieces(d, 40)) },
		reason: ReasonTruncated, text: strings.Repeat("tok ", 40), how: broker.KnownEstimated, out: 40, status: 200,
	},
	{
		name:   "cut, the connection breaks",
		play:   func(d *dialect, o *out) { o.send(d.open, pieces(d, 40)); panic(http.ErrAbortHandler) },
		reason: ReasonTruncated, text: strings.Repeat("tok ", 40), how: broker.KnownEstimated, out: 40, status: 200,
	},
	{
		name: "cut, shorter than its content length",
		play: func(d *dialect, o *out) {
			o.header("Content-Length", "100000")
			o.send(pieces(d, 40))
		},
		reason: ReasonTruncated, text: strings.Repeat("tok ", 40), how: broker.KnownEstimated, out: 40, status: 200,
	},
	{
		name: "cut with the terminator but no finish reason", only: isSSE(),
		play:   func(d *dialect, o *out) { o.send(pieces(d, 40), d.terminator) },
		reason: ReasonTruncated, text: strings.Repeat("tok ", 40), how: broker.KnownEstimated, out: 40, status: 200,
	},
	{
		name:   "cut before any text",
		play:   func(_ *dialect, o *out) { o.send(""); panic(http.ErrAbortHandler) },
		reason: ReasonReset, how: broker.KnownUnknown, status: 200,
	},
	{
		name: "bad-chunk",
		play: func(d *dialect, o *out) {
			bad := strings.Replace(d.text("x"), `"`, "", 1)
			o.send(d.text("Hello "), bad, d.text("world."), d.end(FinishStop, 1, 1), d.terminator)
		},
		reason: ReasonBadAnswer, text: "Hello ", how: broker.KnownEstimated, out: 2, status: 200,
	},
	{
		name: "no-done", only: isSSE(),
		play: func(d *dialect, o *out) {
			o.send(d.text("Hello."), d.end(FinishStop, 4, 2))
			o.sleep(forever)
		},
		text: "Hello.", how: broker.KnownReported, in: 4, out: 2, took: Tail,
		check: func(t *testing.T, g got) {
			if g.answer.LastByte != 0 {
				t.Errorf("last byte at %v", g.answer.LastByte)
			}
		},
	},
	{
		name: "no-done, closed", only: isSSE(),
		play: func(d *dialect, o *out) { o.send(d.text("Hello."), d.end(FinishStop, 4, 2)) },
		text: "Hello.", how: broker.KnownReported, in: 4, out: 2,
	},
	{
		name: "no-done, the finish reason repeated for ever", only: []Protocol{OpenAI},
		play: func(d *dialect, o *out) {
			o.send(d.text("Hello."))
			for {
				o.send(d.end(FinishStop, 4, 2))
				o.sleep(100 * time.Millisecond)
			}
		},
		text: "Hello.", how: broker.KnownReported, in: 4, out: 2, took: Tail,
	},
	{
		name: "the deadline comes after the finish reason", only: isSSE(), deadline: 100 * time.Millisecond,
		play: func(d *dialect, o *out) {
			o.send(d.text("Hello."), d.end(FinishStop, 4, 2))
			o.sleep(forever)
		},
		text: "Hello.", how: broker.KnownReported, in: 4, out: 2, took: 100 * time.Millisecond,
	},
	{
		name: "done, the connection left open",
		play: func(d *dialect, o *out) {
			o.send(d.text("Hello."), d.end(FinishStop, 4, 2), d.terminator)
			o.sleep(forever)
		},
		only: isSSE(),
		text: "Hello.", how: broker.KnownReported, in: 4, out: 2, took: drainGrace,
	},
	{
		// The end of the body is its terminator.
		name: "done, the connection left open, without a terminator", only: []Protocol{Ollama},
		play: func(d *dialect, o *out) {
			o.send(d.text("Hello."), d.end(FinishStop, 4, 2))
			o.sleep(forever)
		},
		text: "Hello.", how: broker.KnownReported, in: 4, out: 2, took: Tail,
	},
	{
		name: "finish-early, a word in every chunk",
		play: func(d *dialect, o *out) {
			for range 60 {
				o.send(d.worded("tok ", FinishStop))
				o.sleep(50 * time.Millisecond)
			}
			o.send(d.end(FinishStop, 12, 60), d.terminator)
		},
		text: strings.Repeat("tok ", 60), how: broker.KnownReported, in: 12, out: 60, took: 3 * time.Second,
		check: func(t *testing.T, g got) {
			if g.answer.LastByte != 2950*time.Millisecond || g.answer.Finish != FinishStop {
				t.Errorf("last byte at %v, finish %q", g.answer.LastByte, g.answer.Finish)
			}
		},
	},
	{
		name: "finish-early, a word in every chunk of a slow stream",
		play: func(d *dialect, o *out) {
			for range 6 {
				o.send(d.worded("tok ", FinishStop))
				o.sleep(9 * time.Second)
			}
			o.send(d.end(FinishStop, 12, 6), d.terminator)
		},
		only: []Protocol{OpenAI, Ollama}, deadline: time.Minute,
		text: strings.Repeat("tok ", 6), how: broker.KnownReported, in: 12, out: 6, took: 54 * time.Second,
	},
	{
		name: "finish-early, length in the middle and stop at the end",
		play: func(d *dialect, o *out) {
			o.send(pieces(d, 19), d.worded("tok ", FinishLength))
			for range 40 {
				o.sleep(50 * time.Millisecond)
				o.send(d.text("tok "))
			}
			o.send(d.end(FinishStop, 12, 60), d.terminator)
		},
		text: strings.Repeat("tok ", 60), how: broker.KnownReported, in: 12, out: 60, took: 2 * time.Second,
		check: func(t *testing.T, g got) {
			if g.answer.Finish != FinishStop {
				t.Errorf("finish %q", g.answer.Finish)
			}
		},
	},
	{
		name: "finish-early, stop in the middle and length at the end", limit: 100,
		play: func(d *dialect, o *out) {
			o.send(d.worded("tok ", FinishStop), pieces(d, 59), d.end(FinishLength, 12, 60), d.terminator)
		},
		reason: ReasonTruncated, text: strings.Repeat("tok ", 60), how: broker.KnownReported, in: 12, out: 60, status: 200,
	},
	{
		// The terminator says that the answer is whole; the only word says how.
		name: "finish-early, once in the middle, and the terminator", only: isSSE(),
		play: func(d *dialect, o *out) {
			o.send(pieces(d, 19), d.worded("tok ", FinishStop), pieces(d, 40), d.terminator)
		},
		text: strings.Repeat("tok ", 60), how: broker.KnownEstimated, out: 60,
	},
	{
		name: "finish-early, once in the middle, and the body ends",
		play: func(d *dialect, o *out) {
			o.send(pieces(d, 19), d.worded("tok ", FinishStop), pieces(d, 20))
		},
		reason: ReasonTruncated, text: strings.Repeat("tok ", 40), how: broker.KnownEstimated, out: 40, status: 200,
		check: func(t *testing.T, g got) {
			if g.answer.Finish != FinishNone {
				t.Errorf("finish %q", g.answer.Finish)
			}
		},
	},
	{
		name: "finish-early, in every chunk, and the connection breaks",
		play: func(d *dialect, o *out) {
			for range 40 {
				o.send(d.worded("tok ", FinishStop))
			}
			panic(http.ErrAbortHandler)
		},
		reason: ReasonTruncated, text: strings.Repeat("tok ", 40), how: broker.KnownEstimated, out: 40, status: 200,
	},
	{
		name: "finish-early, in every chunk, and the tail runs out", cfg: Config{Stall: 4 * time.Second},
		play: func(d *dialect, o *out) {
			for range 40 {
				o.send(d.worded("tok ", FinishStop))
			}
			o.sleep(forever)
		},
		reason: ReasonTruncated, text: strings.Repeat("tok ", 40), how: broker.KnownEstimated, out: 40, status: 200, took: 4 * time.Second,
	},
	{
		name: "finish-early, in every chunk, and the deadline comes", deadline: 2500 * time.Millisecond,
		play: func(d *dialect, o *out) {
			for {
				o.send(d.worded("tok ", FinishStop))
				o.sleep(time.Second)
			}
		},
		reason: ReasonDeadline, text: strings.Repeat("tok ", 3), how: broker.KnownEstimated, out: 3, status: 200, took: 2500 * time.Millisecond,
	},
	{
		name: "finish-early, before the first text", only: []Protocol{OpenAI}, first: 6 * time.Second,
		play: func(d *dialect, o *out) {
			o.send(strings.Replace(d.open, `"finish_reason":null`, `"finish_reason":"stop"`, 1))
			o.sleep(5 * time.Second)
			o.send(d.worded("Hello.", FinishStop), d.end(FinishStop, 4, 2), d.terminator)
		},
		text: "Hello.", how: broker.KnownReported, in: 4, out: 2, took: 5 * time.Second,
	},
	{
		name: "finish-early, with marks of reasoning in pieces",
		play: func(d *dialect, o *out) {
			for _, p := range []string{"<th", "ink>", "hm </", "think>", "Hel", "lo."} {
				o.send(d.worded(p, FinishStop))
			}
			o.send(d.end(FinishStop, 4, 8), d.terminator)
		},
		text: "Hello.", how: broker.KnownReported, in: 4, out: 8,
	},
	{
		name: "usage-forms, 1.5 s after the word", only: []Protocol{OpenAI},
		play: func(d *dialect, o *out) {
			word, usage, _ := strings.Cut(d.end(FinishStop, 12, 3), "\n\n")
			o.send(d.text("Hello"), word+"\n\n")
			o.sleep(1500 * time.Millisecond)
			o.send(usage, d.terminator)
		},
		text: "Hello", how: broker.KnownReported, in: 12, out: 3, took: 1500 * time.Millisecond,
		check: func(t *testing.T, g got) {
			if g.answer.LastByte != 0 {
				t.Errorf("last byte at %v", g.answer.LastByte)
			}
		},
	},
	{
		name: "slow-error",
		play: func(_ *dialect, o *out) {
			o.w.WriteHeader(500)
			for piece := range strings.SplitSeq(`{"error":"overload"}`, "") {
				o.send(piece)
				o.sleep(500 * time.Millisecond)
			}
		},
		reason: ReasonUpstreamError, how: notBilled, status: 500, took: refusalGrace,
	},
	{
		name: "slow-error, a body that ends in time",
		play: func(_ *dialect, o *out) {
			o.w.WriteHeader(400)
			o.send(`{"error":{"code":`)
			o.sleep(400 * time.Millisecond)
			o.send(`"context_length_exceeded"}}`)
		},
		reason: ReasonContextLength, how: notBilled, status: 400, took: 400 * time.Millisecond,
	},
	{
		name: "slow-error, no longer than the first byte may take", first: 200 * time.Millisecond,
		play: func(_ *dialect, o *out) {
			o.w.WriteHeader(503)
			o.send("{")
			o.sleep(forever)
		},
		reason: ReasonUpstreamError, how: notBilled, status: 503, took: 200 * time.Millisecond,
	},
	{
		name: "mislabelled, JSON as events",
		play: func(d *dialect, o *out) {
			o.header("Content-Type", "text/event-stream")
			o.send(d.whole(strings.Repeat("x", 64<<10), "", FinishStop, 12, 16384))
		},
		text: strings.Repeat("x", 64<<10), how: broker.KnownReported, in: 12, out: 16384,
	},
	{
		name: "mislabelled, JSON over several lines, as lines",
		play: func(d *dialect, o *out) {
			o.header("Content-Type", "application/x-ndjson")
			var b bytes.Buffer
			_ = json.Indent(&b, []byte(d.whole("Hello.", "hm", FinishStop, 12, 3)), "", "  ")
			o.send(b.String())
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3,
	},
	{
		name: "mislabelled, a stream as JSON",
		play: func(d *dialect, o *out) {
			o.header("Content-Type", "application/json")
			o.send(d.open, d.text("Hello."))
			o.sleep(time.Second)
			o.send(d.end(FinishStop, 12, 3), d.terminator)
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3, took: time.Second,
		check: func(t *testing.T, g got) {
			if g.first != 0 || g.firsts != 1 {
				t.Errorf("first byte at %v: it was not read as it came", g.first)
			}
		},
	},
	{
		name: "mislabelled, as a page",
		play: func(d *dialect, o *out) {
			o.header("Content-Type", "text/html")
			o.send(d.text("Hello."), d.end(FinishStop, 12, 3), d.terminator)
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3,
	},
	{
		name: "mislabelled, lines as events", only: []Protocol{Ollama},
		play: func(d *dialect, o *out) {
			o.header("Content-Type", "text/event-stream")
			o.send("data: "+d.text("Hello.")+"\n", "data: "+d.end(FinishStop, 12, 3)+"\n", "data: [DONE]\n\n")
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3,
	},
	{
		name: "mislabelled, a BOM before JSON",
		play: func(d *dialect, o *out) {
			o.header("Content-Type", "application/json")
			o.send("\ufeff" + d.whole("Hello.", "", FinishStop, 12, 3))
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3,
	},
	{
		name: "mislabelled, a BOM before a stream",
		play: func(d *dialect, o *out) {
			o.send("\ufeff"+d.text("Hello."), d.end(FinishStop, 12, 3), d.terminator)
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3,
	},
	{
		name: "mislabelled, 201",
		play: func(d *dialect, o *out) {
			o.w.WriteHeader(201)
			o.send(d.text("Hello."), d.end(FinishStop, 12, 3), d.terminator)
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3,
	},
	{
		name: "mislabelled, 206",
		play: func(d *dialect, o *out) {
			o.header("Content-Type", "application/json")
			o.w.WriteHeader(206)
			o.send(d.whole("Hello.", "", FinishStop, 12, 3))
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3,
	},
	{
		name: "206, and only a part",
		play: func(d *dialect, o *out) {
			o.w.WriteHeader(206)
			o.send(pieces(d, 40))
		},
		reason: ReasonTruncated, text: strings.Repeat("tok ", 40), how: broker.KnownEstimated, out: 40, status: 206,
	},
	{
		name:   "202, and no answer",
		play:   status(202, `{"id":"job-1","status":"queued"}`),
		reason: ReasonBadAnswer, how: broker.KnownUnknown, status: 202,
	},
	{
		name:   "error-in-200, as 201",
		play:   status(201, `{"error":{"message":"model crashed"}}`),
		reason: ReasonUpstreamError, how: broker.KnownUnknown, status: 201,
	},
	{
		name: "pings",
		play: func(d *dialect, o *out) {
			for _, p := range []string{d.open, d.text("Hello"), d.text("."), d.end(FinishStop, 12, 3), d.terminator} {
				for _, nothing := range pings(d) {
					o.send(nothing)
				}
				o.send(p)
			}
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3,
		check: func(t *testing.T, g got) {
			if g.firsts != 1 {
				t.Errorf("%d first bytes", g.firsts)
			}
		},
	},
	{
		name: "pings are no first byte", first: 3 * time.Second,
		play: func(d *dialect, o *out) {
			for {
				o.send(pings(d)...)
				o.sleep(400 * time.Millisecond)
			}
		},
		reason: ReasonFirstByte, how: broker.KnownUnknown, took: 3 * time.Second, status: 200,
	},
	{
		name: "pings and nothing else",
		play: func(d *dialect, o *out) { o.send(pings(d)...) },
		// Such a stream is of no protocol.
		reason: ReasonBadAnswer, how: broker.KnownUnknown, status: 200,
	},
	{
		name: "choice-index, one throughout", only: []Protocol{OpenAI},
		play: func(d *dialect, o *out) {
			for _, p := range []string{d.open, d.text("Hel"), d.text("lo"), d.text("."), d.end(FinishStop, 12, 3)} {
				o.send(indexed(p, 1))
			}
			o.send(d.terminator)
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3,
	},
	{
		name: "choice-index, growing", only: []Protocol{OpenAI},
		play: func(d *dialect, o *out) {
			for i, p := range []string{d.open, d.text("Hel"), d.text("lo"), d.text(".")} {
				o.send(indexed(p, i))
			}
			o.send(d.end(FinishStop, 12, 3), d.terminator)
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3,
	},
	{
		name: "choice-index, one in one piece", only: []Protocol{OpenAI},
		play: func(d *dialect, o *out) {
			o.send(indexed(d.whole("Hello.", "", FinishStop, 12, 3), 1))
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3,
	},
	{
		name: "choice-index, a second answer is passed over", only: []Protocol{OpenAI},
		play: func(d *dialect, o *out) {
			o.send(d.text("Hel"), d.text("lo."), indexed(d.text("Bye"), 1), indexed(d.text("."), 1), d.end(FinishStop, 12, 3), indexed(d.end(FinishStop, 12, 3), 1), d.terminator)
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3,
	},
	{
		name: "choice-index, two answers mingled", only: []Protocol{OpenAI},
		play: func(d *dialect, o *out) {
			o.send(d.text("Hel"), indexed(d.text("By"), 1), d.text("lo."), indexed(d.text("e."), 1), d.end(FinishStop, 12, 3), d.terminator)
		},
		reason: ReasonBadAnswer, text: "HelBy", how: broker.KnownEstimated, out: 2, status: 200,
	},
	{
		name: "empty-error",
		play: func(d *dialect, o *out) {
			for i, none := range []string{`{}`, `""`, `{"message":"","code":null}`, `[]`, `0`} {
				o.send(strings.Replace(d.text([]string{"H", "el", "l", "o", "."}[i]), `{"`, `{"error":`+none+`,"`, 1))
			}
			o.send(strings.Replace(d.end(FinishStop, 12, 3), `{"`, `{"error":{},"`, 1), d.terminator)
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3,
	},
	{
		name: "empty-error, in one piece",
		play: func(d *dialect, o *out) {
			o.header("Content-Type", "application/json")
			o.send(strings.Replace(d.whole("Hello.", "", FinishStop, 12, 3), `{"`, `{"error":"","`, 1))
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3,
	},
	{
		name: "empty-error, and nothing else", play: status(200, `{"error":{}}`),
		reason: ReasonBadAnswer, how: broker.KnownUnknown, status: 200,
	},
	{
		name: "split-pair",
		play: func(d *dialect, o *out) {
			o.send(halves(d, "Well \\ud83d"), halves(d, "\\ude00"), halves(d, " d\xc3"), halves(d, "\xa9j\xc3\xa0 \xf0\x9f"), halves(d, "\x98"), halves(d, "\x80."),
				d.end(FinishStop, 12, 9), d.terminator)
		},
		text: "Well 😀 déjà 😀.", how: broker.KnownReported, in: 12, out: 9,
	},
	{
		name: "split-pair, halves that nothing follows",
		play: func(d *dialect, o *out) {
			o.send(halves(d, "a\\ud83d"), halves(d, "b\\ude00\\\\ud83d"), halves(d, "\\ude00c\\ud83d"), d.end(FinishStop, 12, 9), d.terminator)
		},
		text: "a\ufffdb\ufffd\\ud83d\ufffdc\ufffd", how: broker.KnownReported, in: 12, out: 9,
	},
	{
		name: "empty, invisible",
		play: func(d *dialect, o *out) {
			o.send(d.text("\u200b\u2060"), d.text("\u00ad \u2800\u3164\ufe0f\ufeff"), d.end(FinishStop, 12, 32), d.terminator)
		},
		reason: ReasonEmpty, text: "\u200b\u2060\u00ad \u2800\u3164\ufe0f\ufeff", how: broker.KnownReported, in: 12, out: 32, status: 200,
		check: func(t *testing.T, g got) {
			if g.firsts != 0 || g.answer.HasText {
				t.Errorf("%d first bytes", g.firsts)
			}
		},
	},
	{
		name: "usage-absurd, malformed details", only: []Protocol{OpenAI},
		play: func(d *dialect, o *out) {
			end := strings.Replace(d.end(FinishStop, 12, 3), `"completion_tokens":3`, `"completion_tokens":3,"prompt_tokens_details":"none","completion_tokens_details":[]`, 1)
			o.send(d.text("Hello."), end, d.terminator)
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3, clamped: true,
	},
	{
		name: "an event with fields of other kinds", only: []Protocol{OpenAI},
		play: func(d *dialect, o *out) {
			o.send(strings.Replace(d.text("Hello."), `"content"`, `"tool_calls":"","content"`, 1), strings.Replace(d.end(FinishStop, 12, 3), `"delta":{}`, `"delta":[]`, 1), d.terminator)
		},
		text: "Hello.", how: broker.KnownReported, in: 12, out: 3,
	},
	{
		name: "comments",
		play: func(d *dialect, o *out) {
			o.send(d.comment, d.comment)
			o.sleep(time.Second)
			o.send(d.text("Hello."), d.comment, d.end(FinishStop, 4, 2), d.comment, d.terminator)
		},
		text: "Hello.", how: broker.KnownReported, in: 4, out: 2, took: time.Second,
	},
	{
		name: "comments and nothing else",
		play: func(d *dialect, o *out) { o.send(d.comment, d.comment) },
		// Nothing was generated that we know of.
		reason: ReasonEmpty, how: broker.KnownUnknown, status: 200,
	},
	{
		name: "no-space", only: isSSE(),
		play: func(d *dialect, o *out) {
			// Every colon without its space, every value over two data lines
			// (a line break is white space in JSON), and CRLF for line ends.
			all := d.text("Hello.") + d.end(FinishStop, 4, 2) + d.terminator
			all = strings.ReplaceAll(all, "data: ", "data:")
			all = strings.ReplaceAll(all, `,"`, ",\ndata:\"")
			o.send(strings.ReplaceAll(all, "\n", "\r\n"))
		},
		text: "Hello.", how: broker.KnownReported, in: 4, out: 2,
	},
	{
		name: "big-line of 100 KiB",
		play: func(d *dialect, o *out) {
			o.send(d.text(strings.Repeat("x", 100<<10)), d.end(FinishStop, 4, 25600), d.terminator)
		},
		text: strings.Repeat("x", 100<<10), how: broker.KnownReported, in: 4, out: 25600,
	},
	{
		name: "big-line of 12 MiB",
		play: func(d *dialect, o *out) {
			o.send(d.text("Hello "))
			o.send(strings.Replace(d.text("@"), "@", strings.Repeat("x", 12<<20), 1), d.end(FinishStop, 4, 2), d.terminator)
		},
		reason: ReasonTooLarge, text: "Hello ", how: broker.KnownEstimated, out: 2, status: 200,
	},
	{
		name: "answer over its bound", cfg: Config{maxAnswerBytes: 1000},
		play: func(d *dialect, o *out) {
			for {
				o.send(d.text(strings.Repeat("x", 100)))
			}
		},
		reason: ReasonTooLarge, text: strings.Repeat("x", 1000), how: broker.KnownEstimated, out: 250, status: 200,
	},
	{
		name: "a stream without end", cfg: Config{maxStreamBytes: 1 << 20},
		play: func(d *dialect, o *out) {
			line := strings.Repeat(d.comment, 1000)
			for {
				o.send(line)
			}
		},
		reason: ReasonTooLarge, how: broker.KnownUnknown, status: 200,
	},
	{
		name:   "empty, no body",
		play:   func(_ *dialect, o *out) { o.send("") },
		reason: ReasonEmpty, how: broker.KnownUnknown, status: 200,
	},
	{
		name:   "empty, no content",
		play:   func(d *dialect, o *out) { o.send(d.open, d.end(FinishStop, 12, 32), d.terminator) },
		reason: ReasonEmpty, how: broker.KnownReported, in: 12, out: 32, status: 200,
	},
	{
		name: "empty, in one piece",
		play: func(d *dialect, o *out) {
			o.header("Content-Type", "application/json")
			o.send(d.whole("", "", FinishStop, 12, 32))
		},
		reason: ReasonEmpty, how: broker.KnownReported, in: 12, out: 32, status: 200,
	},
	{
		name:   "empty, blank",
		play:   func(d *dialect, o *out) { o.send(d.text(" \n\t "), d.end(FinishStop, 12, 32), d.terminator) },
		reason: ReasonEmpty, text: " \n\t ", how: broker.KnownReported, in: 12, out: 32, status: 200,
	},
	{
		name: "reasoning-only", limit: 32,
		play: func(d *dialect, o *out) {
			o.send(d.open, d.reasoning("Let me think."), d.end(FinishLength, 12, 32), d.terminator)
		},
		reason: ReasonEmpty, how: broker.KnownReported, in: 12, out: 32, status: 200,
		check: func(t *testing.T, g got) {
			if g.answer.Reasoning != "Let me think." || g.firsts != 0 {
				t.Errorf("reasoning %q, %d first bytes", g.answer.Reasoning, g.firsts)
			}
		},
	},
	{
		name: "reasoning between marks",
		play: func(d *dialect, o *out) {
			o.send(d.text("\n<thi"), d.text("nk>Let me "), d.text("think.</th"))
			o.sleep(time.Second)
			o.send(d.text("ink>\n\nHello "), d.text("<think>."), d.end(FinishStop, 12, 32), d.terminator)
		},
		text: "Hello <think>.", how: broker.KnownReported, in: 12, out: 32, took: time.Second,
		check: func(t *testing.T, g got) {
			if g.answer.Reasoning != "Let me think." || g.first != time.Second {
				t.Errorf("reasoning %q, first byte %v", g.answer.Reasoning, g.first)
			}
		},
	},
	{
		name: "reasoning between marks and nothing else", limit: 32,
		play: func(d *dialect, o *out) {
			o.send(d.text("<think>"), d.text("Let me think."), d.end(FinishLength, 12, 32), d.terminator)
		},
		reason: ReasonEmpty, how: broker.KnownReported, in: 12, out: 32, status: 200,
	},
	{
		name: "an answer that looks like a mark",
		play: func(d *dialect, o *out) { o.send(d.text("<th"), d.end(FinishStop, 12, 1), d.terminator) },
		text: "<th", how: broker.KnownReported, in: 12, out: 1,
	},
	{
		name: "one-token", limit: 1,
		play: func(d *dialect, o *out) { o.send(d.text("Yes"), d.end(FinishLength, 12, 1), d.terminator) },
		text: "Yes", how: broker.KnownReported, in: 12, out: 1,
	},
	{
		name: "length at our limit", limit: 60,
		play: func(d *dialect, o *out) { o.send(pieces(d, 60), d.end(FinishLength, 12, 60), d.terminator) },
		text: strings.Repeat("tok ", 60), how: broker.KnownReported, in: 12, out: 60,
	},
	{
		name: "length at our limit, the end token not counted", limit: 60,
		play: func(d *dialect, o *out) { o.send(pieces(d, 59), d.end(FinishLength, 12, 59), d.terminator) },
		text: strings.Repeat("tok ", 59), how: broker.KnownReported, in: 12, out: 59,
	},
	{
		name: "length before our limit", limit: 60,
		play:   func(d *dialect, o *out) { o.send(pieces(d, 58), d.end(FinishLength, 12, 58), d.terminator) },
		reason: ReasonTruncated, text: strings.Repeat("tok ", 58), how: broker.KnownReported, in: 12, out: 58, status: 200,
	},
	{
		name:   "length without a limit of ours",
		play:   func(d *dialect, o *out) { o.send(pieces(d, 9), d.end(FinishLength, 12, 9), d.terminator) },
		reason: ReasonTruncated, text: strings.Repeat("tok ", 9), how: broker.KnownReported, in: 12, out: 9, status: 200,
	},
	{
		name:   "tool-only",
		play:   func(d *dialect, o *out) { o.send(d.open, d.tool, d.end(FinishTool, 12, 9), d.terminator) },
		reason: ReasonToolCall, how: broker.KnownReported, in: 12, out: 9, status: 200,
	},
	{
		name:   "tool-only, finish stop",
		play:   func(d *dialect, o *out) { o.send(d.open, d.tool, d.end(FinishStop, 12, 9), d.terminator) },
		reason: ReasonToolCall, how: broker.KnownReported, in: 12, out: 9, status: 200,
	},
	{
		name:   "content filter half-way",
		play:   func(d *dialect, o *out) { o.send(d.text("Well,"), d.end(FinishFilter, 12, 2), d.terminator) },
		reason: ReasonRefused, text: "Well,", how: broker.KnownReported, in: 12, out: 2, status: 200,
	},
	{
		name:   "unknown finish reason",
		play:   func(d *dialect, o *out) { o.send(d.text("Well."), d.end(FinishOther, 12, 2), d.terminator) },
		reason: ReasonBadAnswer, text: "Well.", how: broker.KnownReported, in: 12, out: 2, status: 200,
	},
	{
		name:   "finish reason error",
		play:   func(d *dialect, o *out) { o.send(d.text("Well."), d.end(FinishError, 12, 2), d.terminator) },
		reason: ReasonUpstreamError, text: "Well.", how: broker.KnownReported, in: 12, out: 2, status: 200,
	},
	{
		name: "error-in-200, plain", play: status(200, `{"error":{"message":"model crashed","code":500}}`),
		reason: ReasonUpstreamError, how: broker.KnownUnknown, status: 200,
	},
	{
		name: "error-in-200, with choices", play: status(200, `{"error":{"message":"model crashed"},"choices":[]}`),
		reason: ReasonUpstreamError, how: broker.KnownUnknown, status: 200,
	},
	{
		name: "error-in-200, a text", play: status(200, `{"error":"model crashed"}`),
		reason: ReasonUpstreamError, how: broker.KnownUnknown, status: 200,
	},
	{
		name: "error-in-200, JSON under the name of a stream",
		play: func(_ *dialect, o *out) { o.send(`{"error":{"message":"model crashed"}}`) },
		// Ollama reads it as its first line.
		reason: ReasonUpstreamError, how: broker.KnownUnknown, status: 200,
	},
	{
		name: "error-in-200, mid-stream",
		play: func(d *dialect, o *out) {
			obj := `{"type":"error","error":{"type":"overloaded_error","message":"busy"},"choices":[]}`
			if !d.lines() {
				obj = "event: error\ndata: " + obj + "\n"
			}
			o.send(d.text("Hello "), obj+"\n", d.text("world."), d.end(FinishStop, 1, 1), d.terminator)
		},
		reason: ReasonUpstreamError, text: "Hello ", how: broker.KnownEstimated, out: 2, status: 200,
	},
	{
		name: "error-in-200, rate limit", play: status(200, `{"error":{"message":"slow","code":"rate_limit_exceeded"}}`),
		reason: ReasonRateLimited, how: broker.KnownUnknown, status: 200,
	},
	{
		name: "not an answer", play: status(200, `{"ok":true,"bytes":0}`),
		reason: ReasonBadAnswer, how: broker.KnownUnknown, status: 200,
	},
	{name: "not an answer, an array", play: status(200, `[]`), reason: ReasonBadAnswer, how: broker.KnownUnknown, status: 200},
	{
		name: "not an answer, a page",
		play: func(_ *dialect, o *out) {
			o.header("Content-Type", "text/html")
			o.send("<html>Sign in</html>")
		},
		reason: ReasonBadAnswer, how: broker.KnownUnknown, status: 200,
	},
	{
		name:   "not an answer, prose under the name of a stream",
		play:   func(_ *dialect, o *out) { o.send("you have reached the end\n") },
		reason: ReasonBadAnswer, how: broker.KnownUnknown, status: 200,
	},
	{
		name: "context-length", play: status(400, `{"error":{"message":"This model's maximum context length is 8192 tokens.","type":"invalid_request_error","code":"context_length_exceeded"}}`),
		reason: ReasonContextLength, how: notBilled, status: 400,
		check: func(t *testing.T, g got) {
			if g.err.Retry() != RetryOtherModel {
				t.Error(g.err.Retry())
			}
		},
	},
	{name: "context-length, in words", play: status(400, `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}`), reason: ReasonContextLength, how: notBilled, status: 400},
	{
		name: "refused", play: status(400, `{"error":{"message":"Your request was rejected","code":"content_policy_violation"}}`),
		reason: ReasonRefused, how: notBilled, status: 400,
		check: func(t *testing.T, g got) {
			if g.err.Retry() != RetryNowhere {
				t.Error(g.err.Retry())
			}
		},
	},
	{name: "auth, 401", play: status(401, `{"error":{"message":"Incorrect API key provided: sk-abc"}}`), reason: ReasonAuth, how: notBilled, status: 401},
	{name: "auth, in words", play: status(403, `{"type":"error","error":{"type":"permission_error","message":"no"}}`), reason: ReasonAuth, how: notBilled, status: 403},
	{name: "auth, Gemini", play: status(400, `[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}]`), reason: ReasonAuth, how: notBilled, status: 400},
	{name: "a firewall's page", play: status(403, `<html>Request blocked</html>`), reason: ReasonBadRequest, how: notBilled, status: 403},
	{name: "error-in-200, a gateway's 400", play: status(200, `{"error":{"message":"no","code":400}}`), reason: ReasonBadRequest, how: broker.KnownUnknown, status: 200},
	{name: "quota", play: status(429, `{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}`), reason: ReasonQuota, how: notBilled, status: 429},
	{name: "payment required", play: status(402, ``), reason: ReasonQuota, how: notBilled, status: 402},
	{name: "unknown model", play: status(404, `{"error":{"message":"model m not found"}}`), reason: ReasonBadRequest, how: notBilled, status: 404},
	{
		name: "redirect",
		play: func(d *dialect, o *out) {
			o.header("Location", "http://elsewhere/v1"+d.path)
			status(307, ``)(d, o)
		},
		reason: ReasonBadAnswer, how: notBilled, status: 307,
	},
	{name: "empty, 204", play: func(_ *dialect, o *out) { o.w.WriteHeader(204) }, reason: ReasonEmpty, how: broker.KnownUnknown, status: 204},
	{
		name: "gzip",
		play: func(d *dialect, o *out) {
			o.header("Content-Encoding", "gzip")
			z := gzip.NewWriter(o.w)
			_, _ = io.WriteString(z, d.text("Hello.")+d.end(FinishStop, 4, 2)+d.terminator)
			_ = z.Close()
		},
		text: "Hello.", how: broker.KnownReported, in: 4, out: 2,
	},
	{
		name: "gzip, broken",
		play: func(_ *dialect, o *out) {
			o.header("Content-Encoding", "gzip")
			o.send("this is not gzip at all")
		},
		reason: ReasonBadAnswer, how: broker.KnownUnknown, status: 200,
	},
	{
		name: "gzip, a bomb", cfg: Config{maxStreamBytes: 1 << 20},
		play: func(d *dialect, o *out) {
			o.header("Content-Encoding", "gzip")
			z := gzip.NewWriter(o.w)
			block := strings.Repeat(d.comment, 1<<20/len(d.comment))
			for range 20 {
				if _, err := io.WriteString(z, block); err != nil {
					panic(http.ErrAbortHandler)
				}
			}
		},
		reason: ReasonTooLarge, how: broker.KnownUnknown, status: 200,
	},
	{
		name: "gzip, not said",
		play: func(d *dialect, o *out) {
			z := gzip.NewWriter(o.w)
			_, _ = io.WriteString(z, d.text("Hello.")+d.end(FinishStop, 4, 2)+d.terminator)
			_ = z.Close()
		},
		reason: ReasonBadAnswer, how: broker.KnownUnknown, status: 200,
	},
	{
		name: "another encoding",
		play: func(d *dialect, o *out) {
			o.header("Content-Encoding", "br")
			o.send("....")
		},
		reason: ReasonBadAnswer, how: broker.KnownUnknown, status: 200,
	},
	{
		name: "usage-missing",
		play: func(d *dialect, o *out) { o.send(d.text("Hello, world."), d.end(FinishStop, -1, 0), d.terminator) },
		text: "Hello, world.", how: broker.KnownEstimated, out: 4,
	},
	{
		name: "usage-missing, all zeros",
		play: func(d *dialect, o *out) { o.send(d.text("Hello, world."), d.end(FinishStop, 0, 0), d.terminator) },
		text: "Hello, world.", how: broker.KnownEstimated, out: 4,
	},
	{
		name: "prose-error is an answer",
		play: func(d *dialect, o *out) {
			o.send(d.text("you have run out of credits"), d.end(FinishStop, 4, 6), d.terminator)
		},
		text: "you have run out of credits", how: broker.KnownReported, in: 4, out: 6,
	},
}

// lines reports whether the dialect is one JSON value a line.
func (d *dialect) lines() bool { return d.protocol == Ollama }

const (
	testSystem = "Summarise in one sentence."
	testText   = "The quick brown fox jumps over the lazy dog."
)

func TestFaults(t *testing.T) {
	for _, d := range dialects {
		t.Run(string(d.protocol), func(t *testing.T) {
			for _, f := range faults {
				if len(f.only) > 0 && !slices.Contains(f.only, d.protocol) {
					continue
				}
				t.Run(f.name, func(t *testing.T) { f.run(t, d) })
			}
		})
	}
}

func (f *fault) run(t *testing.T, d *dialect) {
	deadline := f.deadline
	if deadline == 0 {
		deadline = 30 * time.Second
	}
	g := call(t, f.cfg, Request{System: testSystem, Text: testText, MaxOutputTokens: f.limit, FirstByte: f.first},
		deadline, d, func(o *out) { f.play(d, o) })
	reason := Reason("")
	if g.err != nil {
		reason = g.err.Reason
		if g.err.Status != f.status {
			t.Errorf("status %d, want %d", g.err.Status, f.status)
		}
	}
	if reason != f.reason {
		t.Fatalf("reason %q, want %q (%v)", reason, f.reason, g.err)
	}
	if g.answer.Text != f.text {
		t.Errorf("text %.80q, want %.80q", g.answer.Text, f.text)
	}
	in := f.in
	if in == 0 && f.how != notBilled {
		in = (&Request{System: testSystem, Text: testText}).InputTokens()
	}
	u := g.answer.Usage
	if u.Known != f.how || u.InputTokens != in || u.OutputTokens != f.out || u.Clamped != f.clamped {
		t.Errorf("usage %+v, want %s %d %d", u, f.how, in, f.out)
	}
	if g.took != f.took {
		t.Errorf("took %v, want %v", g.took, f.took)
	}
	if f.check != nil {
		f.check(t, g)
	}
}
