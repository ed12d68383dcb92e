package backend

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Causes with which the watch ends a call.
var (
	errFirstByte = errors.New("no answer text in time")
	errStall     = errors.New("the stream went quiet")
	errTail      = errors.New("nothing more after the finish reason")
)

// watchdog ends a call that is quiet for too long. It is the only clock of a
// call besides the context's deadline.
type watchdog struct {
	cancel context.CancelCauseFunc

	mu sync.Mutex // guards what follows
	// due is when cause applies; an early or stale firing of the timer finds
	// it in the future and arms itself again.
	due   time.Time
	cause error
	timer *time.Timer
}

// reset ends the call with cause unless reset is called again in d.
func (w *watchdog) reset(d time.Duration, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due, w.cause = time.Now().Add(d), cause
	if w.timer == nil {
		w.timer = time.AfterFunc(d, w.fire)
		return
	}
	w.timer.Reset(d)
}

func (w *watchdog) fire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if early := time.Until(w.due); early > 0 {
		w.timer.Reset(early)
		return
	}
	w.cancel(w.cause)
}

func (w *watchdog) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
}

// Generate makes one call and reads its answer.
//
// The error is nil only if the answer is whole. Otherwise it is an [*Error],
// and the answer still holds what is known: the text so far, and the usage to
// be booked. The context's deadline is the job's; r.FirstByte bounds the wait
// for the first answer text, and the stall limit each wait after it.
func (c *Client) Generate(ctx context.Context, r Request, obs Observer) (Answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	dog := &watchdog{cancel: cancel}
	defer dog.stop()
	s := newSink(c, &r, obs, dog)
	if r.FirstByte > 0 {
		dog.reset(r.FirstByte, errFirstByte)
	}
	status, err := c.exchange(ctx, &r, s)
	return s.result(ctx, status, err)
}

// untouched reports whether a call cannot have been worked on, going by its
// status (0: none came) and whether there was a connection at all.
func untouched(status int, connected bool) bool {
	switch status {
	case 0:
		return !connected
	case http.StatusRequestTimeout, http.StatusBadGateway, http.StatusGatewayTimeout, 524:
		// A gateway lost patience with a backend that may still be at work.
		return false
	}
	return !succeeded(status)
}

// succeeded reports whether a status says that the body is an answer. Gateways
// use 201 and 206 for whole ones.
func succeeded(status int) bool { return status/100 == 2 }

// exchange sends the request and feeds the response to s. It returns the HTTP
// status, 0 if there was none, and what went wrong on the way.
func (c *Client) exchange(ctx context.Context, r *Request, s *sink) (int, error) {
	body, err := json.Marshal(c.body(r))
	if err != nil {
		return 0, &Error{Reason: ReasonBadRequest, Detail: "the request cannot be written as JSON"}
	}
	var kept, heard atomic.Bool
	trace := &httptrace.ClientTrace{
		GotConn:              func(i httptrace.GotConnInfo) { s.connected.Store(true); kept.Store(i.Reused) },
		GotFirstResponseByte: func() { heard.Store(true) },
	}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return 0, &Error{Reason: ReasonConnect, Detail: "the address cannot be called"}
	}
	c.setHeaders(req.Header, r)
	resp, err := c.hc.Do(req)
	if err != nil {
		if resp != nil {
			_ = resp.Body.Close()
		}
		e := &Error{Reason: ReasonReset, Detail: withoutURL(err), Stale: kept.Load() && !heard.Load()}
		if !s.connected.Load() {
			e.Reason = ReasonConnect
		}
		if e.Stale {
			c.hc.CloseIdleConnections() // the others were kept as long
		}
		return 0, e
	}
	defer func() { _ = resp.Body.Close() }()
	plain, err := decoded(resp)
	if err != nil {
		return resp.StatusCode, err
	}
	in := &meter{r: plain, left: c.cfg.maxStreamBytes}
	if !succeeded(resp.StatusCode) {
		return resp.StatusCode, c.refusal(resp, in)
	}
	return resp.StatusCode, c.read(s, resp.Header, in)
}

// body is the request's body: what the protocol makes of the call, and the
// backend's own fields.
func (c *Client) body(r *Request) fields {
	f := c.wire.body(&c.cfg, r)
	f.extend(c.cfg.Body)
	return f
}

