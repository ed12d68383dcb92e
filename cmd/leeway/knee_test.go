package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"leeway/broker/config"
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
