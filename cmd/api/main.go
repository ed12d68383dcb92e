// Command api is Leeway's admission API: it decides at once whether a job is
// run by the paid pool, by the free pool, or refused.
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
	Config   string `env:"LEEWAY_CONFIG" placeholder:"FILE" help:"YAML configuration. Defaults to the articles' lab."`
	Embedded bool   `help:"Run Redis, both pools and lab backends inside this process. Keeps nothing."`
	EnvFile  string `env:"LEEWAY_ENV_FILE" placeholder:"FILE" help:"KEY=VALUE lines that win over the environment. SIGHUP reads it, and the configuration, again."`
	LogLevel string `env:"LEEWAY_LOG_LEVEL" enum:"debug,info,warn,error" default:"info" help:"debug, info, warn or error."`
}

func main() { os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr)) }

// process is what both ways of running have in common.
type process interface {
	Addr() string
	MetricsAddr() string
	app.Process
}

func run(args, environ []string, stdout, stderr io.Writer) int {
	var f flags
	parser := kong.Must(&f, kong.Name("api"), kong.Description("Leeway's admission API."), kong.Writers(stdout, stderr))
	if _, err := parser.Parse(args); err != nil {
		_, _ = fmt.Fprintln(stderr, "api:", err)
		return 2
	}
	cfg, err := app.Load(f.Config, f.EnvFile, environ)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "api:", err)
		return 2
	}
	var level slog.Level
	_ = level.UnmarshalText([]byte(f.LogLevel)) // kong has checked it
	log := app.Logger(stdout, level)
	app.LogRedis(log)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	warn(log, cfg, f.Embedded)
	p, err := start(app.Options{Config: cfg, Log: log}, f.Embedded)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "api:", err)
		return app.ExitCode(err)
	}
	log.Info("listening", "addr", p.Addr(), "metrics_addr", p.MetricsAddr(), "policy", cfg.Gate.Policy.String())
	return app.RunUntilSignalled(log, signals, p, func() (*config.Config, error) { return app.Load(f.Config, f.EnvFile, environ) })
}

func start(o app.Options, embedded bool) (process, error) {
	if embedded {
		return app.StartEmbedded(o)
	}
	return app.StartAPI(o)
}

func warn(log *slog.Logger, cfg *config.Config, embedded bool) {
	if embedded {
		log.Warn("embedded", "store", app.Banner)
	}
	if cfg.FreeOnlySetup() {
		log.Warn("only a free pool is configured: there is nothing to fail over to; a hard deadline wants a reserved paid pool")
	}
	if !config.Loopback(cfg.Listen) && !cfg.Access.Keyed() {
		log.Warn("listening beyond this machine without producers' keys: keep the network closed", "addr", cfg.Listen)
	}
}