func (c *Client) setHeaders(h http.Header, r *Request) {
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "leeway")
	// Said aloud, so that neither the transport nor a proxy on the way
	// compresses a stream that must not be buffered.
	h.Set("Accept-Encoding", "identity")
	switch {
	case c.cfg.NoStream:
		h.Set("Accept", "application/json")
	case c.wire.lines:
		h.Set("Accept", "application/x-ndjson, application/json")
	default:
		h.Set("Accept", "text/event-stream, application/json")
	}
	if sendable(r.RequestID) {
		h.Set("X-Request-Id", r.RequestID)
	}
	if sendable(r.IdempotencyKey) {
		// net/http silently sends a request a second time after some
		// connection errors if it finds this header under its canonical
		// name. A second generation must have its own spend row, so that the
		// name is written in lower case, which the wire does not care about.
		h["idempotency-key"] = []string{r.IdempotencyKey}
	}
	if c.cfg.KeyHeader == "" {
		c.wire.header(c.cfg.Key, h)
	} else {
		c.wire.header("", h)
		if c.cfg.Key != "" {
			h.Set(c.cfg.KeyHeader, string(c.cfg.Key))
		}
	}
	for name, value := range c.cfg.Headers {
		h.Set(name, string(value))
	}
}

// sendable reports whether s can be the value of a header.
func sendable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return s != "" && len(s) <= 256
}

// withoutURL is the text of a transport's error without the address, which the
// reader knows and which may hold what should not be printed.
func withoutURL(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return err.Error()
}

// decoded is the response body, decompressed if need be.
func decoded(resp *http.Response) (io.Reader, error) {
	switch enc := strings.ToLower(strings.TrimSpace(resp.Header.Get("Content-Encoding"))); enc {
	case "", "identity":
		return resp.Body, nil
	case "gzip", "x-gzip":
		return &lazyGzip{r: resp.Body}, nil
	default:
		return nil, &Error{Reason: ReasonBadAnswer, Detail: "content encoding " + enc + " was not asked for"}
	}
}

// lazyGzip opens the gzip stream at the first Read, because opening it reads.
type lazyGzip struct {
	r io.Reader
	z *gzip.Reader
}

func (g *lazyGzip) Read(p []byte) (int, error) {
	if g.z == nil {
		z, err := gzip.NewReader(g.r)
		if err != nil {
			return 0, gzipError(err)
		}
		g.z = z
	}
	n, err := g.z.Read(p)
	return n, gzipError(err)
}

func gzipError(err error) error {
	if errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) {
		return &Error{Reason: ReasonBadAnswer, Detail: "broken gzip"}
	}
	return err
}

// meter passes on at most left bytes.
type meter struct {
	r    io.Reader
	left int64
}

func (m *meter) Read(p []byte) (int, error) {
	if m.left <= 0 {
		return 0, &Error{Reason: ReasonTooLarge, Detail: "the response is over its bound"}
	}
	if int64(len(p)) > m.left {
		p = p[:m.left]
	}
	n, err := m.r.Read(p)
	m.left -= int64(n)
	return n, err
}

// refusal reads an error response.
func (c *Client) refusal(resp *http.Response, in io.Reader) error {
	var e *Error
	switch {
	case resp.StatusCode < 200:
		e = &Error{Reason: ReasonBadAnswer, Detail: "unexpected status"}
	case resp.StatusCode < 400:
		e = &Error{Reason: ReasonBadAnswer, Detail: "redirects are not followed"}
	default:
		// The status alone decides most cases; a body that cannot be read, or
		// trickles, changes nothing.
		defer time.AfterFunc(refusalGrace, func() { _ = resp.Body.Close() }).Stop()
		body, _ := io.ReadAll(io.LimitReader(in, maxErrorBytes))
		w, _ := findError(body)
		e = w.asError(resp.StatusCode)
	}
	e.RetryAfter = retryAfter(resp.Header, time.Now())
	return e
}

const maxRetryAfter = 24 * time.Hour

// retryAfter reads how long a backend asks to be left alone; 0: it does not
// say, or cannot be understood.
func retryAfter(h http.Header, now time.Time) time.Duration {
	seconds, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64)
	seconds /= 1000
	if err != nil {
		v := strings.TrimSpace(h.Get("Retry-After"))
		if seconds, err = strconv.ParseFloat(v, 64); err != nil {
			at, err := http.ParseTime(v)
			if err != nil {
				return 0
			}
			// The backend's own clock, when it shows it, is the one the date is on.
			if date, err := http.ParseTime(h.Get("Date")); err == nil {
				now = date
			}
			seconds = at.Sub(now).Seconds()
		}
	}
	switch {
	case seconds > maxRetryAfter.Seconds():
		return maxRetryAfter
	case seconds > 0:
		return time.Duration(math.Round(seconds * float64(time.Second)))
	}
	return 0 // not a number among them
}
