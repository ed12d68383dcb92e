// Package config reads Leeway's configuration: defaults, then a strict YAML
// file, then the environment. An unknown key or a value out of range is an
// error that names it.
package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"leeway/broker"
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
	Listen string `yaml:"listen"`
	// MetricsListen is the address of the API's metrics. Defaults to 127.0.0.1:9090.
	MetricsListen string `yaml:"metrics_listen"`
	// WorkerMetricsListen is the address of a worker's metrics. Defaults to 127.0.0.1:9091.
	WorkerMetricsListen string `yaml:"worker_metrics_listen"`

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
	URL string `yaml:"url"`
	// TimeoutMS bounds every call to the store. Defaults to 250.
	TimeoutMS int64 `yaml:"timeout_ms"`
	// Prefix names the keys. Deployments that share a Redis need different
	// ones. Defaults to "leeway".
	Prefix string `yaml:"prefix"`
}

// Gate configures the decision.
type Gate struct {
	// Policy is "predictive" or "seed". Defaults to predictive.
	Policy slackgate.Rule `yaml:"policy"`
	// FreeQueueAgeCutMS closes free once its oldest waiting job is this old.
	// Defaults to 3000 under seed and to unset under predictive.
	FreeQueueAgeCutMS *int64 `yaml:"free_queue_age_cut_ms"`
	// ReserveMS is a floor over the classes' reserves. Defaults to 0.
	ReserveMS int64 `yaml:"reserve_ms"`
	// AdmitPaid and AdmitFree open the pools. Default to true.
	AdmitPaid bool `yaml:"admit_paid"`
	AdmitFree bool `yaml:"admit_free"`
	// FallbackEnabled lets an attempt fail over to the pool's next backend.
	// Defaults to true.
	FallbackEnabled bool `yaml:"fallback_enabled"`
}

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

// DatedPrice is a price and when it begins.
type DatedPrice struct {
	// ValidFrom is a date, 2026-01-31, whose day begins in UTC, or an RFC 3339
	// time. The prices stand in the order of time; the first also holds for
	// whatever was before it.
	ValidFrom string `yaml:"valid_from"`
	Price     `yaml:",inline"`

	from time.Time
}

// PriceAt is the price of a call made at t. The version of one without its own
// is its first day.
func (b *Backend) PriceAt(t time.Time) *Price {
	if len(b.Prices) == 0 {
		return &b.Price
	}
	now := &b.Prices[0]
	for i := range b.Prices {
		if !b.Prices[i].from.After(t) {
			now = &b.Prices[i]
		}
	}
	return &now.Price
}

// PricesWithin are the prices that hold at some time from one instant until
// another.
func (b *Backend) PricesWithin(from, until time.Time) []*Price {
	out := []*Price{b.PriceAt(from)}
	for i := range b.Prices {
		if at := b.Prices[i].from; at.After(from) && !at.After(until) {
			out = append(out, &b.Prices[i].Price)
		}
	}
	return out
}

// Price is a backend's price; the zero price is free of charge.
type Price struct {
	Currency string `yaml:"currency"`
	// Version names the price in spend rows. Defaults to "1", or to the date
	// of a dated price.
	Version string `yaml:"version"`
	// For a million input tokens, for a million of them that were cached (0:
	// as the others), for a million output tokens, and for each call.
	InputMicroPerMTok  int64 `yaml:"input_micro_per_mtok"`
	CachedMicroPerMTok int64 `yaml:"cached_micro_per_mtok"`
	OutputMicroPerMTok int64 `yaml:"output_micro_per_mtok"`
	CallMicro          int64 `yaml:"call_micro"`
}

