package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const articleSnapshot = `{"paid_inflight": 2, "paid_limit": 2, "free_queue_age_ms": 8000, "free_inflight": 1, "enqueued_at_ms": 1700000000000`

const articleLine = `{"decision": "reject_no_slack", "slack_ms": 9000, "free_need_ms": 12000}` + "\n"

func TestGateCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "snapshot.json")
	if err := os.WriteFile(file, []byte(articleSnapshot+`, "now_ms": 1700000004000}`), 0o600); err != nil {
		t.Fatal(err)
	}
	clock := func() time.Time { return time.UnixMilli(1700000004000) }
	for name, c := range map[string]gateCmd{
		"file":                   {Snapshot: file},
		"standard input":         {Snapshot: "-", stdin: strings.NewReader(articleSnapshot + `, "now_ms": 1700000004000}`)},
		"now taken from a clock": {Snapshot: "-", stdin: strings.NewReader(articleSnapshot + `}`), now: clock},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := c.Run(context.Background(), &out); err != nil {
				t.Fatal(err)
			}
			if out.String() != articleLine {
				t.Fatalf("got %q", out.String())
			}
		})
	}
}

func TestGateCommandRefuses(t *testing.T) {
	for name, c := range map[string]gateCmd{
		"no file":       {Snapshot: filepath.Join(t.TempDir(), "missing")},
		"unknown field": {Snapshot: "-", stdin: strings.NewReader(articleSnapshot + `, "more": 1}`)},
		"endless":       {Snapshot: "-", stdin: endless{}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := c.Run(context.Background(), &out); err == nil || out.Len() > 0 {
				t.Fatalf("error %v, output %q", err, out.String())
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
