package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"leeway/rehearsal/simulate"
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
			emit := rowsTo(out, c.JSON, simulate.WriteShardHeading, simulate.WriteShardRow)
			err = scenarios[i].ShardRows(c.Seeds, c.shardings(), ctx.Err, emit)
		} else {
			emit := rowsTo(out, c.JSON, simulate.WriteHeading, simulate.WriteRow)
			err = scenarios[i].Rows(c.Seeds, ctx.Err, emit)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rowsTo prints the rows of one scenario as JSON, or as text under a heading.
func rowsTo[R any](out io.Writer, asJSON bool, heading, row func(io.Writer, *R) error) func(R) error {
	first := true
	return func(r R) error {
		if asJSON {
			return json.NewEncoder(out).Encode(r)
		}
		if first {
			first = false
			if err := heading(out, &r); err != nil {
				return err
			}
		}
		return row(out, &r)
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
	all := simulate.Scenarios()
	if len(c.Shards) > 0 {
		all = simulate.ShardScenarios()
	}
	if c.Trace != "" {
		doc, err := readTrace(c.Trace)
		if err != nil {
			return nil, err
		}
		trace, err := simulate.ParseTrace(doc)
		if err != nil {
			return nil, err
		}
		all = simulate.TraceScenarios(filepath.Base(c.Trace), trace)
		if len(c.Shards) > 0 {
			all = simulate.TraceShardScenarios(filepath.Base(c.Trace), trace)
		}
	}
	var kept []simulate.Scenario
	for _, s := range all {
		if c.Only != "" && !strings.Contains(s.Name(), c.Only) {
			var policies []simulate.Policy
			for _, p := range s.Policies {
				if strings.Contains(p.Name, c.Only) {
					policies = append(policies, p)
				}
			}
			s.Policies = policies
		}
		if len(s.Policies) > 0 {
			kept = append(kept, s)
		}
	}
	return kept, nil
}

// readTrace reads at most one byte more than the parser takes.
func readTrace(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, simulate.MaxTraceBytes+1))
}
