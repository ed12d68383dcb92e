// Command api is Leeway's admission API: it decides at once whether a job is
// run by the paid pool, by the free pool, or refused.
package main

import (
	"io"
	"log/slog"
	"os"

	"leeway/broker/config"
	"leeway/cmd/app"
	"leeway/rehearsal/stage"
)

func main() { os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr)) }

func run(args, environ []string, stdout, stderr io.Writer) int {
	var f struct {
		app.Flags

		Embedded bool `help:"Run Redis, both pools and lab backends inside this process. Keeps nothing."`
	}
	c := app.Command{
		Name: "api", Description: "Leeway's admission API.", ConfigHelp: " Defaults to the articles' lab.", Flags: &f, Common: &f.Flags,
		Start: func(o app.Options) (app.Process, error) {
			warn(o.Log, o.Config)
			if f.Embedded {
				return startEmbedded(o)
			}
			a, err := app.StartAPI(o)
			if err != nil {
				return nil, err
			}
			listening(o, a)
			return a, nil
		},
	}
	return c.Run(args, environ, stdout, stderr)
}

func startEmbedded(o app.Options) (app.Process, error) {
	o.Log.Warn("embedded", "store", stage.Banner)
	s, err := stage.Start(stage.Declared(o.Config, o.Log))
	if err != nil {
		return nil, err
	}
	listening(o, s.API)
	return s, nil
}

func listening(o app.Options, a *app.API) {
	o.Log.Info("listening", "addr", a.Addr(), "metrics_addr", a.MetricsAddr(), "policy", o.Config.Gate.Policy.String())
}

func warn(log *slog.Logger, cfg *config.Config) {
	if cfg.FreeOnlySetup() {
		log.Warn("only a free pool is configured: there is nothing to fail over to; a hard deadline wants a reserved paid pool")
	}
	if !config.Loopback(cfg.Listen) && !cfg.Access.Keyed() {
		log.Warn("listening beyond this machine without producers' keys: keep the network closed", "addr", cfg.Listen)
	}
}
