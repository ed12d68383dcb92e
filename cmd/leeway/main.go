// Command leeway is the command-line tool for producers and on-call.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

type cli struct {
	Demo        demoCmd        `cmd:"" help:"Run the whole of Leeway on real documents, in this process, for about 20 seconds."`
	Gate        gateCmd        `cmd:"" help:"Ask the article's gate about one snapshot."`
	Lab         labCmd         `cmd:"" help:"Run a lab backend: a stand-in for a model, with faults on demand."`
	Knee        kneeCmd        `cmd:"" help:"Measure how many calls at once a backend takes before it gets no faster. Exit 1: no knee up to the greatest load."`
	Simulate    simulateCmd    `cmd:"" help:"Hold the policies against the best possible schedule, in virtual time."`
	Backends    backendsCmd    `cmd:"" help:"The backends of a configuration: test."`
	Submit      submitCmd      `cmd:"" help:"Submit documents and bring back their answers. Exit 0: all usable, 1: failed, 3: missed, 4: refused."`
	Batches     batchesCmd     `cmd:"" help:"Batches: list, show, lines, results, cancel."`
	Jobs        jobsCmd        `cmd:"" help:"Jobs: list, show, cancel, delete."`
	Watch       watchCmd       `cmd:"" help:"Watch pools and backends."`
	Drill       drillCmd       `cmd:"" help:"Rehearse a fault or a load, and report what became of every job."`
	Flags       flagsCmd       `cmd:"" help:"The on-call levers: show, set, clear, audit."`
	Drain       drainCmd       `cmd:"" help:"Close a pool, or one backend, to newcomers, and let it run empty."`
	Resume      resumeCmd      `cmd:"" help:"Open what drain has closed."`
	Pools       poolsCmd       `cmd:"" help:"Show pools and backends."`
	Budgets     budgetsCmd     `cmd:"" help:"Show the budgets and how far they are used today."`
	Ledgers     ledgersCmd     `cmd:"" help:"The two books: spend, misses, both side by side, and whether they balance."`
	Healthcheck healthcheckCmd `cmd:"" help:"Exit 0 if a URL answers 2xx: for container health checks."`
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// exitError ends the command with a code of its own, and nothing more to say.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit %d", int(e)) }

func run(args []string, stdout, stderr io.Writer) int {
	var c cli
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	parser := kong.Must(&c, kong.Name("leeway"),
		kong.Description("Leeway admits summary jobs that can still be answered in time, and refuses the rest at once."),
		kong.Writers(stdout, stderr),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.BindTo(stdout, (*io.Writer)(nil)),
	)
	k, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintln(stderr, "leeway:", err)
		return 2
	}
	if err = k.Run(); err == nil {
		return 0
	}
	if exit, ok := errors.AsType[exitError](err); ok {
		return int(exit)
	}
	fmt.Fprintln(stderr, "leeway:", err)
	if next := advice(k.Command(), err); next != "" {
		fmt.Fprintln(stderr, "  "+next)
	}
	return 1
}
