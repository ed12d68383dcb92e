package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"leeway/slackgate/simulate"
)

// simulateCmd plays the table of workloads through the gate in virtual time and
// prints every policy beside the best that was possible. It needs no server.
type simulateCmd struct {
	Seeds int    `default:"200" help:"Runs a row, with seeds 1 to N. Rows in which nothing is random take one."`
	JSON  bool   `name:"json" help:"One JSON object a row."`
	Only  string `placeholder:"TEXT" help:"Only the rows whose workload, service or policy contains TEXT."`
	Trace string `placeholder:"FILE" help:"Play this CSV instead of the table: columns TIMESTAMP or timestamp_ms, ContextTokens or input_length, GeneratedTokens or output_length."`
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
		if _, err := fmt.Fprintf(out, "Means over seeds 1 to N; paid 2 workers, free 1. A miss is late or dropped.\n"); err != nil {
			return err
		}
	}
	encoder := json.NewEncoder(out)
	for i := range scenarios {
		first := true
		err := scenarios[i].Rows(c.Seeds, ctx.Err, func(r simulate.Row) error {
			if c.JSON {
				return encoder.Encode(r)
			}
			if first {
				first = false
				if err := simulate.WriteHeading(out, &r); err != nil {
					return err
				}
			}
			return simulate.WriteRow(out, &r)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// scenarios are those of the table, or of the trace, that --only leaves.
func (c *simulateCmd) scenarios() ([]simulate.Scenario, error) {
	all := simulate.Scenarios()
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
