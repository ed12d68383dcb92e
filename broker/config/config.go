// Package config reads Leeway's configuration: defaults, then a strict YAML
// file, then the environment. An unknown key or a value out of range is an
// error that names it.
package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net"
	"strings"
	"time"

	"leeway/slackgate"
)

// Limits of what configuration may say.
const (
	MaxFileBytes     = 1 << 20
	MaxDeadlineMS    = 7 * 24 * 3600 * 1000
	MaxSlots         = 4096
	MaxBackends      = 32
	MaxClasses       = 64
	MaxTextBytesHard = 16 << 20
	// MaxPriceMicroPerMTok keeps the cost of any call inside an int64.
	MaxPriceMicroPerMTok = 1 << 30
)

// Config is the whole configuration. Fields that are not set keep their
// defaults; see [Default].
type Config struct {
	// Listen is the address of the admission API. Defaults to 127.0.0.1:8080.
	Listen string `yaml:"listen" env:"LEEWAY_ADDR"`
	// MetricsListen is the address of the API's metrics. Defaults to 127.0.0.1:9090.
	MetricsListen string `yaml:"metrics_listen" env:"LEEWAY_METRICS_ADDR"`
	// WorkerMetricsListen is the address of a worker's metrics. Defaults to 127.0.0.1:9091.
	WorkerMetricsListen string `yaml:"worker_metrics_listen" env:"LEEWAY_WORKER_METRICS_ADDR"`
	// Profiles serves CPU, memory and other profiles of the process under
	// /debug/pprof/ of its metrics listener. They show what it works on: only
	// where that listener is private. Defaults to false.
	Profiles bool `yaml:"profiles" env:"LEEWAY_PROFILES"`

	Redis   Redis   `yaml:"redis"`
	Gate    Gate    `yaml:"gate"`
	Pools   Pools   `yaml:"pools"`
	Worker  Worker  `yaml:"worker"`
	Limits  Limits  `yaml:"limits"`
	Keep    Keep    `yaml:"keep"`
	Archive Archive `yaml:"archive"`
	Access  Access  `yaml:"access"`
	Classes Classes `yaml:"classes"`
	// Producers limits what single producers may do.
	Producers Producers `yaml:"producers"`
	// DefaultClass is the class of a submission that names none. Defaults to
	// "summary".
	DefaultClass string `yaml:"default_class"`
	// KneeFile holds what leeway knee measured, and is written by it. A relative
	// name is beside the configuration file. Defaults to none.
	KneeFile string `yaml:"knee_file"`
	Lab      Lab    `yaml:"lab"`

	toMeasure bool // a limit that is to be measured need not have been
}

// Lab is what only a configuration for lab backends may say: every backend of
// every pool must be reached on loopback and need no key.
type Lab struct {
	// RecheckOff lets workers call a backend whatever is left of a job's time,
	// and wait for its answer past the deadline, and keeps jobs waiting that
	// are past due: so that a drill shows what the re-check is for. Defaults to
	// false.
	RecheckOff bool `yaml:"recheck_off"`
}

// Redis says where the store is.
type Redis struct {
	// URL as go-redis reads it, with the password inside. Defaults to
	// redis://127.0.0.1:6379/0.
	URL string `yaml:"url" env:"REDIS_URL"`
	// TimeoutMS bounds every call to the store. Defaults to 250.
	TimeoutMS int64 `yaml:"timeout_ms"`
	// Prefix names the keys. Deployments that share a Redis need different
	// ones. Defaults to "leeway".
	Prefix string `yaml:"prefix"`
	// Shards is how many shards the deployment has, each with its own gate,
	// queues and keys, and its part of the pools' limits. It cannot change under
	// one prefix. Defaults to 1, at most 64.
	Shards int `yaml:"shards"`
}

