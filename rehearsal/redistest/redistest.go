// Package redistest runs real redis-server processes for tests: each on a free
// loopback port, with a data folder of its own, stopped by its pid.
package redistest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"leeway/rehearsal/proctest"
)

// Server is a running redis-server.
type Server struct {
	// Dir is where its files are.
	Dir string

	tb        testing.TB
	port      int
	env, args []string
	proc      *proctest.Process
}

// Start runs a redis-server with AOF and noeviction, and stops it with the
// test. args are further options such as "--maxmemory", "10mb".
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return StartIn(tb, nil, args...)
}

// StartIn is [Start] with something added to the process's environment.
func StartIn(tb testing.TB, env []string, args ...string) *Server {
	tb.Helper()
	s := &Server{Dir: tb.TempDir(), tb: tb, port: proctest.FreePort(tb), env: append(os.Environ(), env...), args: args}
	s.Run()
	return s
}

var ready = regexp.MustCompile("Ready to accept connections")

// Run starts the process, after a Kill again with the same port and data, and
// returns once it takes connections.
func (s *Server) Run() {
	s.tb.Helper()
	cmd := exec.Command("redis-server", append([]string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(s.port), "--dir", s.Dir,
		"--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction",
	}, s.args...)...)
	cmd.Env = s.env
	s.proc = proctest.Start(s.tb, cmd)
	s.proc.Says(20*time.Second, ready)
}

// Kill ends the process at once, as a crash would.
func (s *Server) Kill() { s.proc.Kill() }

// Pause stops the process without closing its connections; Resume lets it go
// on.
func (s *Server) Pause() { s.proc.Signal(syscall.SIGSTOP) }

// Resume undoes Pause.
func (s *Server) Resume() { s.proc.Signal(syscall.SIGCONT) }

// PID is the running process's.
func (s *Server) PID() int { return s.proc.Cmd.Process.Pid }

// Addr is host:port.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// URL is the address as configuration takes it.
func (s *Server) URL() string { return fmt.Sprintf("redis://%s/0", s.Addr()) }
