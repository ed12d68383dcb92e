package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"leeway/broker"
	"leeway/broker/flag"
	"leeway/broker/wire"
)

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
	header := cells{"FLAG", "CLASS", "VALUE", "SOURCE", "UNTIL", "BY", "REASON"}
	return printTable(out, flags, header, func(f wire.FlagView) cells {
		return cells{f.Name, orDash(f.Class), f.Value, f.Source, until(f.Source, f.UntilAtMS), orDash(f.By), orDash(f.Reason)}
	})
}

func until(source string, untilMS int64) string {
	switch {
	case source == "config":
		return "-"
	case untilMS == 0:
		return "cleared"
	}
	return instant(untilMS)
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
	fmt.Fprintf(out, "%s = %s (from %s; class %s; until %s)\n", f.Name, f.Value, f.Source, orDash(f.Class), until(f.Source, f.UntilAtMS))
	if g := a.Gate; g != nil {
		fmt.Fprintf(out, "the gate would now say: %s (slack %d ms, need %v, queue age %v)\n", g.Reason, g.SlackMS, g.NeedMS, g.QueueAgeMS)
		return
	}
	fmt.Fprintln(out, "the gate cannot say now: see /readyz")
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
	header := cells{"WHEN", "FLAG", "CLASS", "FROM", "TO", "BY", "REASON"}
	return printTable(out, changes, header, func(ch flag.Change) cells {
		return cells{instant(ch.AtMS), ch.Name, orDash(ch.Class), orDash(ch.From), orDash(ch.To), orDash(ch.By), ch.Reason}
	})
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

// poolNames are the pools in the order in which they are shown.
var poolNames = []string{"paid", "free"}

type poolsCmd struct{ apiFlags }

// Run prints pools and backends.
func (c *poolsCmd) Run(ctx context.Context, out io.Writer) error {
	p, err := c.client().Pools(ctx)
	if err != nil {
		return err
	}
	for _, pool := range poolNames {
		printPool(out, pool, p)
	}
	printBackends(out, p)
	return nil
}

func printPool(out io.Writer, pool string, p *wire.Pools) {
	v := p.Pools[pool]
	fmt.Fprintf(out, "%s: %s, %d waiting, %d running of %d slots (limit %d, %s), queue age %d ms, first byte p95 %d ms (%s)\n",
		pool, v.State, v.Waiting, v.Running, v.Capacity, v.Limit, v.LimitFrom, v.QueueAgeMS, v.FirstByteP95MS, v.FirstByte.State)
	for _, k := range v.Knees {
		state := "valid until " + k.ValidUntil
		if k.OutOfDate != "" {
			state = "OUT OF DATE: " + k.OutOfDate
		}
		fmt.Fprintf(out, "  knee of %s: %d calls at once, measured %s, %s\n", k.Backend, k.Limit, k.MeasuredOn, state)
	}
}

func printBackends(out io.Writer, p *wire.Pools) {
	header := cells{"BACKEND", "POOL", "WORKER", "STATE", "WHY", "IN FLIGHT", "P95 MS"}
	_ = printTable(out, p.Backends, header, func(b broker.BackendState) cells {
		inFlight := fmt.Sprintf("%d of %d", b.InFlight, b.MaxInFlight)
		return cells{b.Backend, b.Path, fmt.Sprintf("%.8s", b.Worker), b.State, orDash(b.Why), inFlight, b.FirstByteP95MS}
	})
}