// Worker configures cmd/worker.
type Worker struct {
	// PaidSlots and FreeSlots are what this worker offers. Default to the
	// pools' limits.
	PaidSlots *int `yaml:"paid_slots"`
	FreeSlots *int `yaml:"free_slots"`
	// PollMS is how often an idle pool looks for a ticket. Defaults to 10.
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
	// lines that are being read or decided, over all connections. Beyond it
	// readers wait, and are then told 503. Defaults to 64 MiB, or to what eight
	// of the longest lines need if that is more.
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
	URL string `yaml:"url"`
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

// Classes by name.
type Classes map[string]Class

// Preference is the order in which a class wants the pools.
type Preference string

// The preferences.
const (
	PaidFirst Preference = "paid-first"
	FreeFirst Preference = "free-first"
	PaidOnly  Preference = "paid-only"
	FreeOnly  Preference = "free-only"
)

// Paths is the preference as the gate takes it; false for an unknown one.
func (p Preference) Paths() ([2]slackgate.Path, bool) {
	switch p {
	case PaidFirst:
		return [2]slackgate.Path{slackgate.Paid, slackgate.Free}, true
	case FreeFirst:
		return [2]slackgate.Path{slackgate.Free, slackgate.Paid}, true
	case PaidOnly:
		return [2]slackgate.Path{slackgate.Paid}, true
	case FreeOnly:
		return [2]slackgate.Path{slackgate.Free}, true
	}
	return [2]slackgate.Path{}, false
}

// Success is what a class counts as an answer in time.
type Success string

// The kinds of success.
const (
	SuccessWhole     Success = "whole"
	SuccessFirstByte Success = "first_byte"
)

// Class is a named set of defaults and rules for jobs.
type Class struct {
	// DeadlineMS is used when a job names none. Defaults to 15000.
	DeadlineMS int64 `yaml:"deadline_ms"`
	// MaxDeadlineMS is the longest allowed. Defaults to 24 h.
	MaxDeadlineMS int64 `yaml:"max_deadline_ms"`
	// ReserveMS is kept back from the deadline. Defaults to 2000.
	ReserveMS *int64 `yaml:"reserve_ms"`
	// Prefer is the pools and their order. Defaults to paid-first.
	Prefer Preference `yaml:"prefer"`
	// Success is "whole" or "first_byte". Defaults to whole.
	Success Success `yaml:"success"`
	// MaxOutputTokens is the output limit. Defaults to 400.
	MaxOutputTokens int `yaml:"max_output_tokens"`
	// WordLimit is the longest summary asked for. Defaults to 200.
	WordLimit int `yaml:"word_limit"`
	// Prompt is the system prompt, a text/template in which {{.WordLimit}} and
	// {{.MaxOutputTokens}} stand for the class's limits. Defaults to
	// [DefaultPrompt].
	Prompt string `yaml:"prompt"`
	// Rescue lets a job that free can no longer make be offered to paid.
	Rescue bool `yaml:"rescue"`
	// BudgetMicroPerDay caps what the class's jobs may cost in a day, all
	// producers together, in micro-units. Left out: no cap.
	BudgetMicroPerDay *int64 `yaml:"budget_micro_per_day"`

	promptBytes int64 // of the system prompt
}

// SystemPromptBytes is how long the system prompt is.
func (c *Class) SystemPromptBytes() int64 { return c.promptBytes }

// DefaultPrompt is the system prompt of a class that has none.
const DefaultPrompt = "Summarise the text in at most {{.WordLimit}} words. Answer with the summary alone."

// SystemPrompt is the class's prompt with its limits filled in. The template
// was checked when the configuration was read.
func (c *Class) SystemPrompt() (string, error) {
	t, err := template.New("prompt").Option("missingkey=error").Parse(c.Prompt)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, struct{ WordLimit, MaxOutputTokens int }{c.WordLimit, c.MaxOutputTokens})
	return b.String(), err
}

// Default is the configuration with nothing set: the lab of the articles, with
// no backends.
func Default() *Config {
	return &Config{
		Listen:              "127.0.0.1:8080",
		MetricsListen:       "127.0.0.1:9090",
		WorkerMetricsListen: "127.0.0.1:9091",
		Redis:               Redis{URL: "redis://127.0.0.1:6379/0", TimeoutMS: 250, Prefix: "leeway"},
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

// Load reads the file at path (none if empty) over the defaults, then the
// environment (as os.Environ gives it) over that, and validates the result.
func Load(path string, environ []string) (*Config, error) {
	return load(Default(), path, environ)
}

// LoadToMeasure is Load for whoever is about to measure: a measured limit need
// not have been measured yet.
func LoadToMeasure(path string, environ []string) (*Config, error) {
	c := Default()
	c.toMeasure = true
	return load(c, path, environ)
}

func load(c *Config, path string, environ []string) (*Config, error) {
	if path != "" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("config: %w", err)
		}
		defer func() { _ = f.Close() }()
		if err := c.read(f); err != nil {
			return nil, fmt.Errorf("config: %s: %w", path, err)
		}
	}
	if err := c.applyEnv(environ); err != nil {
		return nil, fmt.Errorf("config: environment: %w", err)
	}
	if err := c.readKnees(path); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if err := c.Complete(); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return c, nil
}

