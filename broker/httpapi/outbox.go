package httpapi

import (
	"bytes"
	"compress/flate"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
)

// packAt is how much a reader may be behind, in bytes, before more is packed.
const packAt = 32 << 10

// packRetry is how long it is waited for memory before another look at the reader.
const packRetry = 100 * time.Millisecond

var packers = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.BestSpeed) // a level that there is
	return w
}}

// outbox holds the lines of an answer until they are taken in: a client may send all
// of a body before it reads any of the answer. What waits is packed, which makes of
// it an eighth or so, and is part of the producer's memory.
type outbox struct {
	c      echo.Context
	ctx    context.Context // ends when nobody takes it any more
	memory *shares
	enc    *json.Encoder
	done   chan struct{} // closed when all is written, or nobody takes it

	mu     sync.Mutex // guards what follows
	more   sync.Cond
	packed []packed
	tail   []byte // follows what is packed
	closed bool
}

type packed struct {
	raw  []byte
	hold *hold
}

// openOutbox begins an answer of NDJSON. close must be called.
func (s *Server) openOutbox(c echo.Context) *outbox {
	openLines(c)
	ctx, cancel := context.WithCancel(c.Request().Context())
	o := &outbox{c: c, ctx: ctx, memory: s.memory, done: make(chan struct{})}
	o.more.L = &o.mu
	o.enc = json.NewEncoder(o)
	o.enc.SetEscapeHTML(false)
	go s.Background.Guard("batch writer", func() {
		defer close(o.done)
		defer cancel()
		o.run()
	})
	return o
}

// send adds a line. It waits while the producer's share of memory is used up.
func (o *outbox) send(v any) error { return o.enc.Encode(v) }

// Write implements io.Writer.
func (o *outbox) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.tail = append(o.tail, line...); len(o.tail) >= packAt {
		if err := o.pack(); err != nil {
			return 0, err
		}
	}
	o.more.Signal()
	return len(line), o.ctx.Err()
}

// pack packs the tail, once there is memory for it. The lock, which it is called
// with, is open while it waits.
func (o *outbox) pack() error {
	var raw bytes.Buffer
	w, _ := packers.Get().(*flate.Writer)
	defer packers.Put(w)
	w.Reset(&raw)
	if _, err := w.Write(o.tail); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	h := o.memory.hold(o.c)
	for len(o.tail) > 0 { // else it was taken in as it is
		o.mu.Unlock()
		taken := h.take(o.ctx, int64(raw.Cap()), packRetry)
		o.mu.Lock()
		switch {
		case o.ctx.Err() != nil || taken && len(o.tail) == 0:
			h.release()
			return o.ctx.Err()
		case taken:
			o.packed, o.tail = append(o.packed, packed{raw.Bytes(), h}), o.tail[:0]
		}
	}
	return nil
}

// close returns when all is written, or nobody takes it any more.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.more.Signal()
	o.mu.Unlock()
	<-o.done
	for _, p := range o.packed {
		p.hold.release()
	}
}

// run writes what there is until there will be no more.
func (o *outbox) run() {
	var lines []byte
	for {
		o.mu.Lock()
		for len(o.packed)+len(o.tail) == 0 && !o.closed {
			o.more.Wait()
		}
		var p packed
		switch {
		case len(o.packed) > 0:
			p, o.packed = o.packed[0], o.packed[1:]
		case len(o.tail) > 0:
			lines, o.tail = o.tail, lines[:0]
		default:
			o.mu.Unlock()
			return
		}
		o.mu.Unlock()
		if o.write(lines, p) != nil {
			return
		}
	}
}

// write writes lines, or what is packed, so that the client has them.
func (o *outbox) write(lines []byte, p packed) error {
	err := setDeadline(o.c, 0, writeWithin)
	if err == nil && p.hold == nil {
		_, err = o.c.Response().Write(lines)
	} else if err == nil {
		_, err = io.Copy(o.c.Response(), flate.NewReader(bytes.NewReader(p.raw)))
	}
	if p.hold != nil {
		p.hold.release()
	}
	if err != nil {
		return err
	}
	return http.NewResponseController(o.c.Response()).Flush()
}
