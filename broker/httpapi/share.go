package httpapi

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
)

// shares bounds what all producers together hold of something: bytes that are
// being read, streams, polls. One may hold as much as it leaves free: half of the
// whole if it is alone, a third if another does the same, and so on. However
// greedy some are, whoever comes finds as much free as each of them has.
type shares struct {
	// last is kept for one hold of each producer, so that of many that have come
	// half way one comes to its end.
	last int64

	mu      sync.Mutex // guards what follows
	free    int64
	by      map[string]*share // of those who hold something or wait
	waiting int               // holds of all producers
}

// share is what one producer holds.
type share struct {
	held  int64
	last  *hold   // may take what is kept for one
	queue []*want // waits for room; last is before the others
}

type want struct {
	h     *hold
	n     int64
	given chan struct{} // closed when h has n more
}

func newShares(size, last int64) *shares {
	return &shares{last: last, free: size, by: map[string]*share{}}
}

// hold is what one request or line has of its producer's share. It is not safe
// for concurrent use.
type hold struct {
	of  *shares
	who string
	n   int64
	buf *[smallBody]byte // that a small body is in
}

// hold holds nothing yet, in the share of the request's key's owner or, without
// keys, of the address that it comes from.
func (s *shares) hold(c echo.Context) *hold {
	who := callerOf(c).name
	if who == "" {
		who, _, _ = net.SplitHostPort(c.Request().RemoteAddr)
	}
	return &hold{of: s, who: who}
}

// take adds n; where there is no room it waits for as long as it may. It reports
// whether it took them.
func (h *hold) take(ctx context.Context, n int64, wait time.Duration) bool {
	if n == 0 {
		return true
	}
	s := h.of
	s.mu.Lock()
	p := s.by[h.who]
	if p == nil {
		p = &share{}
		s.by[h.who] = p
	}
	if (len(p.queue) == 0 || p.last == h) && s.give(p, h, n) {
		s.mu.Unlock()
		return true
	}
	w, at := &want{h, n, make(chan struct{})}, len(p.queue)
	if p.last == h {
		at = 0
	}
	p.queue = slices.Insert(p.queue, at, w)
	s.waiting++
	s.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	select {
	case <-w.given:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if at = slices.Index(p.queue, w); at < 0 {
		return true // just now
	}
	p.queue = slices.Delete(p.queue, at, at+1)
	s.waiting--
	if h.n == 0 {
		s.leave(p, h)
	}
	return false
}

// give adds n to a hold if its producer's share has room.
func (s *shares) give(p *share, h *hold, n int64) bool {
	room := (s.free - n) - (p.held + n)
	if room < 2*s.last {
		if p.last == nil {
			p.last = h
		}
		if p.last != h || room < 0 {
			return false
		}
	}
	s.free, p.held, h.n = s.free-n, p.held+n, h.n+n
	return true
}

// release gives back all of it, once.
func (h *hold) release() {
	if h.n > 0 {
		s := h.of
		s.mu.Lock()
		defer s.mu.Unlock()
		p := s.by[h.who]
		s.free, p.held, h.n = s.free+h.n, p.held-h.n, 0
		s.leave(p, h)
	}
	if h.buf != nil {
		smallBodies.Put(h.buf)
		h.buf = nil
	}
}

// leave follows a hold that is empty: others may have room now.
func (s *shares) leave(p *share, h *hold) {
	if p.last == h {
		p.last = nil
	}
	if s.waiting > 0 {
		for _, other := range s.by {
			for len(other.queue) > 0 && s.give(other, other.queue[0].h, other.queue[0].n) {
				close(other.queue[0].given)
				other.queue = other.queue[1:]
				s.waiting--
			}
		}
	}
	if p.held == 0 && len(p.queue) == 0 {
		delete(s.by, h.who)
	}
}