// Gate configures the decision.
type Gate struct {
	// Policy is "predictive" or "seed". Defaults to predictive.
	Policy slackgate.Rule `yaml:"policy" env:"GATE_POLICY"`
	// FreeQueueAgeCutMS closes free once its oldest waiting job is this old.
	// Defaults to 3000 under seed and to unset under predictive.
	FreeQueueAgeCutMS *int64 `yaml:"free_queue_age_cut_ms" env:"FREE_QUEUE_AGE_CUT_MS"`
	// ReserveMS is a floor over the classes' reserves. Defaults to 0.
	ReserveMS int64 `yaml:"reserve_ms" env:"RESERVE_MS"`
	// AdmitPaid and AdmitFree open the pools. Default to true.
	AdmitPaid bool `yaml:"admit_paid" env:"ADMIT_PAID"`
	AdmitFree bool `yaml:"admit_free" env:"ADMIT_FREE"`
	// FallbackEnabled lets an attempt fail over to the pool's next backend.
	// Defaults to true.
	FallbackEnabled bool `yaml:"fallback_enabled" env:"FALLBACK_ENABLED"`
}

// Worker configures cmd/worker.
type Worker struct {
	// PaidSlots and FreeSlots are what this worker offers. Default to the
	// pools' limits.
	PaidSlots *int `yaml:"paid_slots" env:"LEEWAY_PAID_SLOTS"`
	FreeSlots *int `yaml:"free_slots" env:"LEEWAY_FREE_SLOTS"`
	// Shards are those that this worker serves, its slots divided over them;
	// the first is 0. Defaults to all.
	Shards []int `yaml:"shards" env:"LEEWAY_WORKER_SHARDS"`
	// PollMS is how often an idle pool looks for a ticket that it was not told
	// of. Defaults to 10.
	PollMS int64 `yaml:"poll_ms"`
	// LeaseMS is how long a claimed job stays claimed without a sign of life.
	// Defaults to 3000.
	LeaseMS int64 `yaml:"lease_ms"`
	// HeartbeatMS is how often a worker shows that it lives; it is forgotten
	// after 2.5 times that. Defaults to 1000.
	HeartbeatMS int64 `yaml:"heartbeat_ms"`
	// ShutdownGraceMS is how long a stopping worker waits for its jobs before
	// it hands them back. Defaults to 30000.
	ShutdownGraceMS int64 `yaml:"shutdown_grace_ms"`
}

// Limits bound what comes in.
type Limits struct {
	TextBytes  int64 `yaml:"text_bytes"`  // Defaults to 1 MiB.
	BatchLines int   `yaml:"batch_lines"` // Defaults to 100000.
	WaitMS     int64 `yaml:"wait_ms"`     // Longest ?wait=. Defaults to 60000.
	// InFlightBytes is about how much memory an API process gives to bodies and
	// lines that are being read or decided, over all connections. A producer gets
	// as much as it leaves free, half of it if it is alone; beyond that its
	// readers wait, and are then told 503. At least what four of the longest lines
	// need. Defaults to 64 MiB, or to what eight of them need if that is more.
	InFlightBytes int64 `yaml:"in_flight_bytes"`
}

// LineOverhead is what a body or a line of a batch may be longer than twice the
// text limit: the other fields and JSON's escapes.
const LineOverhead = 64 << 10

// LineBytes is the longest line of a batch, and the longest body of a
// submission.
func (l *Limits) LineBytes() int64 { return 2*l.TextBytes + LineOverhead }

// Keep says how long things are kept.
type Keep struct {
	// ResultMS is how long an ended job and its answer stay. Defaults to 24 h.
	ResultMS int64 `yaml:"result_ms"`
	// LedgerRows bounds each ledger's stream. Defaults to 1000000.
	LedgerRows int64 `yaml:"ledger_rows"`
	// RollupMS is how long the ledgers' sums by minute stay. Defaults to 30
	// days.
	RollupMS int64 `yaml:"rollup_ms"`
}

// Archive says where ledger rows go before they are dropped from Redis. Only
// the API writes there.
type Archive struct {
	// URL of a PostgreSQL database, postgres://..., with the password inside.
	// Empty: no archive, and rows beyond keep.ledger_rows are dropped.
	URL string `yaml:"url" env:"LEEWAY_ARCHIVE_URL"`
	// WindowMS is how long rows stay in Redis after they were archived, where
	// the API shows them; keep.ledger_rows bounds that. Defaults to 24 h.
	WindowMS int64 `yaml:"window_ms"`
	// BatchRows is the most rows of one transaction. Defaults to 5000.
	BatchRows int `yaml:"batch_rows"`
	// EveryMS is how long to wait when there is nothing to archive. Defaults
	// to 1000.
	EveryMS int64 `yaml:"every_ms"`
}