// Parse reads a YAML document over the defaults, without the environment.
func Parse(doc []byte) (*Config, error) {
	c := Default()
	if err := c.read(bytes.NewReader(doc)); err != nil {
		return nil, err
	}
	if err := c.Complete(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Config) read(r io.Reader) error {
	doc, err := io.ReadAll(io.LimitReader(r, MaxFileBytes+1))
	if err != nil {
		return err
	}
	if len(doc) > MaxFileBytes {
		return fmt.Errorf("larger than %d bytes", MaxFileBytes)
	}
	file, err := parser.ParseBytes(doc, 0)
	if err != nil {
		return plain(err)
	}
	if len(file.Docs) > 1 {
		return errors.New("more than one document in the file")
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil || file.Docs[0].Body.Type() == ast.NullType {
		return nil // nothing in it, or comments only
	}
	// A key without a value would put zero in the place of its defaults.
	for _, n := range ast.Filter(ast.NullType, file.Docs[0].Body) {
		return broker.Fieldf(strings.TrimPrefix(n.GetPath(), "$."), "has no value: leave the key out to keep the default")
	}
	// The reader would cut a fraction off and read numbers out of strings.
	for _, n := range ast.Filter(ast.MappingValueType, file.Docs[0].Body) {
		v := n.(*ast.MappingValueNode) //nolint:forcetypeassert // what the filter asked for
		if c.takeMeasured(v) {
			continue
		}
		switch v.Value.Type() {
		case ast.IntegerType, ast.AliasType, ast.AnchorType, ast.TagType:
		default:
			if whole[v.Key.String()] {
				return broker.Fieldf(strings.TrimPrefix(v.Value.GetPath(), "$."), "must be a whole number, without exponent or fraction")
			}
		}
		// Zero is how "left out" looks below.
		if neverZero[v.Key.String()] && zero(v.Value.String()) {
			return broker.Fieldf(strings.TrimPrefix(v.Value.GetPath(), "$."), "must be above 0: leave the key out for its default")
		}
	}
	return plain(yaml.NewDecoder(bytes.NewReader(doc), yaml.DisallowUnknownField()).DecodeFromNode(file.Docs[0].Body, c))
}

// neverZero names the keys whose default stands for a zero, and which can
// therefore not be set to it.
var neverZero = map[string]bool{
	"deadline_ms": true, "max_deadline_ms": true, "max_output_tokens": true, "word_limit": true,
	"first_byte_p95_ms": true, "hold_p95_ms": true, "first_byte_share": true, "stall_ms": true, "valid_days": true,
}

func zero(literal string) bool {
	v, err := strconv.ParseFloat(literal, 64)
	return err == nil && v == 0
}

// whole names the keys that hold whole numbers.
var whole = wholeKeys(reflect.TypeFor[Config](), map[string]bool{})

func wholeKeys(t reflect.Type, names map[string]bool) map[string]bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return wholeKeys(t.Elem(), names)
	case reflect.Struct:
		for f := range t.Fields() {
			ft := f.Type
			if ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			if ft.Kind() == reflect.Int || ft.Kind() == reflect.Int64 {
				names[f.Tag.Get("yaml")] = true
			}
			wholeKeys(ft, names)
		}
	default: // holds no keys
	}
	return names
}

// plain is a reader's error without the excerpt from the file that it would
// print: that may show a password.
func plain(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(yaml.FormatError(err, false, false))
}

