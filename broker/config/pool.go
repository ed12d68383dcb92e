package config

import (
	"bytes"
	"os"

	"leeway/broker"
	"leeway/slackgate"
)

// Pools are the two pools.
type Pools struct {
	Paid Pool `yaml:"paid"`
	Free Pool `yaml:"free"`
}

// Pool configures one pool.
type Pool struct {
	// Limit is the largest number of jobs that run at once. 0 leaves the pool
	// out. "measured" is the knee of the pool's first backend, which is the one
	// called while all is well.
	Limit int `yaml:"limit"`
	// MeasuredLimit is set where Limit was measured.
	MeasuredLimit bool `yaml:"-"`
	// FirstByteP95MS is the declared 95th percentile of the first byte.
	FirstByteP95MS int64 `yaml:"first_byte_p95_ms"`
	// HoldP95MS is the declared 95th percentile of the time a slot stays
	// taken, to the last byte. Defaults to FirstByteP95MS.
	HoldP95MS int64 `yaml:"hold_p95_ms"`
	// FirstByteShare is the most of the remaining time that an attempt may
	// spend on its first byte while another backend is left. Defaults to 0.6.
	FirstByteShare float64 `yaml:"first_byte_share"`
	// FirstByteCapMS is an absolute cap beside it; 0: none.
	FirstByteCapMS int64 `yaml:"first_byte_cap_ms"`
	// Backends in the order in which they are tried.
	Backends []Backend `yaml:"backends"`
}

// Backend is one endpoint and model.
type Backend struct {
	Name string `yaml:"name"`
	// Protocol is the wire it speaks. Defaults to "openai".
	Protocol string `yaml:"protocol"`
	// URL is the base URL, as an OpenAI client takes it (ending in /v1).
	URL   string `yaml:"url"`
	Model string `yaml:"model"`
	// KeyEnv and KeyFile name where the API key is; the key itself never
	// stands in this file.
	KeyEnv  string            `yaml:"key_env"`
	KeyFile string            `yaml:"key_file"`
	Headers map[string]string `yaml:"headers"`
	// FirstByteP95MS is the backend's own declared p95. Defaults to the pool's.
	FirstByteP95MS int64 `yaml:"first_byte_p95_ms"`
	// Limit bounds the calls in flight. 0: the pool's limit.
	Limit int `yaml:"limit"`
	// Knee is where the backend was measured to stop getting faster. Left out:
	// what knee_file says of it, if anything.
	Knee *Knee `yaml:"knee"`
	// StallMS is the longest silence between two pieces of answer text.
	// Defaults to 10000.
	StallMS int64 `yaml:"stall_ms"`
	// Price is what the backend charges; Prices the same where it changes with
	// time. Set one of them, or neither for a backend that is free of charge.
	Price  Price        `yaml:"price"`
	Prices []DatedPrice `yaml:"prices"`
}

// Pool returns the pool of a path; the zero pool for Reject.
func (c *Config) Pool(p slackgate.Path) *Pool {
	switch p {
	case slackgate.Paid:
		return &c.Pools.Paid
	case slackgate.Free:
		return &c.Pools.Free
	case slackgate.Reject:
	}
	return &Pool{}
}

// Slots is what this worker offers to a pool.
func (c *Config) Slots(p slackgate.Path) int {
	own := c.Worker.PaidSlots
	if p == slackgate.Free {
		own = c.Worker.FreeSlots
	}
	if own != nil {
		return *own
	}
	return c.Pool(p).Limit
}

// Key reads the backend's API key from where the configuration says it is;
// empty when it says nothing. The key must never be logged.
func (b *Backend) Key() (string, error) {
	switch {
	case b.KeyEnv != "":
		k := os.Getenv(b.KeyEnv)
		if k == "" {
			return "", broker.Fieldf("backend "+b.Name+".key_env", "%s is not set", b.KeyEnv)
		}
		return k, nil
	case b.KeyFile != "":
		raw, err := os.ReadFile(b.KeyFile)
		if err != nil {
			return "", broker.Fieldf("backend "+b.Name+".key_file", "%v", err)
		}
		return string(bytes.TrimSpace(raw)), nil
	}
	return "", nil
}
