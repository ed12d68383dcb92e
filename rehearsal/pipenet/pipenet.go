// Package pipenet is an in-memory network of one address: a listener whose
// connections are pairs of [net.Pipe], for tests that run servers and clients
// in virtual time (testing/synctest), where real sockets cannot be waited on.
//
// It can also show what a real network shows: a refused connection (the
// listener is closed) and a reset one (SetLinger(0), then Close, as on a
// [net.TCPConn]).
package pipenet

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
)

// Listener accepts the connections that its own DialContext makes. It must be
// made inside the synctest bubble that uses it.
type Listener struct {
	conns chan net.Conn

	mu     sync.Mutex
	closed chan struct{} // closed while the listener is; replaced by Relisten
}

// Listen returns an open listener.
func Listen() *Listener {
	return &Listener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept waits for the next connection. After Close it returns [net.ErrClosed].
func (l *Listener) Accept() (net.Conn, error) {
	closed := l.closing()
	select {
	case <-closed: // an open dial must not win over a close that came first
		return nil, opError("accept", net.ErrClosed)
	default:
	}
	select {
	case c := <-l.conns:
		return c, nil
	case <-closed:
		return nil, opError("accept", net.ErrClosed)
	}
}

// DialContext connects to the listener whatever the network and address say,
// so that it fits [net/http.Transport]. It waits until the connection is
// accepted, ctx ends, or the listener closes (ECONNREFUSED, as it is for a
// closed one).
func (l *Listener) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	closed := l.closing()
	select {
	case <-closed:
		return nil, opError("dial", syscall.ECONNREFUSED)
	default:
	}
	a, b := net.Pipe()
	var wasReset atomic.Bool
	client, server := &conn{Conn: a, reset: &wasReset}, &conn{Conn: b, reset: &wasReset}
	select {
	case l.conns <- server:
		return client, nil
	case <-closed:
		return nil, opError("dial", syscall.ECONNREFUSED)
	case <-ctx.Done():
		return nil, opError("dial", ctx.Err())
	}
}

// Close makes Accept and DialContext fail until Relisten. Connections already
// accepted live on.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closed:
		return opError("close", net.ErrClosed)
	default:
		close(l.closed)
		return nil
	}
}

// Relisten opens the listener again after Close and returns it. Those who dial
// it need not know.
func (l *Listener) Relisten() (net.Listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closed:
		l.closed = make(chan struct{})
	default:
	}
	return l, nil
}

// Addr returns the address of every pipe.
func (l *Listener) Addr() net.Addr { return addr{} }

func (l *Listener) closing() chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

func opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "pipe", Addr: addr{}, Err: err}
}

type addr struct{}

func (addr) Network() string { return "pipe" }
func (addr) String() string  { return "pipe" }

// conn is one end of a pipe that can be reset.
type conn struct {
	net.Conn

	reset  *atomic.Bool // shared by both ends
	linger atomic.Bool  // SetLinger(0) was called on this end
}

// SetLinger with sec 0 makes the next Close a reset, as on a TCP connection.
func (c *conn) SetLinger(sec int) error {
	c.linger.Store(sec == 0)
	return nil
}

func (c *conn) Close() error {
	if c.linger.Load() {
		c.reset.Store(true)
	}
	return c.Conn.Close()
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, c.cause("read", err)
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return n, c.cause("write", err)
}

func (c *conn) cause(op string, err error) error {
	if (errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe)) && c.reset.Load() && !c.linger.Load() {
		return opError(op, syscall.ECONNRESET)
	}
	return err
}
