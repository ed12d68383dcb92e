// Command worker runs Leeway's paid and free pools.
package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"leeway/broker/config"
	"leeway/cmd/app"
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
	return app.RunUntilSignalled(log, signals, w, func() (*config.Config, error) { return app.Load(f.Config, f.EnvFile, environ) })
}
