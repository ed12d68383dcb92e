package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// measuredMS is what a test measured and another run will not.
var measuredMS = regexp.MustCompile(`\d+ ms`)

// The command calls each backend once, as a worker would, and says what it
// answered, what that cost and which option to set.
func TestBackendsTest(t *testing.T) {
	base, _ := startLab(t, labCmd{
		Addr: "127.0.0.1:0", Control: "127.0.0.1:0", Model: "lab-paid", Profile: "fixed:1ms", Tail: "0", Queue: 64,
	})
	host := strings.TrimSuffix(strings.TrimPrefix(base, "http://"), "/v1")
	file := filepath.Join(t.TempDir(), "leeway.yaml")
	doc := strings.NewReplacer("BASE", base).Replace(`
pools:
  paid:
    limit: measured
    backends:
      - {name: well, url: BASE, model: lab-paid, price: {input_micro_per_mtok: 1000000, output_micro_per_mtok: 2000000, call_micro: 5}}
      - {name: limit, url: BASE, model: fault-no-max-tokens}
      - {name: mended, url: BASE, model: fault-no-max-tokens, options: {limit_field: max_completion_tokens}}
      - {name: usage, url: BASE, model: fault-no-stream-options.mistral}
      - {name: thinks, url: BASE, model: fault-reasoning-only, price: {output_micro_per_mtok: 1000000, currency: EUR}}
      - {name: keyless, url: BASE, model: lab-paid, key_env: LEEWAY_TEST_NO_KEY}
  free:
    backends: [{name: down, url: BASE, model: fault-down}]
classes: {summary: {}, hard: {options: {reasoning_tokens: 9}}}
`)
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if code := run([]string{"backends", "test", "--config", file}, &out, &errs); code != 1 || errs.Len() > 0 {
		t.Errorf("exit %d: %s", code, &errs)
	}
	want := strings.ReplaceAll(`paid well: openai, model lab-paid, at HOST
  answered "Reply with the word OK." (stop)
  first byte after N ms, over after N ms; tokens 5 in, 5 out, of them 0 reasoning (reported); cost 20 micro-USD
paid limit: openai, model fault-no-max-tokens, at HOST
  no answer: "backend limit: unsupported (HTTP 400): Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
  advice: set options.limit_field: max_completion_tokens
  no first byte, over after N ms; tokens 0 in, 0 out, of them 0 reasoning (unbilled); cost 0 micro-USD
paid mended: openai, model fault-no-max-tokens, at HOST
  answered "Reply with the word OK." (stop)
  first byte after N ms, over after N ms; tokens 5 in, 5 out, of them 0 reasoning (reported); cost 0 micro-USD
paid usage: openai, model fault-no-stream-options.mistral, at HOST
  no answer: "backend usage: unsupported (HTTP 422): Extra inputs are not permitted"
  advice: set options.stream_usage: false
  no first byte, over after N ms; tokens 0 in, 0 out, of them 0 reasoning (unbilled); cost 0 micro-USD
paid thinks: openai, model fault-reasoning-only, at HOST
  no answer: "backend thinks: empty (HTTP 200): reasoning used up the output limit"
  advice: raise options.reasoning_tokens, or lower options.reasoning_effort
  no first byte, over after N ms; tokens 5 in, 32 out, of them 32 reasoning (reported); cost 32 micro-EUR
paid keyless: openai, model lab-paid, at HOST
  no answer: "backend keyless.key_env: LEEWAY_TEST_NO_KEY is not set"
  no first byte, over after N ms; tokens 0 in, 0 out, of them 0 reasoning (-); cost 0 micro-USD
free down: openai, model fault-down, at HOST
  no answer: "backend down: upstream_error (HTTP 503): The service is unavailable."
  no first byte, over after N ms; tokens 0 in, 0 out, of them 0 reasoning (unbilled); cost 0 micro-USD
2 of 7 answered; in all 32 micro-EUR, 20 micro-USD, booked nowhere
`, "HOST", host)
	if diff := cmp.Diff(want, measuredMS.ReplaceAllString(out.String(), "N ms")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	out.Reset()
	if code := run([]string{"backends", "test", "--config", file, "--backend", "well", "--class", "hard", "--json"}, &out, &errs); code != 0 {
		t.Errorf("exit %d: %s", code, &errs)
	}
	var one struct {
		Backend  string `json:"backend"`
		Path     string `json:"path"`
		Answered bool   `json:"answered"`
		Cost     int64  `json:"cost_micro"`
		First    int64  `json:"first_byte_ms"`
	}
	if err := json.Unmarshal(out.Bytes(), &one); err != nil || one.Backend != "well" || one.Path != "paid" || !one.Answered || one.Cost != 20 || one.First < 0 {
		t.Errorf("%s: %v", &out, err)
	}
}

func TestBackendsTestRefuses(t *testing.T) {
	dir := t.TempDir()
	file, none := filepath.Join(dir, "leeway.yaml"), filepath.Join(dir, "none.yaml")
	for name, doc := range map[string]string{file: "pools: {paid: {backends: [{name: b, url: 'http://127.0.0.1:1/v1', model: m}]}}", none: "{}"} {
		if err := os.WriteFile(name, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ args, says string }{
		{"", "--config"},
		{"--config " + none, "has no backends"},
		{"--config " + file + " --backend c", `--backend: "c"`},
		{"--config " + file + " --class c", `--class: "c"`},
		{"--config " + file + " --timeout 0s", "--timeout"},
	} {
		var out, errs bytes.Buffer
		code := run(append([]string{"backends", "test"}, strings.Fields(tt.args)...), &out, &errs)
		if code == 0 || !strings.Contains(errs.String(), tt.says) {
			t.Errorf("%s: exit %d: %s", tt.args, code, fmt.Sprint(&out, &errs))
		}
	}
}
