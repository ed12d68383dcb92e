package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const articleSnapshot = `{"paid_inflight": 2, "paid_limit": 2, "free_queue_age_ms": 8000, "free_inflight": 1, "enqueued_at_ms": 1700000000000`

const articleLine = `{"decision": "reject_no_slack", "slack_ms": 9000, "free_need_ms": 12000}` + "\n"

// stdin makes a text the standard input of the test.
func stdin(t *testing.T, text string) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "stdin"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	was := os.Stdin
	os.Stdin = f
	t.Cleanup(func() {
		os.Stdin = was
		f.Close()
	})
}

func TestGateCommand(t *testing.T) {
	const snapshot = articleSnapshot + `, "now_ms": 1700000004000}`
	file := filepath.Join(t.TempDir(), "snapshot.json")
	if err := os.WriteFile(file, []byte(snapshot), 0o600); err != nil {
		t.Fatal(err)
	}
	stdin(t, snapshot)
	for name, arg := range map[string]string{"file": file, "standard input": "-"} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if exit := run([]string{"gate", "--snapshot", arg}, &out, &errs); exit != 0 || out.String() != articleLine {
				t.Fatalf("exit %d, got %q%s", exit, &out, &errs)
			}
		})
	}
}

func TestGateTakesNowFromTheClock(t *testing.T) {
	var out bytes.Buffer
	if err := decide(&out, strings.NewReader(articleSnapshot+`}`), time.UnixMilli(1700000004000)); err != nil {
		t.Fatal(err)
	}
	if out.String() != articleLine {
		t.Fatalf("got %q", &out)
	}
}

func TestGateCommandRefuses(t *testing.T) {
	var out, errs bytes.Buffer
	if exit := run([]string{"gate", "--snapshot", filepath.Join(t.TempDir(), "missing")}, &out, &errs); exit != 1 || out.Len() > 0 {
		t.Errorf("no file: exit %d, output %q", exit, &out)
	}
	for name, in := range map[string]io.Reader{
		"an unknown field": strings.NewReader(articleSnapshot + `, "more": 1}`),
		"an endless input": endless{},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := decide(&out, in, time.Now()); err == nil || out.Len() > 0 {
				t.Fatalf("error %v, output %q", err, &out)
			}
		})
	}
}

// endless is a reader that never stops: the command must.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}
