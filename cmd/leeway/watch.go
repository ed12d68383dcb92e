package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"leeway/broker/wire"
)

type watchCmd struct {
	apiFlags
	Every time.Duration `default:"1s" help:"How often to look; at least 100ms."`
	Count int           `help:"Look that many times; until interrupted, if left out."`
}

// Run shows pools and backends again and again: in place on a terminal, one
// line a pool elsewhere. Once it has shown something, it stays through an API
// that is away.
func (c *watchCmd) Run(ctx context.Context, out io.Writer) error {
	live := terminal(out)
	tick := time.NewTicker(max(c.Every, 100*time.Millisecond))
	defer tick.Stop()
	for n := 1; ; n++ {
		p, err := c.client().Pools(ctx)
		switch {
		case ctx.Err() != nil:
			return nil // interrupted
		case err != nil && n == 1:
			return err
		case err != nil && live:
			fmt.Fprint(out, home+lastLine(printable("not answered: "+err.Error())))
		case err != nil:
			fmt.Fprintf(out, "not answered: %v\n", err)
		case live:
			fmt.Fprint(out, inPlace(func(w io.Writer) { printScreen(w, p) }))
		default:
			for _, pool := range poolNames {
				fmt.Fprint(out, instant(p.NowMS), " ")
				printPool(out, pool, p)
			}
		}
		if n == c.Count {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// inPlace is a screen drawn over the last one, without clearing it first, which
// flickers. Lines are cut off at the edge.
func inPlace(draw func(io.Writer)) string {
	var text strings.Builder
	draw(&text)
	return home + wrapOff + strings.ReplaceAll(printable(text.String()), "\n", eraseRight+"\n") + eraseBelow + wrapOn
}

func printScreen(out io.Writer, p *wire.Pools) {
	fmt.Fprintf(out, "%s   (interrupt to leave)\n\n", instant(p.NowMS))
	header := cells{"POOL", "STATE", "WAITING", "RUNNING", "SLOTS", "QUEUE AGE MS", "FIRST BYTE P95 MS", "HOLD P95 MS"}
	_ = printTable(out, poolNames, header, func(pool string) cells {
		v := p.Pools[pool]
		return cells{pool, v.State, v.Waiting, v.Running, v.Capacity, v.QueueAgeMS, v.FirstByteP95MS, v.Hold.P95MS}
	})
	fmt.Fprintln(out)
	printBackends(out, p)
}
