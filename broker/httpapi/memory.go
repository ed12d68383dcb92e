package httpapi

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
)

// How long a body, and a line of a batch, wait for memory.
const (
	bodyMemoryWait = time.Second
	lineMemoryWait = 5 * time.Second
)

// perByte is what a byte that is read costs: it is held as it came and as it
// was decoded.
const perByte = 2

var errBusy = errors.New("no memory for what comes in")

// smallBody is how large a body may be, in bytes, to be read into a buffer that
// other bodies had before.
const smallBody = 4 << 10

var smallBodies = sync.Pool{New: func() any { return new([smallBody]byte) }}

// read reads a body of at most limit bytes. Memory is taken as they come, so that
// one that declares much and sends nothing holds nothing.
func (h *hold) read(c echo.Context, limit int64) ([]byte, error) {
	req := c.Request()
	declared := req.ContentLength // -1: not
	if declared > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	in := http.MaxBytesReader(c.Response(), req.Body, limit)
	h.buf, _ = smallBodies.Get().(*[smallBody]byte)
	body := h.buf[:0]
	for size := int64(smallBody); ; size *= 2 {
		if declared >= 0 {
			size = min(size, declared) // net/http gives no more than that
		}
		if !h.take(req.Context(), perByte*size-h.n, bodyMemoryWait) {
			return nil, errBusy
		}
		if size > smallBody {
			body = append(make([]byte, 0, size), body...)
		}
		for len(body) < int(size) {
			n, err := in.Read(body[len(body):size])
			body = body[:len(body)+n]
			switch {
			case errors.Is(err, io.EOF) && declared <= int64(len(body)):
				return body, nil
			case errors.Is(err, io.EOF):
				return nil, io.ErrUnexpectedEOF
			case err != nil:
				return nil, err
			}
		}
		if declared >= 0 && size == declared {
			return body, nil
		}
	}
}
