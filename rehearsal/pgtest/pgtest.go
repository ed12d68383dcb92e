// Package pgtest runs real PostgreSQL servers for tests: each on a free
// loopback port, with a data folder of its own, stopped by its pid.
package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"leeway/rehearsal/proctest"
)

// Server is a running PostgreSQL server.
type Server struct {
	tb   testing.TB
	dir  string
	port int
	cred *syscall.Credential
	proc *proctest.Process
}

// Start makes a database and runs a server on it, which ends with the test.
func Start(tb testing.TB) *Server {
	tb.Helper()
	// Not tb.TempDir: its parents may be closed to the user that the server
	// runs as.
	dir, err := os.MkdirTemp("", "leeway-pg-") //nolint:usetesting // see above
	if err != nil {
		tb.Fatal(err)
	}
	s := &Server{tb: tb, dir: dir, port: proctest.FreePort(tb)}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	s.dropRoot()
	init := s.command("initdb", "--pgdata", s.data(), "--username", "leeway", "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C")
	if out, err := init.CombinedOutput(); err != nil {
		tb.Fatalf("initdb: %v\n%s", err, out)
	}
	s.Run()
	return s
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// dropRoot gives the folder to an ordinary user if the test runs as root, whom
// PostgreSQL refuses.
func (s *Server) dropRoot() {
	s.tb.Helper()
	if os.Geteuid() != 0 {
		return
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		s.tb.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	if err := os.Chown(s.dir, uid, gid); err != nil {
		s.tb.Fatal(err)
	}
	s.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// program finds a server program: on PATH, or where Debian puts it.
func program(tb testing.TB, name string) string {
	tb.Helper()
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) == 0 {
		tb.Fatalf("PostgreSQL's %s is needed (make setup installs it)", name)
	}
	return slices.Max(found)
}

func (s *Server) command(name string, args ...string) *exec.Cmd {
	s.tb.Helper()
	cmd := exec.Command(program(s.tb, name), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred}
	return cmd
}

var ready = regexp.MustCompile("database system is ready to accept connections")

// Run starts the server, after a Kill again with the same port and data, and
// returns once it takes connections.
func (s *Server) Run() {
	s.tb.Helper()
	s.proc = proctest.Start(s.tb, s.command("postgres", "-D", s.data(), "-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="+s.dir, "-c", "logging_collector=off",
		"-c", "log_destination=stderr", "-c", "lc_messages=C"))
	s.tb.Cleanup(s.Kill)
	s.proc.Says(time.Minute, ready)
}

// Kill ends the server at once: SIGQUIT is PostgreSQL's own immediate stop,
// which takes its helper processes with it and needs recovery at the next
// start, as after a crash.
func (s *Server) Kill() {
	s.proc.Signal(syscall.SIGQUIT)
	<-s.proc.Done
}

// URL is the address as configuration takes it.
func (s *Server) URL() string {
	return fmt.Sprintf("postgres://leeway@127.0.0.1:%d/postgres?sslmode=disable", s.port)
}
