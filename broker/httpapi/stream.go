package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"leeway/broker/wire"
)

// errClientGone means that nobody is there any more to take the answer.
var errClientGone = errors.New("the client has gone")

// How many event streams a process serves at once, and how many requests that
// wait.
const (
	MaxStreams = 1024
	MaxWaits   = 2048
)

// How many requests read the store at once, for each core, and how long one waits
// to be among them. There are as many connections to the store unless its URL says
// otherwise; the gate's decisions take the same, and are behind no more of one
// producer's reads than half of that.
const (
	readsPerCore = 10
	readWait     = time.Second
)

// heartbeat is how often a stream on which nothing happens gets a comment, so
// that proxies keep it and a client that has gone is noticed.
const heartbeat = 15 * time.Second

// holdStream takes one of the process's streams; release must be called.
func (s *Server) holdStream(c echo.Context) (release func(), err error) {
	h := s.streams.hold(c)
	if !h.take(c.Request().Context(), 1, 0) {
		return nil, unavailable(wire.ReasonTooManyStreams,
			"you have as many of this process's event streams as you may; poll with ?wait= instead, or try again")
	}
	return h.release, nil
}

// holdWait takes the place of a request that waits, if it does; release must be
// called.
func (s *Server) holdWait(c echo.Context, wait time.Duration) (release func(), err error) {
	h := s.waits.hold(c)
	if wait > 0 && !h.take(c.Request().Context(), 1, 0) {
		return nil, unavailable(wire.ReasonTooManyStreams, "you have as many requests that wait at this process as you may; ask without ?wait=, or try again")
	}
	return h.release, nil
}

// holdRead takes the place of a request that reads the store; release must be
// called.
func (s *Server) holdRead(c echo.Context) (release func(), err error) {
	h := s.reads.hold(c)
	if !h.take(c.Request().Context(), 1, readWait) {
		return nil, errBusy
	}
	return h.release, nil
}

// reading has f read the store in a place among the reads.
func (s *Server) reading(c echo.Context, f func() error) error {
	release, err := s.holdRead(c)
	if err != nil {
		return err
	}
	defer release()
	return f()
}

// boundReads holds a read for a handler that reads the store and answers at once,
// until its answer begins.
func (s *Server) boundReads(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		release, err := s.holdRead(c)
		if err != nil {
			return err
		}
		defer release()
		c.Response().Before(release)
		return next(c)
	}
}

// eventStream is a response of server-sent events under way.
type eventStream struct{ c echo.Context }

func openStream(c echo.Context) (*eventStream, error) {
	h := c.Response().Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // or a proxy might collect what is meant to be live
	c.Response().WriteHeader(http.StatusOK)
	e := &eventStream{c}
	return e, e.write(": open\n\n")
}

// send writes one event; without a name it is a message.
func (e *eventStream) send(name string, data any) error {
	raw, err := json.Marshal(data) // in one line
	if err != nil {
		return err
	}
	head := ""
	if name != "" {
		head = "event: " + name + "\n"
	}
	return e.write(head + "data: " + string(raw) + "\n\n")
}

// beat shows that the stream lives.
func (e *eventStream) beat() error { return e.write(":\n\n") }

func (e *eventStream) write(s string) error {
	if err := setDeadline(e.c, 0, writeWithin); err != nil {
		return err
	}
	if _, err := e.c.Response().Write([]byte(s)); err != nil {
		return err
	}
	return http.NewResponseController(e.c.Response()).Flush()
}

// lineStream is a response of NDJSON under way.
type lineStream struct {
	c   echo.Context
	enc *json.Encoder
}

func openLines(c echo.Context) *lineStream {
	c.Response().Header().Set("Content-Type", "application/x-ndjson")
	c.Response().WriteHeader(http.StatusOK)
	l := &lineStream{c, json.NewEncoder(c.Response())}
	l.enc.SetEscapeHTML(false)
	return l
}

func (l *lineStream) send(v any) error {
	if err := setDeadline(l.c, 0, writeWithin); err != nil {
		return err
	}
	return l.enc.Encode(v)
}

// abort ends an answer that is under way so that its reader does not take it for
// the whole.
func (s *Server) abort(c echo.Context, err error) {
	if c.Request().Context().Err() == nil && !notTaken(err) {
		s.Log.Warn("stream broke", "route", c.Path(), "error", err)
	}
	panic(http.ErrAbortHandler)
}
