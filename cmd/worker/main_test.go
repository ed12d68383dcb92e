package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

const labBackends = "pools:\n" +
	"  paid: {limit: 1, backends: [{name: a, url: 'http://127.0.0.1:1/v1', model: m%s}]}\n" +
	"  free: {limit: 1, backends: [{name: b, url: 'http://127.0.0.1:1/v1', model: m}]}\n"

func backends(more string) string { return strings.Replace(labBackends, "%s", more, 1) }

func write(t *testing.T, doc string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "leeway.yaml")
	doc = "worker_metrics_listen: 127.0.0.1:0\nredis: {url: 'redis://127.0.0.1:1/0'}\n" + doc
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestConfigurationErrors: exit code 2 and a message that names what is wrong.
func TestConfigurationErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		doc     string
		args    []string
		environ []string
		want    string
	}{
		"unknown key":          {doc: "worker: {slots: 3}\n", want: "slots"},
		"out of range":         {doc: "worker: {poll_ms: 0}\n", want: "worker.poll_ms"},
		"too many slots":       {environ: []string{"LEEWAY_FREE_SLOTS=-1"}, want: "worker.free_slots"},
		"not a number":         {environ: []string{"LEEWAY_PAID_SLOTS=all"}, want: "LEEWAY_PAID_SLOTS"},
		"nothing to call":      {doc: "pools:\n  paid: {limit: 1}\n", want: "pools.paid.backends"},
		"nothing to do":        {doc: backends("") + "worker: {paid_slots: 0, free_slots: 0}\n", want: "slots"},
		"key variable not set": {doc: backends(", key_env: LEEWAY_TEST_NO_SUCH_KEY"), want: "LEEWAY_TEST_NO_SUCH_KEY"},
		"key file not there":   {doc: backends(", key_file: /nonexistent/key"), want: "/nonexistent/key"},
		"no such file":         {args: []string{"--config", "/nonexistent/leeway.yaml"}, want: "/nonexistent/leeway.yaml"},
		"unknown flag":         {args: []string{"--embedded"}, want: "--embedded"},
	} {
		t.Run(name, func(t *testing.T) {
			defer goleak.VerifyNone(t)
			args := tt.args
			if args == nil {
				args = []string{"--config", write(t, tt.doc)}
			}
			var out, errs bytes.Buffer
			if code := run(args, tt.environ, &out, &errs); code != 2 {
				t.Errorf("exit code %d, want 2", code)
			}
			if !strings.Contains(errs.String(), tt.want) || !strings.HasPrefix(errs.String(), "worker: ") {
				t.Errorf("stderr %q does not name %s", errs.String(), tt.want)
			}
		})
	}
}

// TestAddressTaken: an address that is taken is no configuration error.
func TestAddressTaken(t *testing.T) {
	defer goleak.VerifyNone(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file := write(t, backends(""))
	var out, errs bytes.Buffer
	if code := run([]string{"--config", file}, []string{"LEEWAY_WORKER_METRICS_ADDR=" + l.Addr().String()}, &out, &errs); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if !strings.Contains(errs.String(), l.Addr().String()) {
		t.Errorf("stderr %q does not name the address", errs.String())
	}
}
