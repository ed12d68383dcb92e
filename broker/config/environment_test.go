package config

import (
	"slices"
	"testing"

	"github.com/caarlos0/env/v11"

	"leeway/slackgate"
)

// The variables are a promise to whoever deploys.
func TestEveryVariableSetsItsField(t *testing.T) {
	tests := []struct {
		variable, value string
		field           func(c *Config) any
		want            any
	}{
		{"LEEWAY_ADDR", "127.0.0.1:81", func(c *Config) any { return c.Listen }, "127.0.0.1:81"},
		{"LEEWAY_METRICS_ADDR", "127.0.0.1:82", func(c *Config) any { return c.MetricsListen }, "127.0.0.1:82"},
		{"LEEWAY_WORKER_METRICS_ADDR", "127.0.0.1:83", func(c *Config) any { return c.WorkerMetricsListen }, "127.0.0.1:83"},
		{"LEEWAY_PROFILES", "true", func(c *Config) any { return c.Profiles }, true},
		{"REDIS_URL", "redis://r:1/2", func(c *Config) any { return c.Redis.URL }, "redis://r:1/2"},
		{"GATE_POLICY", "seed", func(c *Config) any { return c.Gate.Policy }, slackgate.Seed},
		{"FREE_QUEUE_AGE_CUT_MS", "7", func(c *Config) any { return *c.Gate.FreeQueueAgeCutMS }, int64(7)},
		{"RESERVE_MS", "8", func(c *Config) any { return c.Gate.ReserveMS }, int64(8)},
		{"ADMIT_PAID", "0", func(c *Config) any { return c.Gate.AdmitPaid }, false},
		{"ADMIT_FREE", "false", func(c *Config) any { return c.Gate.AdmitFree }, false},
		{"FALLBACK_ENABLED", "0", func(c *Config) any { return c.Gate.FallbackEnabled }, false},
		{"PAID_P95_FIRST_BYTE_MS", "1300", func(c *Config) any { return c.Pools.Paid.FirstByteP95MS }, int64(1300)},
		{"FREE_P95_FIRST_BYTE_MS", "4100", func(c *Config) any { return c.Pools.Free.FirstByteP95MS }, int64(4100)},
		{"LEEWAY_PAID_SLOTS", "0", func(c *Config) any { return *c.Worker.PaidSlots }, 0},
		{"LEEWAY_FREE_SLOTS", "9", func(c *Config) any { return *c.Worker.FreeSlots }, 9},
		{"LEEWAY_WORKER_SHARDS", "0", func(c *Config) any { return len(c.Worker.Shards) }, 1},
		{"LEEWAY_ARCHIVE_URL", "postgres://h/db", func(c *Config) any { return c.Archive.URL }, "postgres://h/db"},
	}
	var tested []string
	for _, tt := range tests {
		tested = append(tested, tt.variable)
		c, err := Load("", []string{"=nobody", tt.variable + "=" + tt.value})
		if err != nil {
			t.Errorf("%s=%s: %v", tt.variable, tt.value, err)
			continue
		}
		if got := tt.field(c); got != tt.want {
			t.Errorf("%s=%s: the field is %v, want %v", tt.variable, tt.value, got, tt.want)
		}
	}
	known, err := env.GetFieldParams(Default())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range known {
		if !slices.Contains(tested, f.Key) {
			t.Errorf("%s has no row here", f.Key)
		}
	}
}

// A variable changes one field: what the file said of the backends stays.
func TestEnvironmentKeepsTheBackends(t *testing.T) {
	c, err := Parse([]byte("pools: {paid: {backends: [{name: b, url: 'http://h/v1', model: m, first_byte_p95_ms: 900}]}}"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.applyEnv([]string{"PAID_P95_FIRST_BYTE_MS=1000", "PAID_0_P95_FIRST_BYTE_MS=1"}); err != nil {
		t.Fatal(err)
	}
	b := c.Pools.Paid.Backends
	if len(b) != 1 || b[0].Name != "b" || b[0].FirstByteP95MS != 900 {
		t.Errorf("the backends are %+v", b)
	}
	if got := c.Pools.Paid.FirstByteP95MS; got != 1000 {
		t.Errorf("the pool's p95 is %d, want 1000", got)
	}
}
