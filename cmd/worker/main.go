// Command worker runs Leeway's paid and free pools.
package main

import (
	"io"
	"os"

	"leeway/cmd/app"
)

func main() { os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr)) }

func run(args, environ []string, stdout, stderr io.Writer) int {
	var f app.Flags
	c := app.Command{
		Name: "worker", Description: "Leeway's worker pools.", Flags: &f, Common: &f,
		Start: func(o app.Options) (app.Process, error) {
			w, err := app.StartWorker(o)
			if err != nil {
				return nil, err
			}
			o.Log.Info("working", "metrics_addr", w.MetricsAddr())
			return w, nil
		},
	}
	return c.Run(args, environ, stdout, stderr)
}
