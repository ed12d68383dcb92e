package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/user"
	"strings"
	"text/tabwriter"
	"time"

	"leeway/broker/client"
	"leeway/broker/flag"
	"leeway/broker/wire"
)

// apiFlags say which API to talk to.
type apiFlags struct {
	API string `env:"LEEWAY_API" default:"http://127.0.0.1:8080" help:"Address of the admission API."`
	Key string `env:"LEEWAY_KEY" help:"Key, where the API wants one."`
}

func (f *apiFlags) client() *client.Client {
	return &client.Client{Base: strings.TrimSuffix(f.API, "/"), Key: f.Key}
}

// words are what an operator says of an action.
type words struct {
	Reason string `required:"" help:"Why: it stands in the audit trail."`
	By     string `help:"Who. Defaults to the user of this machine."`
}

func (w *words) by() string {
	if w.By != "" {
		return w.By
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}

type flagsCmd struct {
	List  flagsListCmd  `cmd:"" default:"1" help:"Show every flag: value, source, who, why, until."`
	Set   flagsSetCmd   `cmd:"" help:"Set a flag: it holds for the next decision on every replica."`
	Clear flagsClearCmd `cmd:"" help:"Return a flag to its value from configuration."`
	Audit flagsAuditCmd `cmd:"" help:"Show who changed what, and why."`
}

type flagsListCmd struct{ apiFlags }

// Run prints the flags.
func (c *flagsListCmd) Run(ctx context.Context, out io.Writer) error {
	flags, err := c.client().Flags(ctx)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "FLAG\tCLASS\tVALUE\tSOURCE\tUNTIL\tBY\tREASON")
	for i := range flags {
		f := &flags[i]
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.Name, orDash(f.Class), f.Value, f.Source, until(f.Source, f.UntilMS), orDash(f.By), orDash(f.Reason))
	}
	return w.Flush()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func until(source string, untilMS int64) string {
	switch {
	case source == "config":
		return "-"
	case untilMS == 0:
		return "cleared"
	}
	return time.UnixMilli(untilMS).UTC().Format(time.RFC3339)
}

type flagsSetCmd struct {
	apiFlags
	words
	Assignment string        `arg:"" placeholder:"NAME=VALUE" help:"For example ADMIT_FREE=0."`
	For        time.Duration `help:"How long it stays, for example 30m. Until it is cleared, if left out."`
	Class      string        `help:"For this class alone."`
}

// Run sets the flag and prints the new state and what the gate says now.
func (c *flagsSetCmd) Run(ctx context.Context, out io.Writer) error {
	name, value, ok := strings.Cut(c.Assignment, "=")
	if !ok {
		return errors.New("want NAME=VALUE, for example ADMIT_FREE=0")
	}
	a, err := c.client().SetFlag(ctx, flag.Name(name), &wire.FlagChange{
		Value: value, Reason: c.Reason, By: c.by(), Class: c.Class, ForMS: c.For.Milliseconds(),
	})
	if err != nil {
		return err
	}
	printFlag(out, a)
	return nil
}

type flagsClearCmd struct {
	apiFlags
	words
	Name  string `arg:"" help:"For example ADMIT_FREE."`
	Class string `help:"The value of this class alone."`
}

// Run clears the flag and prints the new state.
func (c *flagsClearCmd) Run(ctx context.Context, out io.Writer) error {
	a, err := c.client().ClearFlag(ctx, flag.Name(c.Name), c.Class, c.by(), c.Reason)
	if err != nil {
		return err
	}
	printFlag(out, a)
	return nil
}

func printFlag(out io.Writer, a *wire.FlagAnswer) {
	f := &a.Flag
	_, _ = fmt.Fprintf(out, "%s = %s (from %s; class %s; until %s)\n", f.Name, f.Value, f.Source, orDash(f.Class), until(f.Source, f.UntilMS))
	if g := a.Gate; g != nil {
		_, _ = fmt.Fprintf(out, "the gate would now say: %s (slack %d ms, need %v, queue age %v)\n", g.Reason, g.SlackMS, g.NeedMS, g.QueueAgeMS)
		return
	}
	_, _ = fmt.Fprintln(out, "the gate cannot say now: see /readyz")
}

type flagsAuditCmd struct {
	apiFlags
	Limit int `default:"20" help:"How many changes."`
}

