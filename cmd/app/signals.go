package app

import (
	"context"
	"log/slog"
	"os"
	"syscall"

	"leeway/broker/config"
)

// Process is a running process: an API, a worker or both.
type Process interface {
	Reload(cfg *config.Config) error
	Stop(ctx context.Context) error
}

// RunUntilSignalled lets a process run until a signal to stop arrives, stops it
// and returns its exit code. SIGHUP loads the configuration again and has the
// process take it over. A second signal to stop ends the wait for jobs in
// flight.
func RunUntilSignalled(log *slog.Logger, signals <-chan os.Signal, p Process, load func() (*config.Config, error)) int {
	untilStop(log, signals, func() error {
		cfg, err := load()
		if err != nil {
			return err
		}
		return p.Reload(cfg)
	})
	log.Info("stopping: jobs in flight end first; a second signal hands them back")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go cancelOnSecond(ctx, signals, cancel)
	if err := p.Stop(ctx); err != nil {
		log.Error("stopped with failures", "error", err)
		return 1
	}
	return 0
}

// untilStop returns with the first signal to stop; SIGHUP reloads.
func untilStop(log *slog.Logger, signals <-chan os.Signal, reload func() error) {
	for sig := range signals {
		if sig != syscall.SIGHUP {
			return
		}
		if err := reload(); err != nil {
			log.Error("configuration not reloaded: nothing has changed", "error", err)
			continue
		}
		log.Info("configuration reloaded")
	}
}

// cancelOnSecond cancels with the next signal that is not a reload.
func cancelOnSecond(ctx context.Context, signals <-chan os.Signal, cancel context.CancelFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case sig := <-signals:
			if sig != syscall.SIGHUP {
				cancel()
				return
			}
		}
	}
}
