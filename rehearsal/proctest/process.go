// Package proctest runs programs as processes of their own, for tests: the
// product's, built once for all packages, and servers. Nothing outlives a test.
package proctest

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Eventually polls until cond returns nil, and fails the test if it does not
// within the time given.
func Eventually(tb testing.TB, within time.Duration, what string, cond func() error) {
	tb.Helper()
	deadline := time.Now().Add(within)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%s: not within %v: %v", what, within, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// FreePort is a port of the loopback interface on which nothing listens.
func FreePort(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// Capture collects what a process prints.
type Capture struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (c *Capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.Write(p)
}

func (c *Capture) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.String()
}

// From is a copy of what was printed after the first n bytes.
func (c *Capture) From(n int) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.buf.Bytes()[n:])
}

// Tail is the end of a long text.
func Tail(s string) string {
	const most = 6000
	if len(s) > most {
		return "..." + s[len(s)-most:]
	}
	return s
}

// Process is a running program.
type Process struct {
	Cmd *exec.Cmd
	// Out and Err are what it has printed.
	Out, Err Capture
	// Done is closed once it has ended.
	Done chan struct{}

	tb testing.TB
}

// Command is a program with a bare environment: PATH and a HOME of its own.
func Command(tb testing.TB, path string, args ...string) *exec.Cmd {
	tb.Helper()
	cmd := exec.Command(path, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + tb.TempDir()}
	return cmd
}

// Start starts a program. It is killed with the test at the latest, and its
// last words are logged if the test has failed.
func Start(tb testing.TB, cmd *exec.Cmd) *Process {
	tb.Helper()
	p := &Process{Cmd: cmd, Done: make(chan struct{}), tb: tb}
	cmd.Stdout, cmd.Stderr = &p.Out, &p.Err
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL // if the test's own process dies
	if err := cmd.Start(); err != nil {
		tb.Fatalf("%v (make setup installs what the tests need)", err)
	}
	go func() {
		_ = cmd.Wait() // cmd.ProcessState says how it ended
		close(p.Done)
	}()
	tb.Cleanup(func() {
		p.Kill()
		if tb.Failed() {
			tb.Logf("%s printed (its end):\n%s%s", cmd.Path, Tail(p.Out.String()), Tail(p.Err.String()))
		}
	})
	return p
}

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.Done:
		return false
	default:
		return true
	}
}

// Signal sends a signal; a process that has ended gets none.
func (p *Process) Signal(sig syscall.Signal) {
	p.tb.Helper()
	if err := p.Cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.tb.Errorf("%s: %v: %v", p.Cmd.Path, sig, err)
	}
}

// Kill ends the process as a crash would.
func (p *Process) Kill() {
	p.tb.Helper()
	p.Signal(syscall.SIGKILL)
	<-p.Done
}

// stopWithin is how long a process may take to end after SIGTERM, when its jobs
// have ended.
const stopWithin = 30 * time.Second

// Stop ends the process by SIGTERM.
func (p *Process) Stop() {
	p.tb.Helper()
	p.Signal(syscall.SIGTERM)
	p.Ended()
}

// Ended waits for the end of a process that was told to stop. One that does not
// end prints its goroutines and fails the test.
func (p *Process) Ended() {
	p.tb.Helper()
	select {
	case <-p.Done:
		return
	case <-time.After(stopWithin):
	}
	p.tb.Errorf("%s did not end in %v; goroutines:", p.Cmd.Path, stopWithin)
	p.Signal(syscall.SIGQUIT)
	select {
	case <-p.Done:
	case <-time.After(2 * time.Second):
		p.Kill()
	}
}

// Says waits until the process has printed what the pattern matches, and returns
// the match with its groups.
func (p *Process) Says(within time.Duration, pattern *regexp.Regexp) (match []string) {
	p.tb.Helper()
	Eventually(p.tb, within, p.Cmd.Path+" says "+pattern.String(), func() error {
		ended := !p.Running()
		if match = pattern.FindStringSubmatch(p.Out.String() + p.Err.String()); match != nil {
			return nil
		}
		if ended {
			p.tb.Fatalf("%s has ended: %s%s", p.Cmd.Path, Tail(p.Out.String()), Tail(p.Err.String()))
		}
		return errors.New("not yet")
	})
	return match
}
