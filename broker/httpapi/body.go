package httpapi

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"leeway/broker/wire"
)

// How long a client may take to send a body, or the next line of a batch, and
// to take in what is written to it.
const (
	bodyWithin  = 30 * time.Second
	lineWithin  = time.Minute
	writeWithin = time.Minute
)

// maxOrderBytes bounds the body of an operator's action.
const maxOrderBytes = 8 << 10

// mostLeft is how much of a body is read, in bytes, after its request was refused.
const mostLeft = 64 << 20

// boundBody gives every body its time, whoever reads it and whether anybody
// does. What is left of the body of a request that went wrong is read after the
// answer: a client that sends all before it reads would else meet a connection that
// is closed.
func boundBody(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		req := c.Request()
		if req.ContentLength == 0 {
			return next(c)
		}
		if err := setDeadline(c, bodyWithin, 0); err != nil {
			return err
		}
		body := &endedBody{ReadCloser: req.Body}
		req.Body = body
		err := next(c)
		if err == nil || body.ended {
			return err
		}
		rc := http.NewResponseController(c.Response())
		_ = rc.EnableFullDuplex() // or net/http reads some of the body first, and waits for that
		c.Response().Header().Set("Connection", "close")
		c.Error(err)
		var told sync.WaitGroup
		if c.Response().Committed {
			told.Go(func() { _ = rc.Flush() })
		}
		_, _ = io.CopyN(io.Discard, body, mostLeft)
		told.Wait()
		return nil
	}
}

// endedBody is a body that notes its end.
type endedBody struct {
	io.ReadCloser

	ended bool
}

func (b *endedBody) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	b.ended = b.ended || errors.Is(err, io.EOF)
	return n, err
}

// boundAnswer gives every answer its time: from its first byte, and again for what
// is left of it when its handler has returned.
func boundAnswer(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		bound := func() { _ = setDeadline(c, 0, writeWithin) } // a connection that has gone shows when it is written to
		c.Response().Before(bound)
		defer bound()
		return next(c)
	}
}

// setDeadline bounds what comes next on the request's connection; 0 leaves a
// direction as it is.
func setDeadline(c echo.Context, read, write time.Duration) error {
	rc := http.NewResponseController(c.Response())
	var err error
	if read > 0 {
		err = rc.SetReadDeadline(time.Now().Add(read))
	}
	if write > 0 && err == nil {
		err = rc.SetWriteDeadline(time.Now().Add(write))
	}
	if errors.Is(err, http.ErrNotSupported) { // a recorder in a test, say
		return nil
	}
	return err
}

// clearReadDeadline follows a body that was read whole: net/http takes a read
// deadline that passes while a handler works for a client that has gone. A body
// that was left unread keeps its deadline, or net/http would wait for the rest of
// it for ever.
func clearReadDeadline(c echo.Context) {
	_ = http.NewResponseController(c.Response()).SetReadDeadline(time.Time{})
}

func wantMedia(r *http.Request, types ...string) error {
	got := r.Header.Get("Content-Type")
	var err error
	if !slices.Contains(types, got) { // with parameters, say
		got, _, err = mime.ParseMediaType(got)
	}
	if err != nil || !slices.Contains(types, got) {
		return problem(http.StatusUnsupportedMediaType, wire.ReasonMediaType, "want Content-Type "+types[0])
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return problem(http.StatusUnsupportedMediaType, wire.ReasonMediaType, "compressed bodies are not taken")
	}
	return nil
}

// readBody reads a JSON body of at most limit bytes, as far as there is memory for
// it. release must be called when it is no longer needed: its bytes are another
// body's then.
func (s *Server) readBody(c echo.Context, limit int64) (body []byte, release func(), err error) {
	if err := wantMedia(c.Request(), "application/json"); err != nil {
		return nil, nil, err
	}
	h := s.memory.hold(c)
	body, err = h.read(c, limit)
	if err = bodyRead(c, err); err != nil {
		h.release()
		return nil, nil, err
	}
	return body, h.release, nil
}

// readJSON reads the small body of an operator's action strictly. It waits for no
// memory: what producers send must not keep an operator out.
func readJSON[T any](c echo.Context) (*T, error) {
	if err := wantMedia(c.Request(), "application/json"); err != nil {
		return nil, err
	}
	body, err := readWhole(c, maxOrderBytes)
	if err != nil {
		return nil, err
	}
	return decodeStrict[T](body)
}

func readWhole(c echo.Context, limit int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(c.Response(), c.Request().Body, limit))
	return body, bodyRead(c, err)
}

// bodyRead ends the reading of a body. It tells a body that is too large from a
// producer that has gone.
func bodyRead(c echo.Context, err error) error {
	if err == nil {
		clearReadDeadline(c)
		return nil
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok || errors.Is(err, errBusy) {
		return err
	}
	return problem(http.StatusBadRequest, wire.ReasonInvalidJSON, "the body ended early")
}
