//go:build server

package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"leeway/broker"
	"leeway/slackgate"
)

// nodeSaw is what the official client for Node saw; see testdata/node/client.mjs.
type nodeSaw struct {
	Content string `json:"content"`
	Pieces  int    `json:"pieces"`
	Finish  string `json:"finish"`
	Usage   struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
	} `json:"usage"`
	Name     string   `json:"name"`
	Status   int      `json:"status"`
	Code     string   `json:"code"`
	Models   []string `json:"models"`
	Requests []struct {
		AtMS        int64  `json:"at_ms"`
		Status      int    `json:"status"`
		RetryAfter  string `json:"retry_after"`
		Path        string `json:"path"`
		JobID       string `json:"job_id"`
		ShouldRetry string `json:"should_retry"`
	} `json:"requests"`
}

// nodeClient installs the official client in a folder of its own, at the
// version and with the checksum of its lock file.
func nodeClient(t *testing.T) (ask func(base, what string) *nodeSaw) {
	t.Helper()
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is not on PATH: this test runs the official OpenAI client for Node; make setup installs it", tool)
		}
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "node"))); err != nil {
		t.Fatal(err)
	}
	run := func(within time.Duration, name string, args ...string) []byte {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = dir
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s%s", name, args, err, out, stderr.Bytes())
		}
		return out
	}
	run(3*time.Minute, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	return func(base, what string) *nodeSaw {
		t.Helper()
		raw := run(time.Minute, "node", "client.mjs", base, what)
		var saw nodeSaw
		if err := json.Unmarshal(raw, &saw); err != nil {
			t.Fatalf("%s: %v in %s", what, err, raw)
		}
		return &saw
	}
}

// The official client for Node, unmodified: a completion, a stream, a 429 that
// is tried again after Retry-After and no sooner, one that is not tried again,
// and a stream that is left.
func TestOfficialNodeClient(t *testing.T) {
	t.Parallel()
	ask := nodeClient(t)
	s := quick()
	s.PaidTail, s.PaidP95 = 1000, 500
	s.FreeSlots = 0
	d := run(t, s)
	end := func(saw *nodeSaw) *broker.Job {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
		defer cancel()
		last := saw.Requests[len(saw.Requests)-1]
		v, err := d.client.Wait(ctx, last.JobID)
		if err != nil {
			t.Fatalf("job %q: %v", last.JobID, err)
		}
		return v
	}

	saw := ask(d.client.Base, "complete")
	v := end(saw)
	if saw.Content == "" || saw.Content != v.Answer || saw.Finish != "stop" || saw.Requests[0].Path != "paid" ||
		saw.Usage.Prompt != v.Usage.InputTokens || saw.Usage.Completion != v.Usage.OutputTokens || saw.Usage.Prompt == 0 {
		t.Errorf("completion %+v, job %+v with usage %+v", saw, v, v.Usage)
	}

	saw = ask(d.client.Base, "stream")
	v = end(saw)
	if saw.Content == "" || saw.Content != v.Answer || saw.Finish != "stop" || saw.Pieces < 5 || saw.Usage.Completion != v.Usage.OutputTokens {
		t.Errorf("stream %+v, job %+v", saw, v)
	}

	saw = ask(d.client.Base, "retry")
	if n := len(saw.Requests); n < 2 || saw.Requests[0].Status != 429 || saw.Requests[n-1].Status != 200 || saw.Content == "" {
		t.Errorf("with the gate full: %+v", saw)
	}
	for i, r := range saw.Requests[:len(saw.Requests)-1] {
		told, err := strconv.ParseInt(r.RetryAfter, 10, 64)
		if waited := saw.Requests[i+1].AtMS - r.AtMS; err != nil || waited < told*1000 {
			t.Errorf("request %d: told to wait %q s, waited %d ms", i, r.RetryAfter, waited)
		}
	}

	saw = ask(d.client.Base, "refused")
	if len(saw.Requests) != 1 || saw.Name != "RateLimitError" || saw.Status != 429 || saw.Code != "reject_deadline" || saw.Requests[0].ShouldRetry != "false" {
		t.Errorf("a deadline within the reserve: %+v", saw)
	}

	d.opens(slackgate.Paid)
	saw = ask(d.client.Base, "leave")
	if v := end(saw); v.Outcome != broker.OutcomeCancelled {
		t.Errorf("the job of a stream that was left: %+v", v)
	}

	if saw = ask(d.client.Base, "models"); !slices.Contains(saw.Models, "summary") || len(saw.Models) != 3 {
		t.Errorf("models %v", saw.Models)
	}
}
