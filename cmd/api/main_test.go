package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"leeway/broker/config"
)

func write(t *testing.T, doc string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "leeway.yaml")
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestConfigurationErrors: exit code 2, nothing on stdout, and a message that
// names what is wrong and shows no password.
func TestConfigurationErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		doc     string
		args    []string
		environ []string
		want    string
	}{
		"unknown key":          {doc: "pools:\n  paid:\n    limitt: 3\n", want: "limitt"},
		"wrong type":           {doc: "pools:\n  paid:\n    limit: many\n", want: "pools.paid.limit"},
		"out of range":         {doc: "worker:\n  lease_ms: 1\n", want: "worker.lease_ms"},
		"class out of range":   {doc: "classes:\n  summary: {deadline_ms: -1}\n", want: "classes.summary.deadline_ms"},
		"unknown class":        {doc: "default_class: nobody\nclasses:\n  summary: {}\n", want: "default_class"},
		"backend without name": {doc: "pools:\n  paid:\n    backends: [{url: 'http://h/v1', model: m}]\n", want: "pools.paid.backends[0].name"},
		"credentials in a URL": {doc: "pools:\n  paid:\n    backends: [{name: b, url: 'http://u:hunter2@h/v1', model: m}]\n", want: "pools.paid.backends[0].url"},
		"no pools":             {doc: "pools:\n  paid: {limit: 0}\n  free: {limit: 0}\n", want: "pools"},
		"bad policy":           {doc: "gate: {policy: hopeful}\n", want: "policy"},
		"bad environment":      {environ: []string{"FREE_QUEUE_AGE_CUT_MS=soon"}, want: "FREE_QUEUE_AGE_CUT_MS"},
		"bad policy variable":  {environ: []string{"GATE_POLICY=hopeful"}, want: "GATE_POLICY"},
		"bad deadline":         {environ: []string{"DEADLINE_MS=0"}, want: "DEADLINE_MS"},
		"redis.url of no kind": {doc: "redis: {url: 'http://user:hunter2@h:1/'}\n", want: "redis.url"},
		"no such file":         {args: []string{"--config", "/nonexistent/leeway.yaml"}, want: "/nonexistent/leeway.yaml"},
		"unknown flag":         {args: []string{"--embed"}, want: "--embed"},
		"unknown log level":    {args: []string{"--log-level", "loud"}, want: "log-level"},
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
			if !strings.Contains(errs.String(), tt.want) || !strings.HasPrefix(errs.String(), "api: ") {
				t.Errorf("stderr %q does not name %s", errs.String(), tt.want)
			}
			if strings.Contains(errs.String()+out.String(), "hunter2") {
				t.Errorf("a password was shown: %q %q", errs.String(), out.String())
			}
			if out.Len() > 0 {
				t.Errorf("stdout %q", out.String())
			}
		})
	}
}

// TestAddressTaken: an address that is taken is no configuration error, and
// ends the process with what it had started.
func TestAddressTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, key := range []string{"listen", "metrics_listen"} {
		t.Run(key, func(t *testing.T) {
			defer goleak.VerifyNone(t)
			other := map[string]string{"listen": "metrics_listen", "metrics_listen": "listen"}[key]
			file := write(t, key+": "+l.Addr().String()+"\n"+other+": 127.0.0.1:0\nredis: {url: 'redis://127.0.0.1:1/0'}\n")
			var out, errs bytes.Buffer
			if code := run([]string{"--config", file}, nil, &out, &errs); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			if !strings.Contains(errs.String(), l.Addr().String()) {
				t.Errorf("stderr %q does not name the address", errs.String())
			}
		})
	}
}

// TestExamples: the shipped examples are read without a complaint and say what
// their comments say.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("examples: %v %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			c, err := config.Load(file, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(c.Pools.Paid.Backends) == 0 || len(c.Pools.Free.Backends) == 0 || c.FreeOnlySetup() {
				t.Error("an example leaves a pool without a backend")
			}
		})
	}
	lab, err := config.Load("../../examples/leeway.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	def := config.Default()
	if err := def.Complete(); err != nil {
		t.Fatal(err)
	}
	if lab.Listen != def.Listen || lab.Redis != def.Redis || lab.Pools.Paid.FirstByteP95MS != def.Pools.Paid.FirstByteP95MS ||
		lab.Pools.Free.Limit != def.Pools.Free.Limit || lab.Classes["summary"].DeadlineMS != def.Classes["summary"].DeadlineMS {
		t.Error("examples/leeway.yaml does not show the defaults")
	}
}
