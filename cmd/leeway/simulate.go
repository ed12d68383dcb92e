package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"leeway/rehearsal/simulate"
	"leeway/rehearsal/trace"
	"leeway/slackgate"
)

// simulateCmd plays the table of workloads through the gate in virtual time and
// prints every policy beside the best that was possible. It needs no server.
type simulateCmd struct {
	Seeds int    `default:"200" help:"Runs a row, with seeds 1 to N. Rows in which nothing is random take one."`
	JSON  bool   `name:"json" help:"One JSON object a row."`
	Only  string `placeholder:"TEXT" help:"Only the rows whose workload, service or policy contains TEXT."`
	Trace string `placeholder:"FILE" help:"Play this CSV instead of the table: columns TIMESTAMP or timestamp_ms, ContextTokens or input_length, GeneratedTokens or output_length."`

	Shards  []int         `placeholder:"N,..." help:"Instead of the table, split pools of 32 paid and 16 free workers into so many shards and print how close their gates stay to one gate. Use few --seeds: a run takes a second."`
	Choices []int         `default:"2" placeholder:"1,2" help:"With --shards: a job goes to the better of 2 shards taken at random, or to 1."`
	ViewAge time.Duration `name:"view-age" default:"0s" help:"With --shards: how old the view may be by which two shards are compared."`
}

// maxSeeds bounds a run to minutes.
const maxSeeds = 100_000

// Run prints the table on out as it is worked out.
func (c *simulateCmd) Run(ctx context.Context, out io.Writer) error {
	if c.Seeds < 1 || c.Seeds > maxSeeds {
		return fmt.Errorf("--seeds must be from 1 to %d", maxSeeds)
	}
	scenarios, err := c.scenarios()
	if err != nil {
		return err
	}
	if len(scenarios) == 0 {
		return fmt.Errorf("no row contains %.60q", c.Only)
	}
	if !c.JSON {
		workers := simulate.Workers
		if len(c.Shards) > 0 {
			workers = simulate.WideWorkers
		}
		if _, err := fmt.Fprintf(out, "Means over seeds 1 to N; paid %d workers, free %d. A miss is late or dropped.\n",
			workers[slackgate.Paid], workers[slackgate.Free]); err != nil {
			return err
		}
	}
	for i := range scenarios {
		var err error
		if len(c.Shards) > 0 {
			err = scenarios[i].ShardRows(c.Seeds, c.shardings(), ctx.Err, rowsTo[simulate.ShardRow](out, c.JSON))
		} else {
			err = scenarios[i].Rows(c.Seeds, ctx.Err, rowsTo[simulate.Row](out, c.JSON))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// row is one of a table: its first row says what stands above it.
type row interface {
	Heading() string
	Lines() string
}

// rowsTo prints the rows of one scenario as JSON, or as text under a heading.
func rowsTo[R row](out io.Writer, asJSON bool) func(R) error {
	first := true
	return func(r R) error {
		if asJSON {
			return json.NewEncoder(out).Encode(r)
		}
		text := r.Lines()
		if first {
			text = r.Heading() + text
		}
		first = false
		_, err := io.WriteString(out, text)
		return err
	}
}

// shardings are those asked for. One shard leaves nothing to choose and is
// played once.
func (c *simulateCmd) shardings() []simulate.Sharding {
	var all []simulate.Sharding
	for _, n := range c.Shards {
		for _, choices := range c.Choices {
			all = append(all, simulate.Sharding{Shards: n, Choices: choices, ViewAgeMS: c.ViewAge.Milliseconds()})
			if n == 1 {
				break
			}
		}
	}
	return all
}

// scenarios are those of the table, of the shards, or of the trace, that --only
// leaves.
func (c *simulateCmd) scenarios() ([]simulate.Scenario, error) {
	all, ofTrace := simulate.Scenarios, simulate.TraceScenarios
	if len(c.Shards) > 0 {
		all, ofTrace = simulate.ShardScenarios, simulate.TraceShardScenarios
	}
	if c.Trace == "" {
		return c.only(all()), nil
	}
	doc, err := readTrace(c.Trace)
	if err != nil {
		return nil, err
	}
	requests, err := trace.Parse(doc)
	if err != nil {
		return nil, err
	}
	return c.only(ofTrace(filepath.Base(c.Trace), requests)), nil
}

// only leaves the scenarios, or those of their policies, that --only names.
func (c *simulateCmd) only(all []simulate.Scenario) (kept []simulate.Scenario) {
	for _, s := range all {
		if !strings.Contains(s.Name(), c.Only) {
			s.Policies = slices.DeleteFunc(slices.Clone(s.Policies), func(p simulate.Policy) bool { return !strings.Contains(p.Name, c.Only) })
		}
		if len(s.Policies) > 0 {
			kept = append(kept, s)
		}
	}
	return kept
}

// readTrace reads at most one byte more than the parser takes.
func readTrace(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, trace.MaxBytes+1))
}
