package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"leeway/broker"
	"leeway/slackgate"
)

// fieldOf is the field that an error names.
func fieldOf(err error) string {
	if f, ok := errors.AsType[*broker.FieldError](err); ok {
		return f.Field
	}
	return ""
}

// Each file under testdata/bad is one mistake. Its first line, after "# ", is
// what the error must say.
func TestBadFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		doc, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(doc), "\n")
		want := strings.TrimPrefix(first, "# ")
		_, err = Load(file, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", file, err, want)
			continue
		}
		if !strings.Contains(err.Error(), file) && fieldOf(err) == "" {
			t.Errorf("%s: the error names neither file nor field: %v", file, err)
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error shows a password: %v", file, err)
		}
	}
}

func TestDefaultsAreValid(t *testing.T) {
	for name, doc := range map[string]string{
		"nothing": "", "blank lines": "\n\n", "comments": "# only\n# comments\n", "null": "null", "a document mark": "---\n", "an empty mapping": "{}",
	} {
		c, err := Parse([]byte(doc))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := Default()
		if err := want.Complete(); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(c, want) {
			t.Errorf("%s: %+v, want the defaults", name, c)
		}
	}
	c := parse(t, "")
	cl := c.Classes["summary"]
	same(t, "nothing said", map[string][2]any{
		"redis.timeout_ms":                  {c.Redis.TimeoutMS, int64(250)},
		"pools.paid.limit":                  {c.Pools.Paid.Limit, 2},
		"pools.paid.hold_p95_ms":            {c.Pools.Paid.HoldP95MS, int64(1200)},
		"pools.free.first_byte_p95_ms":      {c.Pools.Free.FirstByteP95MS, int64(4000)},
		"classes.summary.deadline_ms":       {cl.DeadlineMS, int64(15_000)},
		"classes.summary.reserve_ms":        {*cl.ReserveMS, int64(2000)},
		"classes.summary.max_deadline_ms":   {cl.MaxDeadlineMS, int64(24 * 3600 * 1000)},
		"classes.summary.max_output_tokens": {cl.MaxOutputTokens, 400},
		"classes.summary.prompt":            {cl.Prompt, DefaultPrompt},
		"gate.admit_free":                   {c.Gate.AdmitFree, true},
		"gate.admit_paid":                   {c.Gate.AdmitPaid, true},
		"gate.free_queue_age_cut_ms":        {c.Gate.FreeQueueAgeCutMS == nil, true},
		"the slots of a worker in paid":     {c.Slots(slackgate.Paid), 2},
		"the longest deadline":              {c.LongestDeadlineMS(), int64(24 * 3600 * 1000)},
	})
	// A section that says a part keeps the rest.
	c = parse(t, "redis: {timeout_ms: 100}\npools: {paid: {limit: 7}}\ngate: {policy: seed}")
	same(t, "a part said", map[string][2]any{
		"redis.timeout_ms":              {c.Redis.TimeoutMS, int64(100)},
		"redis.prefix":                  {c.Redis.Prefix, "leeway"},
		"pools.paid.first_byte_p95_ms":  {c.Pools.Paid.FirstByteP95MS, int64(1200)},
		"pools.free.limit":              {c.Pools.Free.Limit, 1},
		"gate.admit_free":               {c.Gate.AdmitFree, true},
		"gate.policy":                   {c.Gate.Policy, slackgate.Seed},
		"the slots of a worker in paid": {c.Slots(slackgate.Paid), 7},
	})
}

// same holds pairs of what is and what should be against each other, by name.
func same(t *testing.T, when string, pairs map[string][2]any) {
	t.Helper()
	for name, p := range pairs {
		if p[0] != p[1] {
			t.Errorf("%s: %s is %v, want %v", when, name, p[0], p[1])
		}
	}
}

const oneBackend = "pools: {paid: {backends: [{name: b, url: 'http://h/v1', model: m, %s}]}}"