// environment is the set of variables that override the file. The names
// without a prefix are the articles'.
type environment struct {
	Listen              *string         `env:"LEEWAY_ADDR"`
	MetricsListen       *string         `env:"LEEWAY_METRICS_ADDR"`
	WorkerMetricsListen *string         `env:"LEEWAY_WORKER_METRICS_ADDR"`
	RedisURL            *string         `env:"REDIS_URL"`
	ArchiveURL          *string         `env:"LEEWAY_ARCHIVE_URL"`
	DeadlineMS          *int64          `env:"DEADLINE_MS"`
	ReserveMS           *int64          `env:"RESERVE_MS"`
	PaidP95             *int64          `env:"PAID_P95_FIRST_BYTE_MS"`
	FreeP95             *int64          `env:"FREE_P95_FIRST_BYTE_MS"`
	FreeCut             *int64          `env:"FREE_QUEUE_AGE_CUT_MS"`
	AdmitFree           *bool           `env:"ADMIT_FREE"`
	AdmitPaid           *bool           `env:"ADMIT_PAID"`
	Fallback            *bool           `env:"FALLBACK_ENABLED"`
	Policy              *slackgate.Rule `env:"GATE_POLICY"`
	PaidSlots           *int            `env:"LEEWAY_PAID_SLOTS"`
	FreeSlots           *int            `env:"LEEWAY_FREE_SLOTS"`
}

func (c *Config) applyEnv(environ []string) error {
	var e environment
	if err := env.ParseWithOptions(&e, env.Options{Environment: env.ToMap(environ)}); err != nil {
		return envError(err)
	}
	set(&c.Listen, e.Listen)
	set(&c.MetricsListen, e.MetricsListen)
	set(&c.WorkerMetricsListen, e.WorkerMetricsListen)
	set(&c.Redis.URL, e.RedisURL)
	set(&c.Archive.URL, e.ArchiveURL)
	set(&c.Gate.ReserveMS, e.ReserveMS)
	set(&c.Pools.Paid.FirstByteP95MS, e.PaidP95)
	set(&c.Pools.Free.FirstByteP95MS, e.FreeP95)
	set(&c.Gate.AdmitFree, e.AdmitFree)
	set(&c.Gate.AdmitPaid, e.AdmitPaid)
	set(&c.Gate.FallbackEnabled, e.Fallback)
	set(&c.Gate.Policy, e.Policy)
	if e.FreeCut != nil {
		c.Gate.FreeQueueAgeCutMS = e.FreeCut
	}
	if e.PaidSlots != nil {
		c.Worker.PaidSlots = e.PaidSlots
	}
	if e.FreeSlots != nil {
		c.Worker.FreeSlots = e.FreeSlots
	}
	if e.DeadlineMS != nil {
		if *e.DeadlineMS < 1 {
			return broker.Fieldf("DEADLINE_MS", "must be at least 1")
		}
		if len(c.Classes) == 0 {
			c.Classes = Classes{c.DefaultClass: {}}
		}
		if cl, ok := c.Classes[c.DefaultClass]; ok { // else validation names what is missing
			cl.DeadlineMS = *e.DeadlineMS
			c.Classes[c.DefaultClass] = cl
		}
	}
	return nil
}

// envError names the variable that could not be read, in place of the field it
// is read into.
func envError(err error) error {
	bad, ok := errors.AsType[env.ParseError](err)
	if !ok {
		return err
	}
	f, _ := reflect.TypeFor[environment]().FieldByName(bad.Name)
	return broker.Fieldf(f.Tag.Get("env"), "%v", bad.Err)
}

func set[T any](dst *T, v *T) {
	if v != nil {
		*dst = *v
	}
}

// SeedFreeQueueAgeCutMS is the article's cut, the default under the seed rule.
const SeedFreeQueueAgeCutMS = 3000

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

// Fingerprint names what all processes of a deployment must agree on: the
// pools, the classes and the producers' limits. The flags' start values and a worker's own slots may
// differ.
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

// Loopback reports whether an address to listen on is reachable from this
// machine alone.
func Loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	return LoopbackHost(host)
}

// LoopbackHost reports whether a host is this machine by its name or address. Names under
// localhost are nobody else's (RFC 6761).
func LoopbackHost(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
