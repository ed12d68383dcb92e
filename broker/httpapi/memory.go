package httpapi

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// memory counts the bytes that are being read or decided over all connections.
// Whoever wants more than there are waits, which holds the sender back, and
// gives up with errBusy after a while.
type memory struct {
	bytes *semaphore.Weighted
	size  int64
}

// How long a body, and a line of a batch, wait for memory.
const (
	bodyMemoryWait = time.Second
	lineMemoryWait = 5 * time.Second
)

// perByte is what a byte that is read costs: it is held as it came and as it
// was decoded.
const perByte = 2

var errBusy = errors.New("no memory for what comes in")

func newMemory(size int64) *memory {
	return &memory{bytes: semaphore.NewWeighted(size), size: size}
}

// hold is what one body or line holds. It is not safe for concurrent use.
type hold struct {
	m   *memory
	n   int64
	buf *[smallBody]byte // that the body is in; nil: it has one of its own
}

// smallBody is how large a body may be, in bytes, to be read into a buffer that
// other bodies had before.
const smallBody = 4 << 10

var smallBodies = sync.Pool{New: func() any { return new([smallBody]byte) }}

// buffer is room for a body of n bytes, until release.
func (h *hold) buffer(n int64) []byte {
	if n > smallBody {
		return make([]byte, n)
	}
	h.buf, _ = smallBodies.Get().(*[smallBody]byte)
	return h.buf[:n:n]
}

// take adds n bytes that are about to be kept.
func (h *hold) take(ctx context.Context, n int, wait time.Duration) error {
	cost := int64(n) * perByte
	if h.n+cost > h.m.size {
		return errBusy // not before all others are gone, and perhaps not then
	}
	if !h.m.bytes.TryAcquire(cost) {
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		if h.m.bytes.Acquire(ctx, cost) != nil {
			return errBusy
		}
	}
	h.n += cost
	return nil
}

// release gives back all of it, once.
func (h *hold) release() {
	h.m.bytes.Release(h.n)
	h.n = 0
	if h.buf != nil {
		smallBodies.Put(h.buf)
		h.buf = nil
	}
}
