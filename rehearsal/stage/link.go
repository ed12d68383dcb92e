package stage

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

// Dial makes a connection, as [net.Dialer.DialContext] does.
type Dial = func(ctx context.Context, network, addr string) (net.Conn, error)

// link is what connections run over, so that they can be disturbed.
//
// Paused, it is what clients see of a server that was stopped by SIGSTOP:
// connections are made and commands are taken, as the kernel takes them, and
// none is answered. Resumed, everything that was sent is carried out, also for
// clients that have gone meanwhile.
//
// Cut, it is what everybody else sees of a client that was killed: its
// connections break, and it makes no others.
type link struct {
	mu     sync.Mutex // guards what follows, and held and gone of the connections
	paused bool
	broken bool
	conns  map[*linked]struct{}
}

// linked is one connection.
type linked struct {
	net.Conn

	link *link
	held []byte // sent while the link was paused
	gone bool   // closed while it held something
}

var errCut = errors.New("the link is cut")

// over makes connections run over the link.
func (l *link) over(dial Dial) Dial {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.broken {
			return nil, errors.Join(errCut, conn.Close())
		}
		if l.conns == nil {
			l.conns = map[*linked]struct{}{}
		}
		c := &linked{Conn: conn, link: l}
		l.conns[c] = struct{}{}
		return c, nil
	}
}

func (c *linked) Write(p []byte) (int, error) {
	c.link.mu.Lock()
	if c.link.paused {
		c.held = append(c.held, p...)
		c.link.mu.Unlock()
		return len(p), nil
	}
	c.link.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *linked) Close() error {
	c.link.mu.Lock()
	if len(c.held) > 0 {
		c.gone = true
		c.link.mu.Unlock()
		return c.SetReadDeadline(time.Unix(1, 0)) // whoever reads is told
	}
	delete(c.link.conns, c)
	c.link.mu.Unlock()
	return c.Conn.Close()
}

func (l *link) pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = true
}

// resume sends what was held, connection by connection.
func (l *link) resume() {
	var wg sync.WaitGroup
	l.mu.Lock()
	l.paused = false
	for c := range l.conns {
		held, gone := c.held, c.gone
		if len(held) == 0 {
			continue
		}
		c.held = nil
		wg.Go(func() {
			_, _ = c.Conn.Write(held) // a broken connection is its client's to notice
			if gone {
				_ = c.Close()
			}
		})
	}
	l.mu.Unlock()
	wg.Wait()
}

func (l *link) cut() {
	l.mu.Lock()
	l.broken = true
	conns := slices.Collect(maps.Keys(l.conns))
	l.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

// mend makes the link whole and reports whether it was cut.
func (l *link) mend() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.broken
	l.broken = false
	return was
}
