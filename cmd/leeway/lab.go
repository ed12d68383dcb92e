package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"leeway/rehearsal/lab"
)

// labCmd runs one lab backend until it is interrupted.
type labCmd struct {
	Addr    string `default:"127.0.0.1:8001" help:"Address of the backend itself (port 0 picks one)."`
	Control string `default:"127.0.0.1:0" help:"Address of its control endpoint; empty for none. Keep it private: it has no authentication."`

	Model   string `default:"lab-summary" help:"Name of the model it serves. Every fault is a model too: fault-stall, fault-slow.20s, ..."`
	Profile string `default:"fixed:0s" help:"Time to the first byte: fixed:1200ms, lognormal:p95=1200ms,sigma=0.5,seed=1 or load:1=189,8=433,32=474 (tokens/s by concurrency)."`
	Tail    string `default:"0" help:"Time from the first byte to the last: 0, a duration such as 2800ms, or a rate such as 50/s (tokens)."`
	Slots   int    `default:"0" help:"How many requests are served at once; the rest wait inside the backend. 0 is no limit."`
	Queue   int    `default:"4096" help:"How many requests may wait for a slot; beyond it the answer is 503."`
	Log     int    `default:"16384" help:"How many attempts are remembered, for /control/attempts."`

	Dedupe          bool   `help:"Give a second request with the same Idempotency-Key the first one's answer."`
	FinishAbandoned bool   `help:"Finish requests whose caller has gone, holding their slots."`
	Fault           string `help:"Fault to begin with, such as silent or down.503."`
}

// Run serves until ctx ends. It prints one line with the addresses once both
// are listened on.
func (c labCmd) Run(ctx context.Context, out io.Writer) error {
	srv, err := c.server()
	if err != nil {
		return err
	}
	defer srv.Close()
	var lc net.ListenConfig
	api, err := lc.Listen(ctx, "tcp", c.Addr)
	if err != nil {
		return fmt.Errorf("lab: --addr: %w", err)
	}
	line := fmt.Sprintf("lab backend %s on http://%s/v1", c.Model, api.Addr())
	var control net.Listener
	if c.Control != "" {
		control, err = lc.Listen(ctx, "tcp", c.Control)
		if err != nil {
			return errors.Join(fmt.Errorf("lab: --control: %w", err), api.Close())
		}
		line += fmt.Sprintf(", control on http://%s/control", control.Addr())
	}
	if _, err := fmt.Fprintf(out, "%s (profile %s, tail %s, slots %d)\n", line, c.Profile, c.Tail, c.Slots); err != nil {
		err = errors.Join(err, api.Close())
		if control != nil {
			err = errors.Join(err, control.Close())
		}
		return err
	}
	return srv.Serve(ctx, api, control)
}

// server makes the backend that the flags describe.
func (c labCmd) server() (*lab.Server, error) {
	if _, err := lab.ParseProfile(c.Profile); err != nil {
		return nil, fmt.Errorf("lab: --profile: %w", err)
	}
	if _, err := lab.ParseTail(c.Tail); err != nil {
		return nil, fmt.Errorf("lab: --tail: %w", err)
	}
	srv, err := lab.New(lab.Config{
		Model: c.Model, Profile: c.Profile, Tail: c.Tail, Slots: c.Slots, Queue: c.Queue,
		Dedupe: c.Dedupe, FinishAbandoned: c.FinishAbandoned, LogSize: c.Log,
	})
	if err != nil {
		return nil, err
	}
	if c.Fault != "" {
		if err := srv.SetFault(lab.Fault{Name: c.Fault}); err != nil {
			srv.Close()
			return nil, fmt.Errorf("lab: --fault: %w", err)
		}
	}
	return srv, nil
}