// Every bound, on both sides.
func TestBounds(t *testing.T) {
	for _, tt := range []struct {
		field, doc string
		lo, hi     int64
	}{
		{"redis.timeout_ms", "redis: {timeout_ms: %d}", 10, 10_000},
		{"gate.reserve_ms", "gate: {reserve_ms: %d}", 0, MaxDeadlineMS},
		{"gate.free_queue_age_cut_ms", "gate: {free_queue_age_cut_ms: %d}", 0, -1},
		{"worker.poll_ms", "worker: {poll_ms: %d}", 1, 1000},
		{"worker.lease_ms", "worker: {lease_ms: %d}", 500, 60_000},
		{"worker.heartbeat_ms", "worker: {heartbeat_ms: %d}", 100, 10_000},
		{"worker.shutdown_grace_ms", "worker: {shutdown_grace_ms: %d}", 0, 24 * 3600 * 1000},
		{"worker.paid_slots", "worker: {paid_slots: %d}", 0, MaxSlots},
		{"worker.free_slots", "worker: {free_slots: %d}", 0, MaxSlots},
		{"limits.text_bytes", "limits: {text_bytes: %d}", 1, MaxTextBytesHard},
		{"limits.batch_lines", "limits: {batch_lines: %d}", 1, 10_000_000},
		{"limits.wait_ms", "limits: {wait_ms: %d}", 0, 3600 * 1000},
		{"keep.result_ms", "keep: {result_ms: %d}", 1000, 30 * 24 * 3600 * 1000},
		{"keep.ledger_rows", "keep: {ledger_rows: %d}", 1000, 100_000_000},
		{"pools.paid.limit", "pools: {paid: {limit: %d}}", 0, MaxSlots},
		{"pools.free.limit", "pools: {free: {limit: %d}}", 0, MaxSlots},
		{"pools.paid.first_byte_p95_ms", "pools: {paid: {first_byte_p95_ms: %d}}", 1, MaxDeadlineMS},
		{"pools.free.first_byte_p95_ms", "pools: {free: {first_byte_p95_ms: %d}}", 1, MaxDeadlineMS},
		{"pools.paid.hold_p95_ms", "pools: {paid: {first_byte_p95_ms: 1200, hold_p95_ms: %d}}", 1200, -1},
		{"pools.free.first_byte_cap_ms", "pools: {free: {first_byte_cap_ms: %d}}", 0, MaxDeadlineMS},
		{"classes.summary.deadline_ms", "classes: {summary: {deadline_ms: %d, max_deadline_ms: 60000}}", 1, 60_000},
		{"classes.summary.max_deadline_ms", "classes: {summary: {deadline_ms: 1, max_deadline_ms: %d}}", 1, MaxDeadlineMS},
		{"classes.summary.reserve_ms", "classes: {summary: {reserve_ms: %d}}", 0, MaxDeadlineMS},
		{"classes.summary.max_output_tokens", "classes: {summary: {max_output_tokens: %d}}", 1, 1_000_000},
		{"pools.paid.backends[0].first_byte_p95_ms", "pools: {paid: {first_byte_p95_ms: 604800000, hold_p95_ms: 604800000, backends: [{name: b, url: 'http://h/v1', model: m, first_byte_p95_ms: %d}]}}", 1, MaxDeadlineMS},
		{"pools.paid.first_byte_p95_ms", "pools: {paid: {first_byte_p95_ms: %d, hold_p95_ms: 5000, backends: [{name: b, url: 'http://h/v1', model: m, first_byte_p95_ms: 9000}, {name: c, url: 'http://h/v1', model: m, first_byte_p95_ms: 1200}]}}", 1200, -1},
		{"classes.summary.word_limit", "classes: {summary: {word_limit: %d}}", 1, 100_000},
		{"pools.paid.backends[0].knee.valid_days", fmt.Sprintf(oneBackend, "knee: {limit: 1, measured_on: 2026-11-30, valid_days: %d}"), 1, 3650},
		{"pools.paid.backends[0].stall_ms", fmt.Sprintf(oneBackend, "stall_ms: %d"), 100, 600_000},
		{"pools.paid.backends[0].limit", fmt.Sprintf(oneBackend, "limit: %d"), 1, MaxSlots},
		{"pools.paid.backends[0].price.input_micro_per_mtok", fmt.Sprintf(oneBackend, "price: {input_micro_per_mtok: %d}"), 0, MaxPriceMicroPerMTok},
		{"pools.paid.backends[0].options.reasoning_tokens", fmt.Sprintf(oneBackend, "options: {reasoning_tokens: %d}"), 0, MaxReasoningTokens},
		{"classes.summary.options.reasoning_tokens", "classes: {summary: {options: {reasoning_tokens: %d}}}", 0, MaxReasoningTokens},
		{"classes.summary.options.reasoning_budget", "classes: {summary: {options: {reasoning_budget: %d}}}", MinReasoningBudget, MaxReasoningTokens},
		{
			"pools.paid.backends[0].options.reasoning_budget",
			fmt.Sprintf(oneBackend, "protocol: anthropic, options: {reasoning_tokens: 4096, reasoning_budget: %d}"), MinReasoningBudget, 4096,
		},
		{"pools.paid.backends[0].price.output_micro_per_mtok", fmt.Sprintf(oneBackend, "price: {output_micro_per_mtok: %d}"), 0, MaxPriceMicroPerMTok},
	} {
		check := func(v int64, good bool) {
			t.Helper()
			_, err := Parse(fmt.Appendf(nil, tt.doc, v))
			if good != (err == nil) || !good && fieldOf(err) != tt.field {
				t.Errorf("%s = %d: %v", tt.field, v, err)
			}
		}
		check(tt.lo, true)
		if strings.HasSuffix(tt.field, "].limit") { // 0 stands for the pool's
			check(-1, false)
		} else {
			check(tt.lo-1, false)
		}
		if tt.hi >= 0 {
			check(tt.hi, true)
			check(tt.hi+1, false)
		}
	}
	for share, good := range map[string]bool{"0.001": true, "0.999": true, "1": false, "0": false, "0.0": false, "-0.1": false, ".nan": false, ".inf": false} {
		_, err := Parse([]byte("pools: {free: {first_byte_share: " + share + "}}"))
		if good != (err == nil) || !good && fieldOf(err) != "pools.free.first_byte_share" {
			t.Errorf("first_byte_share %s: %v", share, err)
		}
	}
	many := func(n int) string {
		b := "pools: {paid: {backends: ["
		for i := range n {
			b += fmt.Sprintf("{name: b%d, url: 'http://h/v1', model: m},", i)
		}
		return b + "]}}"
	}
	if _, err := Parse([]byte(many(MaxBackends))); err != nil {
		t.Error(err)
	}
	if _, err := Parse([]byte(many(MaxBackends + 1))); fieldOf(err) != "pools.paid.backends" {
		t.Error(err)
	}
	classes := func(n int) string {
		b := "classes: {summary: {},"
		for i := 1; i < n; i++ {
			b += fmt.Sprintf("c%d: {},", i)
		}
		return b + "}"
	}
	if _, err := Parse([]byte(classes(MaxClasses))); err != nil {
		t.Error(err)
	}
	if _, err := Parse([]byte(classes(MaxClasses + 1))); fieldOf(err) != "classes" {
		t.Error(err)
	}
	if _, err := Parse([]byte("listen: '" + strings.Repeat("x", MaxFileBytes) + "'")); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a file over the limit: %v", err)
	}
}

