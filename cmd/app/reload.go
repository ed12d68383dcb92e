package app

import (
	"fmt"
	"io"
	"os"
	"reflect"

	"github.com/joho/godotenv"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/slackgate"
	"leeway/workers"
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

// reloadable refuses, by the name of the field, what a running process cannot
// change.
func (b *base) reloadable(cfg *config.Config) error {
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
	return nil
}

// take takes over a configuration.
func (b *base) take(cfg *config.Config) {
	b.cfg.Store(cfg)
	b.meter.SetSubjects(subjects(cfg))
}

// Reload takes over a configuration, or says what is wrong and changes
// nothing: all that can fail is made first. A pool whose settings have changed
// gets new workers; the old ones take no more jobs and end when those in flight
// do.
func (w *Worker) Reload(cfg *config.Config) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.reloadable(cfg); err != nil {
		return err
	}
	old, next := w.config(), map[slackgate.Path]*workers.Pool{}
	for _, path := range slackgate.Paths {
		if reflect.DeepEqual(old.Pool(path), cfg.Pool(path)) && reflect.DeepEqual(old.Worker, cfg.Worker) {
			continue
		}
		p, err := w.newPool(cfg, path)
		if err != nil {
			return err
		}
		next[path] = p
	}
	w.take(cfg)
	for path, p := range next {
		leaving := w.pools[path]
		delete(w.pools, path)
		if p != nil {
			w.pools[path] = p
			p.Start()
		}
		if leaving != nil {
			w.stopPool(leaving)
		}
	}
	return nil
}

// stopPool ends a pool in the background.
func (w *Worker) stopPool(p *workers.Pool) {
	w.leaving.Go(func() {
		if !p.Stop(w.hurried) {
			w.keepRedis.Store(true)
		}
	})
}
