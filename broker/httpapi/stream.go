package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/wire"
)

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
		p := problem(http.StatusServiceUnavailable, wire.ReasonTooManyStreams, "this process serves as many event streams as it can; poll with ?wait= instead, or try again")
		p.RetryAfterMS = unavailableRetryMS
		return nil, p
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
	if err := patience(e.c, 0, writeWithin); err != nil {
		return err
	}
	if _, err := e.c.Response().Write([]byte(s)); err != nil {
		return err
	}
	return http.NewResponseController(e.c.Response()).Flush()
}

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

// followJobs starts the loops behind the streams.
func (s *Server) followJobs() {
	s.background.Go("job news", func(ctx context.Context) error {
		return follow(ctx, s.Store.News, func(id string) { s.news.tell(id, struct{}{}) })
	})
	s.background.Go("relayed text", func(ctx context.Context) error {
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