func TestBackendDefaults(t *testing.T) {
	c, err := Parse([]byte("pools: {free: {limit: 3, first_byte_p95_ms: 900, backends: [{name: b, url: 'https://h/v1', model: m}]}}"))
	if err != nil {
		t.Fatal(err)
	}
	b := c.Pools.Free.Backends[0]
	want := Backend{
		Name: "b", Protocol: "openai", URL: "https://h/v1", Model: "m", FirstByteP95MS: 900, Limit: 3, StallMS: 10_000,
		Options: BackendOptions{LimitField: "max_tokens"},
		Price:   Price{Currency: "USD", Version: "1"},
	}
	if !reflect.DeepEqual(b, want) {
		t.Errorf("%+v, want %+v", b, want)
	}
}

// A lab's switch is for lab backends alone: loopback, and no key.
func TestLabSwitch(t *testing.T) {
	const doc = "lab: {recheck_off: %s}\npools: {paid: {backends: [{name: b, url: '%s', model: m%s}]}}"
	for _, tt := range []struct {
		off, url, more string
		good           bool
	}{
		{"true", "http://127.0.0.1:8001/v1", "", true},
		{"true", "http://[::1]:8001/v1", "", true},
		{"true", "http://localhost:8001/v1", "", true},
		{"true", "http://paid.localhost/v1", "", true},
		{"true", "http://paid.localhost.example.com/v1", "", false},
		{"true", "http://notlocalhost/v1", "", false},
		{"true", "http://10.0.0.1/v1", "", false},
		{"true", "https://api.openai.com/v1", "", false},
		{"true", "http://127.0.0.1:8001/v1", ", key_env: K", false},
		{"true", "http://127.0.0.1:8001/v1", ", key_file: /k", false},
		{"false", "https://api.openai.com/v1", ", key_env: K", true},
	} {
		c, err := Parse(fmt.Appendf(nil, doc, tt.off, tt.url, tt.more))
		if tt.good != (err == nil) || !tt.good && fieldOf(err) != "lab.recheck_off" {
			t.Errorf("%s with %s%s: %v", tt.off, tt.url, tt.more, err)
		}
		if err == nil && c.Lab.RecheckOff != (tt.off == "true") {
			t.Errorf("%s is read as %v", tt.off, c.Lab.RecheckOff)
		}
	}
	on, off := Default(), Default()
	off.Lab.RecheckOff = true
	if on.Fingerprint() == off.Fingerprint() {
		t.Error("processes that differ in it show the same fingerprint")
	}
}

