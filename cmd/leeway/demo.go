package main

import (
	"context"
	"io"

	"leeway/rehearsal/demo"
	"leeway/slackgate"
)

type demoCmd struct {
	Rate   int            `default:"8" help:"Documents submitted a second."`
	Policy slackgate.Rule `default:"predictive" help:"predictive or seed."`
}

// Run exits non-zero when something that must hold does not.
func (d *demoCmd) Run(ctx context.Context, out io.Writer) error {
	return demo.Run(ctx, demo.Options{Rate: d.Rate, Policy: d.Policy, Out: out, Check: checkLedgers})
}
