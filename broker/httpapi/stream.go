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

// MaxStreams is how many event streams a process serves at once.
const MaxStreams = 1024

// heartbeat is how often a stream on which nothing happens gets a comment, so
// that proxies keep it and a client that has gone is noticed.
const heartbeat = 15 * time.Second

// holdStream takes one of the process's streams; release must be called.
func (s *Server) holdStream() (release func(), err error) {
	select {
	case s.streams <- struct{}{}:
		return func() { <-s.streams }, nil
	default:
		return nil, unavailable(wire.ReasonTooManyStreams,
			"this process serves as many event streams as it can; poll with ?wait= instead, or try again")
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
	if c.Request().Context().Err() == nil {
		s.Log.Warn("stream broke", "route", c.Path(), "error", err)
	}
	panic(http.ErrAbortHandler)
}
