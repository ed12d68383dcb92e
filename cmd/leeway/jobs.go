package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"leeway/broker"
)

type jobsCmd struct {
	List   jobsListCmd   `cmd:"" default:"withargs" help:"The newest jobs."`
	Show   jobsShowCmd   `cmd:"" help:"Show a job: state, outcome, answer."`
	Cancel jobsCancelCmd `cmd:"" help:"Take back a job that has not ended."`
	Delete jobsDeleteCmd `cmd:"" help:"Delete text and answer of a job that has ended. Its ledger rows stay."`
}

type jobsListCmd struct {
	apiFlags
	listFlags
	Class   string `help:"Only this class."`
	State   string `enum:",waiting,running,done" default:"" help:"Only jobs that are waiting, running or done."`
	Outcome string `help:"Only jobs that ended so: usable, late, ..."`
}

// Run lists jobs, newest first.
func (c *jobsListCmd) Run(ctx context.Context, out io.Writer) error {
	q := c.query(map[string]string{"class": c.Class, "state": c.State, "outcome": c.Outcome})
	l, err := c.client().Jobs(ctx, q)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(out, l)
	}
	if len(l.Jobs) == 0 {
		fmt.Fprintln(out, "no such jobs among the newest: `leeway submit` makes some")
		return nil
	}
	header := cells{"JOB", "ACCEPTED", "PRODUCER", "CLASS", "PATH", "STATE", "OUTCOME", "ELAPSED MS"}
	return printTable(out, l.Jobs, header, func(v *broker.Job) cells {
		return cells{v.ID, instant(v.AcceptedAtMS), v.Producer, v.Class, v.Path, v.State, v.Outcome, v.ElapsedMS}
	})
}

type jobsShowCmd struct {
	apiFlags
	ID   string        `arg:"" help:"The job's id."`
	Wait time.Duration `help:"Wait up to this long for its end."`
	JSON bool          `help:"As the API gives it."`
}

// Run prints the job.
func (c *jobsShowCmd) Run(ctx context.Context, out io.Writer) error {
	v, err := c.client().Get(ctx, c.ID, c.Wait)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(out, v)
	}
	printJob(out, v)
	return nil
}

func printJob(out io.Writer, v *broker.Job) {
	fmt.Fprintf(out, "%s: %s, class %s, path %s\n", v.ID, v.State, v.Class, v.Path)
	fmt.Fprintf(out, "accepted %s, deadline %s, predicted wait %d ms, waited %d ms, attempts %d\n",
		instant(v.AcceptedAtMS), instant(v.DeadlineAtMS), v.Admission.PredictedWaitMS, v.QueueWaitMS, v.Attempts)
	if v.State != broker.StateDone {
		fmt.Fprintf(out, "not ended yet: `leeway jobs show --wait 1m %s` waits for it\n", v.ID)
		return
	}
	fmt.Fprintf(out, "outcome %s after %d ms", v.Outcome, v.ElapsedMS)
	if v.Backend != "" {
		fmt.Fprintf(out, " by %s", v.Backend)
	}
	if v.Model != "" {
		fmt.Fprintf(out, ", model %s", v.Model)
	}
	if v.Cause != "" {
		fmt.Fprintf(out, ", cause %s %s", v.Cause, v.Reason)
	}
	fmt.Fprintln(out)
	if v.Detail != "" {
		fmt.Fprintf(out, "the provider's words: %s\n", v.Detail)
	}
	switch {
	case v.Answer != "":
		answer := v.Answer
		if terminal(out) {
			answer = printable(answer)
		}
		fmt.Fprintf(out, "answer, kept until %s:\n%s\n", instant(v.ResultExpiresAtMS), answer)
	case v.Outcome == broker.OutcomeUsable:
		fmt.Fprintln(out, "its answer was deleted")
	}
}

type jobsCancelCmd struct {
	apiFlags
	ID string `arg:"" help:"The job's id."`
}

// Run takes the job back and says what that met.
func (c *jobsCancelCmd) Run(ctx context.Context, out io.Writer) error {
	result, err := c.client().Cancel(ctx, c.ID)
	if err != nil {
		return err
	}
	says := map[string]string{
		"cancelled": "cancelled: it was waiting, and nothing was spent",
		"running":   "its worker will cut it; what was spent is booked",
		"late":      "its deadline had passed: nothing changes",
	}
	fmt.Fprintf(out, "%s: %s\n", c.ID, says[result])
	return nil
}

type jobsDeleteCmd struct {
	apiFlags
	ID string `arg:"" help:"The job's id."`
}

// Run deletes the job's text and answer.
func (c *jobsDeleteCmd) Run(ctx context.Context, out io.Writer) error {
	if err := c.client().Delete(ctx, c.ID); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: text and answer are gone\n", c.ID)
	return nil
}