func TestEnvironmentOverrides(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("listen: '127.0.0.2:1'\ngate: {policy: predictive, admit_free: true, reserve_ms: 1}\npools: {paid: {first_byte_p95_ms: 5}}\nclasses: {summary: {deadline_ms: 7000, reserve_ms: 1}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(file, []string{
		"DEADLINE_MS=9000", "RESERVE_MS=2500", "PAID_P95_FIRST_BYTE_MS=1300", "FREE_P95_FIRST_BYTE_MS=4100", "FREE_QUEUE_AGE_CUT_MS=0",
		"ADMIT_FREE=false", "ADMIT_PAID=0", "FALLBACK_ENABLED=false", "GATE_POLICY=seed", "REDIS_URL=redis://r:1/2",
		"LEEWAY_ADDR=127.0.0.1:81", "LEEWAY_METRICS_ADDR=127.0.0.1:82", "LEEWAY_WORKER_METRICS_ADDR=127.0.0.1:83",
		"LEEWAY_PAID_SLOTS=0", "LEEWAY_FREE_SLOTS=9", "UNRELATED=x", "not a variable",
	})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "the environment", map[string][2]any{
		"DEADLINE_MS":                {c.Classes["summary"].DeadlineMS, int64(9000)},
		"classes.summary.reserve_ms": {*c.Classes["summary"].ReserveMS, int64(1)},
		"RESERVE_MS":                 {c.Gate.ReserveMS, int64(2500)},
		"PAID_P95_FIRST_BYTE_MS":     {c.Pools.Paid.FirstByteP95MS, int64(1300)},
		"FREE_P95_FIRST_BYTE_MS":     {c.Pools.Free.FirstByteP95MS, int64(4100)},
		"FREE_QUEUE_AGE_CUT_MS":      {*c.Gate.FreeQueueAgeCutMS, int64(0)},
		"ADMIT_FREE":                 {c.Gate.AdmitFree, false},
		"ADMIT_PAID":                 {c.Gate.AdmitPaid, false},
		"FALLBACK_ENABLED":           {c.Gate.FallbackEnabled, false},
		"GATE_POLICY":                {c.Gate.Policy, slackgate.Seed},
		"REDIS_URL":                  {c.Redis.URL, "redis://r:1/2"},
		"LEEWAY_ADDR":                {c.Listen, "127.0.0.1:81"},
		"LEEWAY_METRICS_ADDR":        {c.MetricsListen, "127.0.0.1:82"},
		"LEEWAY_WORKER_METRICS_ADDR": {c.WorkerMetricsListen, "127.0.0.1:83"},
		"LEEWAY_PAID_SLOTS":          {c.Slots(slackgate.Paid), 0},
		"LEEWAY_FREE_SLOTS":          {c.Slots(slackgate.Free), 9},
	})
	// A variable that is set and empty, as compose files leave them, says nothing.
	if c, err = Load(file, []string{"DEADLINE_MS=", "ADMIT_FREE=", "GATE_POLICY="}); err != nil || c.Classes["summary"].DeadlineMS != 7000 || !c.Gate.AdmitFree {
		t.Errorf("empty variables: %+v, %v", c, err)
	}
}

