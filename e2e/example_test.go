//go:build server

package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/rehearsal/redistest"
	"leeway/slackgate"
)

// example deploys a shipped example as it stands, save for the addresses.
func example(t *testing.T, name string, redis *redistest.Server, replace ...string) *stack {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "examples", name))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(string(raw), replace[i]) {
			t.Fatalf("%s no longer says %s", name, replace[i])
		}
	}
	d := &stack{t: t, redis: redis, labs: map[string]*backend{}, file: filepath.Join(t.TempDir(), name)}
	if err := os.WriteFile(d.file, []byte(strings.NewReplacer(replace...).Replace(string(raw))), 0o600); err != nil {
		t.Fatal(err)
	}
	return d
}

// anywhere are the variables by which a deployment moves a configuration to
// other addresses.
func anywhere(redis *redistest.Server) []string {
	return []string{
		"LEEWAY_ADDR=127.0.0.1:0", "LEEWAY_METRICS_ADDR=127.0.0.1:0", "LEEWAY_WORKER_METRICS_ADDR=127.0.0.1:0",
		"REDIS_URL=" + redis.URL(),
	}
}

// TestExampleLab runs examples/leeway.yaml with lab backends as its head says.
func TestExampleLab(t *testing.T) {
	t.Parallel()
	paid := startLab(t, "lab-paid", 1200, 0, 2)
	free := startLab(t, "lab-free", 4000, 0, 1)
	redis := redistest.Start(t, inMemory...)
	d := example(t, "leeway.yaml", redis, "http://127.0.0.1:8001/v1", paid.url, "http://127.0.0.1:8002/v1", free.url)
	d.labs["lab-paid"], d.labs["lab-free"] = paid, free
	d.env = anywhere(redis)
	d.startWorker()
	d.startAPI()
	d.opens(slackgate.Paid)
	stream := d.admit(client.Job{Text: documents(t)[0]})
	batch := d.admit(client.Job{Class: "nightly", Text: documents(t)[1]})
	d.settled(20 * time.Second)
	if stream.view.Path != slackgate.Paid || batch.view.Path != slackgate.Free {
		t.Errorf("paths: %s and %s", stream.view.Path, batch.view.Path)
	}
	for _, s := range []*submission{stream, batch} {
		if s.view.Outcome != broker.OutcomeUsable {
			t.Errorf("outcome %+v", s.view)
		}
		checkSummary(t, s)
	}
	d.audit(rules{})
}

// TestExampleOpenAI runs examples/openai.yaml with lab backends in the place of
// the services: only their addresses change. No key is ever printed.
func TestExampleOpenAI(t *testing.T) {
	t.Parallel()
	const key, other = "sk-e2e-first-secret", "e2e-second-secret"
	keyFile := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(keyFile, []byte(other+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	first := startLab(t, "gpt-5-mini", 100, 50, 8)
	second := startLab(t, "small-instruct", 100, 50, 8)
	redis := redistest.Start(t, inMemory...)
	d := example(t, "openai.yaml", redis,
		"https://api.openai.com/v1", first.url, "https://llm.example.com/v1", second.url, "http://127.0.0.1:8000/v1", second.url,
		"/run/secrets/second-source-key", keyFile)
	d.env = anywhere(redis)
	d.startAPI() // needs no key
	d.env = append(d.env, "OPENAI_API_KEY="+key)
	d.startWorker()
	d.opens(slackgate.Paid)
	first.fault("down", 0)
	s := d.admit(client.Job{Text: documents(t)[2]})
	if v := d.waitFor(s, 20*time.Second); v.Outcome != broker.OutcomeUsable || v.FirstRoute != "openai" || v.Backend != "second-source" {
		t.Errorf("with the first one down: %+v", v)
	}
	for _, r := range d.rows() {
		if r.Backend == "second-source" && r.CostMicro <= 0 {
			t.Errorf("a paid answer without a cost: %+v", r)
		}
	}
	for _, p := range []*process{d.api, d.workers[0]} {
		p.stop()
		if all := p.Out.String() + p.Err.String(); strings.Contains(all, key) || strings.Contains(all, other) {
			t.Errorf("%s printed a key", p.name)
		}
	}
}
