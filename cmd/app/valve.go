package app

import (
	"context"
	"net"
	"sync"
	"time"
)

// valve is what all connections to a stage's store run over. Shut, it is what
// clients see of a store that was stopped by SIGSTOP: connections are made and
// commands are taken, as the kernel takes them, and none is answered. Open
// again, everything that was sent is carried out, also for clients that have
// gone meanwhile.
type valve struct {
	mu    sync.Mutex // guards what follows, and the valved connections' fields
	shut  bool
	conns map[*valved]struct{}
}

// valved is one connection.
type valved struct {
	net.Conn

	valve *valve
	held  []byte // sent while the valve was shut
	gone  bool   // closed while it held something
}

func (v *valve) over(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		t := &valved{Conn: c, valve: v}
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.conns == nil {
			v.conns = map[*valved]struct{}{}
		}
		v.conns[t] = struct{}{}
		return t, nil
	}
}

func (c *valved) Write(p []byte) (int, error) {
	c.valve.mu.Lock()
	if c.valve.shut {
		c.held = append(c.held, p...)
		c.valve.mu.Unlock()
		return len(p), nil
	}
	c.valve.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *valved) Close() error {
	c.valve.mu.Lock()
	if len(c.held) > 0 {
		c.gone = true
		c.valve.mu.Unlock()
		return c.SetReadDeadline(time.Unix(1, 0)) // whoever reads is told
	}
	delete(c.valve.conns, c)
	c.valve.mu.Unlock()
	return c.Conn.Close()
}

func (v *valve) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shut = true
}

// open lets go what was held, connection by connection.
func (v *valve) open() {
	v.mu.Lock()
	v.shut = false
	type late struct {
		c    *valved
		held []byte
		gone bool
	}
	var all []late
	for c := range v.conns {
		if len(c.held) > 0 {
			all = append(all, late{c, c.held, c.gone})
			c.held = nil
		}
	}
	v.mu.Unlock()
	var wg sync.WaitGroup
	for _, l := range all {
		wg.Go(func() {
			_, _ = l.c.Conn.Write(l.held) // a broken connection is its client's to notice
			if l.gone {
				_ = l.c.Close()
			}
		})
	}
	wg.Wait()
}
