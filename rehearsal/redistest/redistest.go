// Package redistest runs real redis-server processes for tests: each on a free
// loopback port, with a data folder of its own, stopped by its pid.
package redistest

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Server is a running redis-server.
type Server struct {
	t    testing.TB
	dir  string
	port int
	args []string
	cmd  *exec.Cmd
	done chan struct{}
	// Of a server whose power can be cut: what is preloaded into it, and where
	// that notes what is on disk.
	preload, synced string
}

// Start runs a redis-server with AOF and noeviction, and stops it with the
// test. args are further options such as "--maxmemory", "10mb".
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return start(tb, &Server{}, args)
}

func start(tb testing.TB, s *Server, args []string) *Server {
	tb.Helper()
	s.t, s.dir, s.port, s.args = tb, tb.TempDir(), freePort(tb), args
	s.Run()
	tb.Cleanup(s.Kill)
	return s
}

func freePort(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// readyLine is what redis-server logs once it takes connections.
const readyLine = "Ready to accept connections"

// Run starts the process, after a Kill again with the same port and data, and
// returns once it takes connections.
func (s *Server) Run() {
	s.t.Helper()
	args := append([]string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(s.port), "--dir", s.dir,
		"--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction",
	}, s.args...)
	s.cmd = exec.Command("redis-server", args...)
	if s.preload != "" {
		s.cmd.Env = append(os.Environ(), "LD_PRELOAD="+s.preload, "SYNCED_LOG="+s.synced)
	}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatalf("redis-server is needed (make setup installs it): %v", err)
	}
	ready := make(chan bool, 1)
	s.done = make(chan struct{})
	go func() {
		var log strings.Builder
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if strings.Contains(lines.Text(), readyLine) {
				ready <- true
			}
			if log.Len() < 1<<16 {
				log.WriteString(lines.Text() + "\n")
			}
		}
		_ = s.cmd.Wait()
		select {
		case ready <- false:
			s.t.Logf("redis-server ended:\n%s", log.String())
		default:
		}
		close(s.done)
	}()
	select {
	case ok := <-ready:
		if !ok {
			s.t.Fatal("redis-server did not start")
		}
	case <-time.After(20 * time.Second):
		s.t.Fatal("redis-server did not get ready in 20 s")
	}
}

// Kill ends the process at once, as a crash would.
func (s *Server) Kill() {
	if s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		<-s.done
	}
}

// Pause stops the process without closing its connections; Resume lets it go
// on.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume undoes Pause.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig os.Signal) {
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// PID is the running process's.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Addr is host:port.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// URL is the address as configuration takes it.
func (s *Server) URL() string { return fmt.Sprintf("redis://%s/0", s.Addr()) }
