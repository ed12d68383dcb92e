//go:build server

package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"leeway/rehearsal/proctest"
)

// process is one running binary of the product. It is stopped with the test: by
// SIGTERM, and it must then exit 0, say nothing on stderr and have logged no
// error.
type process struct {
	*proctest.Process

	t      *testing.T
	name   string
	killed atomic.Bool
	judged bool
	// outage is set by tests that take Redis away: what the queue says of it
	// is no failure.
	outage bool
	// plain is set for a process whose stdout is not JSON lines.
	plain bool

	mu     sync.Mutex // guards what follows
	parsed int        // how much of the output is in log
	log    []map[string]any
}

// start runs a binary under test. env is added to a bare environment.
func start(t *testing.T, name string, env []string, args ...string) *process {
	t.Helper()
	cmd := proctest.Command(t, filepath.Join(bin, name), args...)
	cmd.Env = append(cmd.Env, env...)
	p := &process{Process: proctest.Start(t, cmd), t: t, name: name}
	t.Cleanup(p.stop)
	return p
}

// stop ends the process by SIGTERM and checks how it ended.
func (p *process) stop() {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	p.ended()
}

// ended waits for the process's end and checks it.
func (p *process) ended() {
	p.t.Helper()
	p.Ended()
	p.judge()
}

// kill ends the process as a crash would.
func (p *process) kill() {
	p.t.Helper()
	p.killed.Store(true)
	p.Kill()
}

// judge checks exit code, stderr and log of an ended process, once.
func (p *process) judge() {
	p.t.Helper()
	if p.judged {
		return
	}
	p.judged = true
	if code := p.Cmd.ProcessState.ExitCode(); code != 0 && !p.killed.Load() {
		p.t.Errorf("%s ended with %v", p.name, p.Cmd.ProcessState)
	}
	if s := p.Err.String(); s != "" {
		p.t.Errorf("%s said on stderr:\n%s", p.name, proctest.Tail(s))
	}
	if p.plain {
		return
	}
	for _, l := range p.lines() {
		msg, _ := l["msg"].(string)
		if l["level"] == "ERROR" && (!p.outage || (msg != "asynq" && !strings.HasPrefix(msg, "not booked") && msg != "verdicts of a batch are not on record")) {
			p.t.Errorf("%s logged an error: %v", p.name, l)
		}
	}
}

// lines are the process's log so far: whole lines, each a JSON object, not to be
// changed. A line that is none fails the test.
func (p *process) lines() []map[string]any {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	text := p.Out.From(p.parsed)
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	p.parsed += len(text)
	for line := range bytes.Lines(text) {
		var l map[string]any
		if err := json.Unmarshal(line, &l); err != nil {
			p.t.Errorf("%s printed a line that is not JSON: %q", p.name, line)
			continue
		}
		p.log = append(p.log, l)
	}
	return p.log
}

// field waits for a log line with the message and returns one of its fields.
func (p *process) field(msg, key string) string {
	p.t.Helper()
	var v string
	proctest.Eventually(p.t, 20*time.Second, p.name+" logs "+msg, func() error {
		ended := !p.Running()
		for _, l := range p.lines() {
			if s, ok := l[key].(string); ok && l["msg"] == msg {
				v = s
				return nil
			}
		}
		if ended {
			p.t.Fatalf("%s has ended: %s%s", p.name, proctest.Tail(p.Out.String()), proctest.Tail(p.Err.String()))
		}
		return errors.New("no such line")
	})
	return v
}
