package app

import (
	"context"
	"fmt"
	"io"
	"os"
	"reflect"

	"github.com/joho/godotenv"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/slackgate"
)

// MaxEnvFileBytes bounds an environment file.
const MaxEnvFileBytes = 64 << 10

// Load reads the configuration: the file, then the environment, then the
// environment file (KEY=VALUE lines) if one is named. A running process's own
// environment cannot change, so a reload that is to change it needs the file.
func Load(configFile, envFile string, environ []string) (*config.Config, error) {
	if envFile != "" {
		f, err := os.Open(envFile)
		if err != nil {
			return nil, fmt.Errorf("env file: %w", err)
		}
		defer func() { _ = f.Close() }()
		vars, err := godotenv.Parse(io.LimitReader(f, MaxEnvFileBytes))
		if err != nil {
			return nil, fmt.Errorf("env file: %s: %w", envFile, err)
		}
		for k, v := range vars {
			environ = append(environ, k+"="+v) // a later one wins
		}
	}
	return config.Load(configFile, environ)
}

// reload takes over a configuration. What a running process cannot change is
// an error that names it, and then nothing changes.
func (b *base) reload(cfg *config.Config) error {
	old := b.config()
	for field, changed := range map[string]bool{
		"listen":                cfg.Listen != old.Listen,
		"metrics_listen":        cfg.MetricsListen != old.MetricsListen,
		"worker_metrics_listen": cfg.WorkerMetricsListen != old.WorkerMetricsListen,
		"redis":                 cfg.Redis != old.Redis,
		"lab":                   cfg.Lab != old.Lab,
		"keep":                  !reflect.DeepEqual(cfg.Keep, old.Keep),
	} {
		if changed {
			return broker.Fieldf(field, "cannot change while the process runs: restart it")
		}
	}
	b.cfg.Store(cfg)
	b.meter.SetSubjects(subjects(cfg))
	return nil
}

// Reload takes over a configuration, or says what is wrong and changes
// nothing. A pool whose settings have changed gets new workers; the old ones
// take no more jobs and end when those in flight do.
func (w *Worker) Reload(cfg *config.Config) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.config()
	if err := w.check(cfg); err != nil {
		return err
	}
	if err := w.reload(cfg); err != nil {
		return err
	}
	for _, path := range slackgate.Paths {
		slots := slotsOf(cfg, path)
		if reflect.DeepEqual(old.Pool(path), cfg.Pool(path)) && slots == w.slots[path] && reflect.DeepEqual(old.Worker, cfg.Worker) {
			continue
		}
		leaving := w.pools[path]
		delete(w.pools, path)
		w.slots[path] = 0
		if slots > 0 {
			if err := w.startPool(path, slots); err != nil {
				w.pools[path], w.slots[path] = leaving, slotsOf(old, path)
				return err
			}
		}
		if leaving != nil {
			w.leaving.Go(func() { leaving.Stop(context.Background()) })
		}
	}
	return nil
}

// check finds what would keep a pool from starting, before anything changes.
func (w *Worker) check(cfg *config.Config) error {
	for _, path := range slackgate.Paths {
		p := cfg.Pool(path)
		if slotsOf(cfg, path) > 0 && len(p.Backends) == 0 {
			return noBackends(path)
		}
		for i := range p.Backends {
			if _, err := p.Backends[i].Key(); err != nil {
				return err
			}
		}
	}
	return nil
}

// noBackends is a pool that has workers and nothing to call.
func noBackends(path slackgate.Path) error {
	return broker.Fieldf("pools."+path.String()+".backends", "is empty: there is nothing to call")
}
