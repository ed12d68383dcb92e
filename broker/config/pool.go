package config

import (
	"fmt"
	"iter"
	"os"
	"strings"

	"leeway/slackgate"
)

// Pools are the two pools.
type Pools struct {
	Paid Pool `yaml:"paid" envPrefix:"PAID_"`
	Free Pool `yaml:"free" envPrefix:"FREE_"`
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
	FirstByteP95MS int64 `yaml:"first_byte_p95_ms" env:"P95_FIRST_BYTE_MS"`
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
	KeyEnv  string `yaml:"key_env"`
	KeyFile string `yaml:"key_file"`
	// KeyHeader is the header in which the key is sent, as it is: api-key with
	// Azure. Defaults to the protocol's own: Authorization with Bearer before the
	// key, or X-Api-Key with anthropic.
	KeyHeader string `yaml:"key_header"`
	// Headers are sent with every call, as a gateway may want. Not those that hold
	// a key or that the client sets itself.
	Headers map[string]string `yaml:"headers"`
	// Options are what is asked of it besides an answer.
	Options BackendOptions `yaml:"options"`
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

// backends are those of both pools, each with its place in the file.
func (c *Config) backends() iter.Seq2[string, *Backend] {
	return func(yield func(string, *Backend) bool) {
		for _, path := range slackgate.Paths {
			p := c.Pool(path)
			for i := range p.Backends {
				if !yield(fmt.Sprintf("pools.%s.backends[%d]", path, i), &p.Backends[i]) {
					return
				}
			}
		}
	}
}

// Backend is the backend of a name; nil for none.
func (c *Config) Backend(name string) *Backend {
	for _, b := range c.backends() {
		if b.Name == name {
			return b
		}
	}
	return nil
}

// Key reads the backend's API key from where the configuration says it is;
// empty when it says nothing. The key must never be logged.
func (b *Backend) Key() (string, error) {
	_, key, err := readSecret("backend "+b.Name+".key", b.KeyEnv, b.KeyFile)
	return key, err
}

// readSecret reads a secret from an environment variable or a file, whichever
// is named; empty when neither is. It also returns which field named it: at
// and _env or _file.
func readSecret(at, variable, file string) (field, value string, err error) {
	switch {
	case variable != "":
		field, value = at+"_env", os.Getenv(variable)
		err = checkf(value != "", field, "%s is not set", variable)
	case file != "":
		field = at + "_file"
		raw, failed := os.ReadFile(file)
		value, err = string(raw), checkf(failed == nil, field, "%v", failed)
	}
	return field, strings.TrimSpace(value), err
}
