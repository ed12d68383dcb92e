package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"leeway/broker/config"
	"leeway/workers/backend"
	"leeway/workers/knee"
)

// The command measures a backend that the configuration knows, stores what it
// found beside the configuration, and a measured limit goes by that.
func TestKneeIsStoredAndTakenOver(t *testing.T) {
	base, _ := startLab(t, labCmd{
		Addr: "127.0.0.1:0", Control: "127.0.0.1:0", Model: "lab-paid", Profile: "fixed:10ms", Tail: "0", Slots: 1, Queue: 64,
	})
	dir := t.TempDir()
	file := filepath.Join(dir, "leeway.yaml")
	doc := fmt.Sprintf("knee_file: knees.json\npools: {paid: {limit: measured, backends: [{name: lab-paid, url: %q, model: lab-paid}]}, free: {limit: 0}}\n", base)
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(file, nil); err == nil {
		t.Error("a limit that was not measured is taken for one")
	}
	var out, errs bytes.Buffer
	if code := run([]string{"knee", "--config", file, "--backend", "lab-paid", "--to", "32", "--tokens", "8", "--repeats", "1", "--calls", "2"}, &out, &errs); code != 0 {
		t.Fatalf("exit %d: %s%s", code, &out, &errs)
	}
	http.DefaultClient.CloseIdleConnections()
	for _, want := range []string{"fingerprint", "knee: ", "knee: {limit: ", "written to " + filepath.Join(dir, "knees.json")} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
	cfg, err := config.Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	k := cfg.Pools.Paid.Backends[0].Knee
	if cfg.Pools.Paid.Limit != k.Limit || !cfg.Pools.Paid.MeasuredLimit || k.Fingerprint != cfg.Pools.Paid.Backends[0].Fingerprint() || k.Limit < 1 {
		t.Errorf("limit %d, knee %+v", cfg.Pools.Paid.Limit, k)
	}
}

func TestKneeRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "leeway.yaml")
	if err := os.WriteFile(file, []byte("pools: {paid: {backends: [{name: far, url: 'https://llm.example.com/v1', model: m}]}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args, says string
	}{
		{"", "say what to measure"},
		{"--config " + file, "say what to measure"},
		{"--url http://127.0.0.1:1/v1", "--model"},
		{"--url http://127.0.0.1:1/v1 --model m --backend b", "leave one out"},
		{"--config " + file + " --backend near", "not in"},
		{"--config " + file + " --backend far", "--remote"},
		{"--url http://10.0.0.1/v1 --model m", "--remote"},
		{"--url http://127.0.0.1:1/v1 --model m --to 1", "outside 2.."},
		{"--url http://127.0.0.1:1/v1 --model m --tokens 0", "--tokens"},
		{"--url http://127.0.0.1:1/v1 --model m --valid-days 0", "--valid-days"},
		{"--url http://127.0.0.1:1/v1 --model m", "first call"},
	} {
		var out, errs bytes.Buffer
		code := run(append([]string{"knee"}, strings.Fields(tt.args)...), &out, &errs)
		if code == 0 || !strings.Contains(errs.String(), tt.says) {
			t.Errorf("%s: exit %d: %s", tt.args, code, &errs)
		}
	}
}

// The report says of each load what it gained, and of a gain or a climb that is
// within the noise of the repeats that it is.
func TestKneeReport(t *testing.T) {
	var out bytes.Buffer
	report := &kneeReport{out: &out, repeated: true}
	b := &config.Backend{Name: "b", Protocol: "openai", Model: "m", URL: "http://127.0.0.1:1/v1"}
	report.header(b, &knee.Plan{To: 4, Repeats: 3, Calls: 8, Request: backend.Request{MaxOutputTokens: 64}})
	spread := func(low, median, high float64) knee.Spread { return knee.Spread{Low: low, Median: median, High: high} }
	for _, s := range []knee.Step{
		{Concurrent: 1, TokensPerS: spread(95, 100, 105), FirstByteP95MS: spread(190, 200, 210)},
		{Concurrent: 2, TokensPerS: spread(180, 190, 200), FirstByteP95MS: spread(205, 220, 230)},
		{Concurrent: 4, TokensPerS: spread(185, 192, 199), FirstByteP95MS: spread(450, 480, 500)},
	} {
		report.step(s)
	}
	report.result(&config.MeasuredKnee{FirstByteP95MS: 220, Knee: config.Knee{
		Limit: 2, MeasuredOn: "2026-11-30", ValidDays: 90, Fingerprint: "0123456789ab",
	}}, b)
	const want = `backend b: openai, model m, at http://127.0.0.1:1/v1, fingerprint 0feb81eb4faf
loads of [1 2 4] calls at once, each measured 3 times after a warm-up, in an open loop; answers of at most 64 tokens;
at most 256 calls, fewer once 2 loads do not stand. In brackets: least and greatest of the repeats.

at once  tokens/s                   a doubling     first byte p95 ms            a doubling
      1  100 (95-105)                              200 (190-210)
      2  190 (180-200)              +90 %          220 (205-230)                within noise
      4  192 (185-199)              within noise   480 (450-500)                x 2.18         beyond: p95 grows 2.2 times a doubling

knee: 2 calls at once (first byte p95 there: 220 ms), measured 2026-11-30, believed until 2027-02-28
in the configuration of b:
  knee: {limit: 2, measured_on: 2026-11-30, valid_days: 90, fingerprint: "0123456789ab"}
`
	if diff := cmp.Diff(want, trimmed(out.String())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