// Access says who may do what. Without any key everybody who reaches the API
// may do everything, and it then listens on loopback only.
type Access struct {
	// Producers may submit, and see their own jobs. OnCall may do everything.
	Producers []Key `yaml:"producers"`
	OnCall    []Key `yaml:"oncall"`
	// Open allows listening beyond loopback without keys, on a closed network.
	Open bool `yaml:"open"`
}

// Key is a key's owner and its hash; the key itself is nowhere on our side.
type Key struct {
	Name string `yaml:"name"`
	// KeySHA256 is the SHA-256 of the key in hex:
	// printf %s "$KEY" | sha256sum
	KeySHA256 string `yaml:"key_sha256"`
}

// Keyed reports whether any key is configured.
func (a *Access) Keyed() bool { return len(a.Producers)+len(a.OnCall) > 0 }

// Default is the configuration with nothing set: the lab of the articles, with
// no backends.
func Default() *Config {
	return &Config{
		Listen:              "127.0.0.1:8080",
		MetricsListen:       "127.0.0.1:9090",
		WorkerMetricsListen: "127.0.0.1:9091",
		Redis:               Redis{URL: "redis://127.0.0.1:6379/0", TimeoutMS: 250, Prefix: "leeway", Shards: 1},
		Gate:                Gate{AdmitPaid: true, AdmitFree: true, FallbackEnabled: true},
		Pools: Pools{
			Paid: Pool{Limit: 2, FirstByteP95MS: 1200},
			Free: Pool{Limit: 1, FirstByteP95MS: 4000},
		},
		Worker:       Worker{PollMS: 10, LeaseMS: 3000, HeartbeatMS: 1000, ShutdownGraceMS: 30_000},
		Limits:       Limits{TextBytes: 1 << 20, BatchLines: 100_000, WaitMS: 60_000},
		Keep:         Keep{ResultMS: 24 * 3600 * 1000, LedgerRows: 1_000_000, RollupMS: 30 * 24 * 3600 * 1000},
		Archive:      Archive{WindowMS: 24 * 3600 * 1000, BatchRows: 5000, EveryMS: 1000},
		DefaultClass: "summary",
	}
}

// SeedFreeQueueAgeCutMS is the article's cut, the default under the seed rule.
const SeedFreeQueueAgeCutMS = 3000

// Fingerprint names what all processes of a deployment must agree on: the
// pools, the classes and the producers' limits. The flags' start values and a
// worker's own slots may differ.
func (c *Config) Fingerprint() string {
	raw, err := json.Marshal(struct { //nolint:musttag // hashed: the names do not matter
		Pools        Pools
		Classes      Classes
		DefaultClass string
		Lab          Lab
		Producers    Producers
	}{c.Pools, c.Classes, c.DefaultClass, c.Lab, c.Producers})
	if err != nil {
		return "unknown" // no value in there can fail
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:6])
}

// RedisTimeout is the bound of every call to the store.
func (c *Config) RedisTimeout() time.Duration {
	return time.Duration(c.Redis.TimeoutMS) * time.Millisecond
}

// LongestDeadlineMS is the longest deadline any class allows.
func (c *Config) LongestDeadlineMS() int64 {
	var longest int64
	for _, cl := range c.Classes {
		longest = max(longest, cl.MaxDeadlineMS)
	}
	return longest
}

// FreeOnlySetup reports that no paid pool is configured: there is nothing to
// fail over to, and hard deadlines then hang on best-effort capacity.
func (c *Config) FreeOnlySetup() bool { return c.Pools.Paid.Limit == 0 }

// Loopback reports whether an address to listen on is reachable from this
// machine alone.
func Loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && LoopbackHost(host)
}

// LoopbackHost reports whether a host is this machine by its name or address.
// Names under localhost are nobody else's (RFC 6761).
func LoopbackHost(host string) bool {
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || net.ParseIP(host).IsLoopback()
}