// Run prints the newest changes.
func (c *flagsAuditCmd) Run(ctx context.Context, out io.Writer) error {
	changes, err := c.client().Audit(ctx, c.Limit)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "WHEN\tFLAG\tCLASS\tFROM\tTO\tBY\tREASON")
	for i := range changes {
		ch := &changes[i]
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", time.UnixMilli(ch.AtMS).UTC().Format(time.RFC3339),
			ch.Name, orDash(ch.Class), orDash(ch.From), orDash(ch.To), orDash(ch.By), ch.Reason)
	}
	return w.Flush()
}

type drainCmd struct {
	apiFlags
	words
	Pool    string        `arg:"" enum:"free,paid,all" help:"free, paid or all. all takes free before paid."`
	Backend string        `help:"Drain this backend of the pool alone."`
	Wait    bool          `help:"Show the count falling until the pool is drained."`
	Force   bool          `help:"Drain paid although free is not drained."`
	Timeout time.Duration `default:"30m" help:"How long to wait at most."`
}

// Run drains, and with Wait returns once the pool is empty.
func (c *drainCmd) Run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	pools := []string{c.Pool}
	if c.Pool == "all" {
		pools = []string{"free", "paid"}
		c.Wait = true // free must be empty before paid may be drained
	}
	for _, pool := range pools {
		p, err := c.client().Drain(ctx, pool, c.Backend, &wire.Order{Reason: c.Reason, By: c.by(), Force: c.Force})
		if err != nil {
			return err
		}
		if c.Backend != "" {
			printBackends(out, p)
			continue
		}
		printPool(out, pool, p)
		if c.Wait {
			if err := c.wait(ctx, out, pool); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *drainCmd) wait(ctx context.Context, out io.Writer, pool string) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last := -1
	for {
		p, err := c.client().Pools(ctx)
		if err != nil {
			return err
		}
		v := p.Pools[pool]
		if n := v.Waiting + v.Running; n != last {
			printPool(out, pool, p)
			last = n
		}
		if v.State == wire.PoolDrained {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s is not drained yet: %d waiting, %d running", pool, v.Waiting, v.Running)
		}
	}
}

type resumeCmd struct {
	apiFlags
	words
	Pool    string `arg:"" enum:"free,paid" help:"free or paid."`
	Backend string `help:"Put this backend of the pool back alone."`
}

// Run opens what drain has closed.
func (c *resumeCmd) Run(ctx context.Context, out io.Writer) error {
	p, err := c.client().Resume(ctx, c.Pool, c.Backend, &wire.Order{Reason: c.Reason, By: c.by()})
	if err != nil {
		return err
	}
	if c.Backend != "" {
		printBackends(out, p)
		return nil
	}
	printPool(out, c.Pool, p)
	return nil
}

type poolsCmd struct{ apiFlags }

// Run prints pools and backends.
func (c *poolsCmd) Run(ctx context.Context, out io.Writer) error {
	p, err := c.client().Pools(ctx)
	if err != nil {
		return err
	}
	for _, pool := range []string{"paid", "free"} {
		printPool(out, pool, p)
	}
	printBackends(out, p)
	return nil
}

func printPool(out io.Writer, pool string, p *wire.Pools) {
	v := p.Pools[pool]
	_, _ = fmt.Fprintf(out, "%s: %s, %d waiting, %d running of %d slots (limit %d, %s), queue age %d ms, first byte p95 %d ms (%s)\n",
		pool, v.State, v.Waiting, v.Running, v.Capacity, v.Limit, v.LimitFrom, v.QueueAgeMS, v.FirstByteP95MS, v.FirstByte.State)
	for _, k := range v.Knees {
		state := "valid until " + k.ValidUntil
		if k.OutOfDate != "" {
			state = "OUT OF DATE: " + k.OutOfDate
		}
		_, _ = fmt.Fprintf(out, "  knee of %s: %d calls at once, measured %s, %s\n", k.Backend, k.Limit, k.MeasuredOn, state)
	}
}

func printBackends(out io.Writer, p *wire.Pools) {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "BACKEND\tPOOL\tWORKER\tSTATE\tWHY\tIN FLIGHT\tP95 MS")
	for i := range p.Backends {
		b := &p.Backends[i]
		_, _ = fmt.Fprintf(w, "%s\t%s\t%.8s\t%s\t%s\t%d of %d\t%d\n", b.Backend, b.Path, b.Worker, b.State, orDash(b.Why), b.InFlight, b.MaxInFlight, b.FirstByteP95MS)
	}
	_ = w.Flush()
}
