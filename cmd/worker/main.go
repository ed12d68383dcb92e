// Command worker runs Leeway's paid and free pools.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"leeway/cmd/internal/app"
)

type flags struct {
	Config   string `env:"LEEWAY_CONFIG" placeholder:"FILE" help:"YAML configuration."`
	EnvFile  string `env:"LEEWAY_ENV_FILE" placeholder:"FILE" help:"KEY=VALUE lines that win over the environment. SIGHUP reads it, and the configuration, again."`
	LogLevel string `env:"LEEWAY_LOG_LEVEL" enum:"debug,info,warn,error" default:"info" help:"debug, info, warn or error."`
}

func main() { os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr)) }

func run(args, environ []string, stdout, stderr io.Writer) int {
	var f flags
	parser := kong.Must(&f, kong.Name("worker"), kong.Description("Leeway's worker pools."), kong.Writers(stdout, stderr))
	if _, err := parser.Parse(args); err != nil {
		_, _ = fmt.Fprintln(stderr, "worker:", err)
		return 2
	}
	cfg, err := app.Load(f.Config, f.EnvFile, environ)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "worker:", err)
		return 2
	}
	var level slog.Level
	_ = level.UnmarshalText([]byte(f.LogLevel)) // kong has checked it
	log := app.Logger(stdout, level)
	app.LogRedis(log)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	w, err := app.StartWorker(app.Options{Config: cfg, Log: log})
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "worker:", err)
		return app.ExitCode(err)
	}
	log.Info("working", "metrics_addr", w.MetricsAddr())
	untilStop(log, signals, func() error { return reload(w, &f, environ) })
	log.Info("stopping: jobs in flight end first; a second signal hands them back")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go cancelOnSecond(ctx, signals, cancel)
	if err := w.Stop(ctx); err != nil {
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

// reload reads the configuration again and has the process take it over.
func reload(p *app.Worker, f *flags, environ []string) error {
	cfg, err := app.Load(f.Config, f.EnvFile, environ)
	if err != nil {
		return err
	}
	return p.Reload(cfg)
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