func TestBadEnvironment(t *testing.T) {
	for _, v := range []string{
		"DEADLINE_MS=0", "DEADLINE_MS=-1", "DEADLINE_MS=soon", "DEADLINE_MS=1e3", "DEADLINE_MS=9223372036854775808", "RESERVE_MS=x", "PAID_P95_FIRST_BYTE_MS=1.5",
		"FREE_P95_FIRST_BYTE_MS=x", "FREE_QUEUE_AGE_CUT_MS=x", "ADMIT_FREE=maybe", "ADMIT_PAID=2", "FALLBACK_ENABLED=x", "GATE_POLICY=open", "LEEWAY_PAID_SLOTS=x", "LEEWAY_FREE_SLOTS=x",
	} {
		name, _, _ := strings.Cut(v, "=")
		if _, err := Load("", []string{v}); fieldOf(err) != name {
			t.Errorf("%s: %v", v, err)
		}
	}
	// In range for its type, out of range for its field.
	for v, field := range map[string]string{
		"RESERVE_MS=-1": "gate.reserve_ms", "FREE_QUEUE_AGE_CUT_MS=-1": "gate.free_queue_age_cut_ms", "PAID_P95_FIRST_BYTE_MS=0": "pools.paid.first_byte_p95_ms",
		"LEEWAY_PAID_SLOTS=-1": "worker.paid_slots", "LEEWAY_ADDR=nowhere": "listen", "DEADLINE_MS=86400001": "classes.summary.deadline_ms",
	} {
		if _, err := Load("", []string{v}); fieldOf(err) != field {
			t.Errorf("%s: %v", v, err)
		}
	}
	// It mends no configuration that lacks its own default class.
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("classes: {other: {}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file, []string{"DEADLINE_MS=5000"}); fieldOf(err) != "default_class" {
		t.Error(err)
	}
}

func TestKeys(t *testing.T) {
	t.Setenv("LEEWAY_TEST_KEY", "from env")
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(" from file \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		b    Backend
		want string
		bad  string
	}{
		{Backend{Name: "b"}, "", ""},
		{Backend{Name: "b", KeyEnv: "LEEWAY_TEST_KEY"}, "from env", ""},
		{Backend{Name: "b", KeyFile: file}, "from file", ""},
		{Backend{Name: "b", KeyEnv: "LEEWAY_TEST_NO_KEY"}, "", "LEEWAY_TEST_NO_KEY"},
		{Backend{Name: "b", KeyFile: file + ".none"}, "", "key_file"},
	} {
		got, err := tt.b.Key()
		if got != tt.want || (err == nil) != (tt.bad == "") || err != nil && !strings.Contains(err.Error(), tt.bad) {
			t.Errorf("%+v: %q, %v", tt.b, got, err)
		}
	}
}

func TestSmallQuestions(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:1": true, "localhost:1": true, "[::1]:1": true, "0.0.0.0:1": false, ":1": false, "10.0.0.1:1": false, "nonsense": false,
	} {
		if Loopback(addr) != want {
			t.Errorf("Loopback(%q) is %v", addr, !want)
		}
	}
	for p, want := range map[Preference][2]slackgate.Path{
		PaidFirst: {slackgate.Paid, slackgate.Free}, FreeFirst: {slackgate.Free, slackgate.Paid}, PaidOnly: {slackgate.Paid}, FreeOnly: {slackgate.Free},
	} {
		if got, ok := p.Paths(); !ok || got != want {
			t.Errorf("%s: %v, %v", p, got, ok)
		}
	}
	c, err := Parse([]byte("pools: {paid: {limit: 0}}"))
	if err != nil || !c.FreeOnlySetup() || Default().FreeOnlySetup() {
		t.Errorf("%v", err)
	}
	if c.Pool(slackgate.Reject).Limit != 0 {
		t.Error("path reject has a pool")
	}
	if _, err := Load("/nonexistent/leeway.yaml", nil); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// FuzzParse: any document is a valid configuration or an error; the accepted
// ones are complete and stay so.
func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/bad/*.yaml")
	for _, file := range files {
		doc, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(doc)
	}
	f.Add([]byte("pools: {paid: {backends: [{name: b, url: 'http://h/v1', model: m, options: {limit_field: max_completion_tokens, temperature: 0.5, stop: [a], body: {x: {y: [1, 2.5]}}}}]}}\n" +
		"classes: {summary: {options: {reasoning_effort: low, reasoning_tokens: 100, seed: 1}}}\n"))
	f.Add([]byte("classes: {summary: {prefer: free-first, success: first_byte}, nightly: {deadline_ms: 600000}}\ngate: {policy: seed}\n"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		c, err := Parse(doc)
		if err != nil {
			return
		}
		if c.Pools.Paid.Limit+c.Pools.Free.Limit == 0 || c.Redis.TimeoutMS < 10 || c.Classes[c.DefaultClass].DeadlineMS < 1 || c.Classes[c.DefaultClass].ReserveMS == nil {
			t.Fatalf("accepted %+v", c)
		}
		if err := c.Complete(); err != nil {
			t.Fatalf("complete once, but not twice: %v", err)
		}
	})
}
