package lab

import (
	"net"
	"sync"
)

// door is a listener that can be shut, so that connections are refused, and
// opened again while an http.Server goes on accepting from it.
type door struct {
	reopen func() (net.Listener, error)

	mu     sync.Mutex
	inner  net.Listener // nil while shut
	change chan struct{}
	closed bool
	addr   net.Addr
	conns  map[net.Conn]struct{} // open ones, to be cut when the door shuts
}

func newDoor(l net.Listener) *door {
	d := &door{inner: l, addr: l.Addr(), change: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	if r, ok := l.(Relistener); ok {
		d.reopen = r.Relisten
	} else {
		d.reopen = func() (net.Listener, error) { return net.Listen(d.addr.Network(), d.addr.String()) }
	}
	return d
}

// Accept waits while the door is shut.
func (d *door) Accept() (net.Conn, error) {
	for {
		d.mu.Lock()
		inner, change, closed := d.inner, d.change, d.closed
		d.mu.Unlock()
		if closed {
			return nil, net.ErrClosed
		}
		if inner == nil {
			<-change
			continue
		}
		c, err := inner.Accept()
		d.mu.Lock()
		stale := inner != d.inner || d.change != change
		if err == nil && !stale {
			t := &tracked{Conn: c, door: d}
			d.conns[t] = struct{}{}
			c = t
		}
		d.mu.Unlock()
		switch {
		case !stale:
			return c, err
		case err == nil: // it came in as the door was shut
			_ = c.Close()
		}
	}
}

// setDown shuts or opens the door. If the address cannot be had again, the
// server ends with that error.
func (d *door) setDown(down bool) {
	d.mu.Lock()
	if d.closed || down == (d.inner == nil) {
		d.mu.Unlock()
		return
	}
	var cut []net.Conn
	if down {
		_ = d.inner.Close()
		d.inner = nil
		for c := range d.conns {
			cut = append(cut, c)
		}
	} else {
		l, err := d.reopen()
		if err != nil {
			l = failing{d.addr, err}
		}
		d.inner = l
	}
	close(d.change)
	d.change = make(chan struct{})
	d.mu.Unlock()
	for _, c := range cut {
		_ = c.Close()
	}
}

// Close shuts the door for good.
func (d *door) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	close(d.change)
	d.change = make(chan struct{})
	if d.inner != nil {
		return d.inner.Close()
	}
	return nil
}

func (d *door) Addr() net.Addr { return d.addr }

// tracked is an accepted connection that the door knows of until it is closed.
type tracked struct {
	net.Conn

	door *door
}

func (t *tracked) Close() error {
	t.door.mu.Lock()
	delete(t.door.conns, t)
	t.door.mu.Unlock()
	return t.Conn.Close()
}

// SetLinger hands on to the connection, if it is one that can be reset.
func (t *tracked) SetLinger(sec int) error {
	if l, ok := t.Conn.(lingerer); ok {
		return l.SetLinger(sec)
	}
	return nil
}

// lingerer is a connection whose Close can be made a reset: a TCP connection,
// or one of package pipenet.
type lingerer interface{ SetLinger(sec int) error }

// failing is a listener that only ever fails.
type failing struct {
	addr net.Addr
	err  error
}

func (f failing) Accept() (net.Conn, error) { return nil, f.err }
func (f failing) Close() error              { return nil }
func (f failing) Addr() net.Addr            { return f.addr }
