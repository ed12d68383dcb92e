package lab

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// errQueueFull is returned when a slot is wanted and too many wait already.
var errQueueFull = errors.New("too many requests are waiting")

// slots is the backend's real limit: a counting semaphore that serves in the
// order of arrival, so that requests beyond it queue inside the backend.
type slots struct {
	mu      sync.Mutex
	limit   int // 0: none
	queue   int // how many may wait
	held    int
	waiting list.List // of chan struct{}, closed when the slot is theirs
}

// acquire waits for a slot. It fails with errQueueFull or ctx's error.
func (s *slots) acquire(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.free() { // then nobody waits: grant sees to that
		s.held++
		s.mu.Unlock()
		return nil
	}
	if s.waiting.Len() >= s.queue {
		s.mu.Unlock()
		return errQueueFull
	}
	ready := make(chan struct{})
	e := s.waiting.PushBack(ready)
	s.mu.Unlock()

	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		select {
		case <-ready: // handed over meanwhile: pass it on
			s.held--
			s.grant()
		default:
			s.waiting.Remove(e)
		}
		return ctx.Err()
	}
}

// release gives a slot back.
func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held--
	s.grant()
}

// resize changes the limit. Requests in service beyond it finish.
func (s *slots) resize(limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = limit
	s.grant()
}

// size returns the limit.
func (s *slots) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limit
}

// counts returns how many are in service and how many wait.
func (s *slots) counts() (held, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held, s.waiting.Len()
}

func (s *slots) free() bool { return s.limit == 0 || s.held < s.limit }

// grant hands free slots to those who wait longest. s.mu is held.
func (s *slots) grant() {
	for s.waiting.Len() > 0 && s.free() {
		e := s.waiting.Front()
		s.waiting.Remove(e)
		s.held++
		close(e.Value.(chan struct{}))
	}
}
