//go:build server

package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// eventually polls until cond returns nil and fails the test if it does not
// within the time given. It is the only place of this package that sleeps.
func eventually(t *testing.T, within time.Duration, what string, cond func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, within, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// capture collects what a process prints.
type capture struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.Write(p)
}

func (c *capture) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.String()
}

// process is one running binary. It is stopped with the test: by SIGTERM, and
// it must then exit 0, say nothing on stderr and have logged no error.
type process struct {
	t        *testing.T
	name     string
	cmd      *exec.Cmd
	out, err capture
	done     chan struct{}
	killed   atomic.Bool
	judged   bool
	// outage is set by tests that take Redis away: what the queue says of it
	// is no failure.
	outage bool
	// plain is set for a process whose stdout is not JSON lines.
	plain bool
}

// start runs a binary under test. env is added to a bare environment.
func start(t *testing.T, name string, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, done: make(chan struct{})}
	p.cmd = exec.Command(filepath.Join(bin, name), args...)
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	// Nothing outlives the test, whatever happens to it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // judge reads the state
		close(p.done)
	}()
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("%s printed (its end):\n%s%s", p.name, tail(p.out.String()), tail(p.err.String()))
		}
	})
	return p
}

func tail(s string) string {
	const most = 6000
	if len(s) > most {
		return "..." + s[len(s)-most:]
	}
	return s
}

// stopWithin is how long a process may take to end after SIGTERM, when its
// jobs have ended.
const stopWithin = 30 * time.Second

// stop ends the process by SIGTERM and checks how it ended.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	p.ended(stopWithin)
}

// ended waits for the process's end and checks it.
func (p *process) ended(within time.Duration) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(within):
		p.t.Errorf("%s did not end in %v; goroutines:", p.name, within)
		p.signal(syscall.SIGQUIT)
		select {
		case <-p.done:
		case <-time.After(2 * time.Second):
			p.kill()
		}
	}
	p.judge()
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("%s: %v: %v", p.name, sig, err)
	}
}

// kill ends the process as a crash would.
func (p *process) kill() {
	p.t.Helper()
	p.killed.Store(true)
	p.signal(syscall.SIGKILL)
	<-p.done
}

// judge checks exit code, stderr and log of an ended process, once.
func (p *process) judge() {
	p.t.Helper()
	if p.judged {
		return
	}
	p.judged = true
	if code := p.cmd.ProcessState.ExitCode(); code != 0 && !p.killed.Load() {
		p.t.Errorf("%s ended with %v", p.name, p.cmd.ProcessState)
	}
	if s := p.err.String(); s != "" {
		p.t.Errorf("%s said on stderr:\n%s", p.name, tail(s))
	}
	if p.plain {
		return
	}
	for _, l := range p.lines() {
		if l["level"] == "ERROR" && (!p.outage || l["msg"] != "asynq") {
			p.t.Errorf("%s logged an error: %v", p.name, l)
		}
	}
}

// lines are the process's log so far: whole lines, each a JSON object. A line
// that is none fails the test.
func (p *process) lines() []map[string]any {
	p.t.Helper()
	text := p.out.String()
	text = text[:strings.LastIndexByte(text, '\n')+1]
	var out []map[string]any
	for line := range strings.Lines(text) {
		var l map[string]any
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			p.t.Errorf("%s printed a line that is not JSON: %q", p.name, line)
			continue
		}
		out = append(out, l)
	}
	return out
}

// field waits for a log line with the message and returns one of its fields.
func (p *process) field(msg, key string) string {
	p.t.Helper()
	var v string
	eventually(p.t, 20*time.Second, p.name+" logs "+msg, func() error {
		for _, l := range p.lines() {
			if s, ok := l[key].(string); ok && l["msg"] == msg {
				v = s
				return nil
			}
		}
		if !p.running() {
			p.t.Fatalf("%s has ended: %s%s", p.name, tail(p.out.String()), tail(p.err.String()))
		}
		return errors.New("no such line")
	})
	return v
}
