package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"leeway/broker"
)

// subscribers are those who listen for what concerns one job.
type subscribers[T any] struct {
	mu    sync.Mutex // guards byJob
	byJob map[string]map[chan T]struct{}
}

func newSubscribers[T any]() *subscribers[T] {
	return &subscribers[T]{byJob: map[string]map[chan T]struct{}{}}
}

// listen registers for a job; done must be called. What comes while depth
// messages wait to be read is dropped.
func (l *subscribers[T]) listen(job string, depth int) (in <-chan T, done func()) {
	ch := make(chan T, depth)
	l.mu.Lock()
	defer l.mu.Unlock()
	set := l.byJob[job]
	if set == nil {
		set = map[chan T]struct{}{}
		l.byJob[job] = set
	}
	set[ch] = struct{}{}
	return ch, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if delete(set, ch); len(set) == 0 {
			delete(l.byJob, job)
		}
	}
}

func (l *subscribers[T]) tell(job string, msg T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ch := range l.byJob[job] {
		select {
		case ch <- msg:
		default:
		}
	}
}

// follow hands on what the store publishes until ctx is done.
func follow(ctx context.Context, subscribe func(context.Context) (<-chan string, func() error), hand func(payload string)) error {
	in, closeSub := subscribe(ctx)
	defer func() { _ = closeSub() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case msg, ok := <-in:
			if !ok {
				return nil
			}
			hand(msg)
		}
	}
}

// followJobs starts the loops that hand on what is told of jobs.
func (s *Server) followJobs() {
	s.Background.Go("job ends", func(ctx context.Context) error {
		return follow(ctx, s.Store.Ended, func(id string) { s.ends.tell(id, struct{}{}) })
	})
	s.Background.Go("job news", func(ctx context.Context) error {
		return follow(ctx, s.Store.News, func(id string) { s.news.tell(id, struct{}{}) })
	})
	s.Background.Go("relayed text", func(ctx context.Context) error {
		relayed := func(ctx context.Context) (<-chan string, func() error) { return s.Store.Relayed(ctx, s.replica) }
		return follow(ctx, relayed, func(payload string) {
			var p broker.Piece
			if err := json.Unmarshal([]byte(payload), &p); err != nil {
				s.Log.Warn("relayed text not readable", "error", err)
				return
			}
			s.pieces.tell(p.JobID, p)
		})
	})
}

// waitFor reads ?wait=: a duration such as 10s or 500ms, at most the configured
// limit: a longer one is answered after that with the state then.
func (s *Server) waitFor(v string) (time.Duration, error) {
	if v == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		return 0, broker.Fieldf("wait", "must be a duration such as 10s or 500ms")
	}
	if d < 0 {
		return 0, broker.Fieldf("wait", "is negative")
	}
	return min(d, time.Duration(s.Config().Limits.WaitMS)*time.Millisecond), nil
}

// recheck is how often a waiting reader looks for itself: a notice can be lost
// while the store is away.
const recheck = time.Second

// poll calls read until it is done or the wait is over: at once, then on each
// wake and after each pause. The last call is told that it is. Of others one that
// finds no place among the reads is left out.
func (s *Server) poll(c echo.Context, wait, pause time.Duration, wake <-chan struct{}, read func(last bool) (done bool, err error)) error {
	ctx := c.Request().Context()
	over, look := time.NewTimer(wait), time.NewTicker(pause)
	defer over.Stop()
	defer look.Stop()
	for last := wait == 0; ; {
		done := false
		err := s.reading(c, func() (err error) { done, err = read(last); return err })
		if done || last || err != nil && !errors.Is(err, errBusy) {
			return err
		}
		select {
		case <-wake:
		case <-look.C:
		case <-over.C:
			last = true
		case <-ctx.Done():
			return errClientGone
		}
	}
}
