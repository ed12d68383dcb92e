package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/mattn/go-isatty"

	"leeway/broker/client"
)

type watchCmd struct {
	apiFlags
	Every time.Duration `default:"1s" help:"How often to look; at least 100ms."`
	Count int           `help:"Look that many times; until interrupted, if left out."`
}

// terminal reports whether a writer is one.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// clearScreen puts the cursor at the top and clears what is below.
const clearScreen = "\x1b[H\x1b[2J"

// Run shows pools and backends again and again: in place on a terminal, one
// line a pool elsewhere.
func (c *watchCmd) Run(ctx context.Context, out io.Writer) error {
	live := terminal(out)
	tick := time.NewTicker(max(c.Every, 100*time.Millisecond))
	defer tick.Stop()
	for n := 1; ; n++ {
		p, err := c.client().Pools(ctx)
		switch {
		case ctx.Err() != nil:
			return nil // interrupted
		case err != nil:
			return err
		case live:
			fmt.Fprint(out, clearScreen)
			printTable(out, p)
		default:
			at := time.UnixMilli(p.NowMS).UTC().Format(time.RFC3339)
			for _, pool := range []string{"paid", "free"} {
				fmt.Fprint(out, at, " ")
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

func printTable(out io.Writer, p *client.Pools) {
	fmt.Fprintf(out, "%s   (interrupt to leave)\n\n", time.UnixMilli(p.NowMS).UTC().Format(time.RFC3339))
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "POOL\tSTATE\tWAITING\tRUNNING\tSLOTS\tQUEUE AGE MS\tFIRST BYTE P95 MS\tHOLD P95 MS")
	for _, pool := range []string{"paid", "free"} {
		v := p.Pools[pool]
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", pool, v.State, v.Waiting, v.Running, v.Capacity, v.QueueAgeMS, v.FirstByteP95MS, v.Hold.P95MS)
	}
	_ = w.Flush()
	fmt.Fprintln(out)
	printBackends(out, p)
}
