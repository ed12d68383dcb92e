package config

import (
	"errors"
	"reflect"

	"github.com/caarlos0/env/v11"

	"leeway/broker"
	"leeway/slackgate"
)

// environment is the set of variables that override the file. The names
// without a prefix are the articles'.
type environment struct {
	Listen              *string         `env:"LEEWAY_ADDR"`
	MetricsListen       *string         `env:"LEEWAY_METRICS_ADDR"`
	WorkerMetricsListen *string         `env:"LEEWAY_WORKER_METRICS_ADDR"`
	RedisURL            *string         `env:"REDIS_URL"`
	Profiles            *bool           `env:"LEEWAY_PROFILES"`
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
	WorkerShards        []int           `env:"LEEWAY_WORKER_SHARDS"`
}

func (c *Config) applyEnv(environ []string) error {
	var e environment
	if err := env.ParseWithOptions(&e, env.Options{Environment: env.ToMap(environ)}); err != nil {
		return envError(err)
	}
	set(&c.Listen, e.Listen)
	set(&c.MetricsListen, e.MetricsListen)
	set(&c.WorkerMetricsListen, e.WorkerMetricsListen)
	set(&c.Profiles, e.Profiles)
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
	if e.WorkerShards != nil {
		c.Worker.Shards = e.WorkerShards
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
