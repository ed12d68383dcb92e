package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"leeway/cmd/internal/drill"
	"leeway/cmd/internal/drill/report"
	"leeway/slackgate"
)

type drillCmd struct {
	Run  drillRunCmd  `cmd:"" default:"withargs" help:"Play a drill. Exit 0: every threshold held, 1: one did not, or the drill could not be run."`
	List drillListCmd `cmd:"" help:"List the drills, what each declares, and what cannot be run where."`
}

// drillRunCmd plays a drill and reports on it.
type drillRunCmd struct {
	Name     string `arg:"" optional:"" help:"The drill, as drill list has it. With --compare, the second file."`
	Plan     string `placeholder:"FILE" help:"A plan of your own instead."`
	Simulate bool   `help:"In virtual time: not the processes, but the same gate in the simulator. It takes no time."`
	Runs     int    `default:"1" help:"Repeat it, 1 to 20 times, so that --compare knows the noise."`
	JSON     string `name:"json" placeholder:"FILE" help:"Write the evidence there."`
	HTML     string `name:"html" placeholder:"FILE" help:"Write a report with charts there, in one file."`
	Compare  string `placeholder:"A.json" help:"Do not drill: hold this evidence against a second file's."`

	Policy     *slackgate.Rule `help:"Another gate than the plan's: predictive or seed."`
	NoRecheck  bool            `help:"Break the drill on purpose: leave out the check before a backend is called."`
	P95Percent int             `name:"p95-percent" default:"100" help:"Break the drill on purpose: declare this part of the true p95s."`
}

// maxDrillRuns bounds --runs.
const maxDrillRuns = 20

// Run exits 1 when a threshold does not hold.
func (c *drillRunCmd) Run(ctx context.Context, out io.Writer) error {
	if c.Runs < 1 || c.Runs > maxDrillRuns {
		return fmt.Errorf("--runs must be from 1 to %d", maxDrillRuns)
	}
	if c.Compare != "" {
		return c.compare(out)
	}
	p, err := c.plan()
	if err != nil {
		return err
	}
	e, err := c.play(ctx, out, p)
	if err != nil {
		return err
	}
	if err := c.files(e); err != nil {
		return err
	}
	if !e.Passed() {
		return exitError(1)
	}
	return nil
}

// compare holds two files of evidence against each other.
func (c *drillRunCmd) compare(out io.Writer) error {
	if c.Name == "" {
		return errors.New("--compare wants two files: --compare A.json B.json")
	}
	a, err := drill.ReadEvidence(c.Compare)
	if err != nil {
		return err
	}
	b, err := drill.ReadEvidence(c.Name)
	if err != nil {
		return err
	}
	report.Compare(out, c.Compare, a, c.Name, b)
	return nil
}

// plan is the plan to play, with what the flags change in it.
func (c *drillRunCmd) plan() (*drill.Plan, error) {
	var p *drill.Plan
	var err error
	switch {
	case c.Plan != "":
		p, err = drill.ReadPlan(c.Plan)
	case c.Name == "":
		return nil, errors.New("which drill? `leeway drill list` has them")
	default:
		p, err = drill.Named(c.Name)
	}
	if err != nil {
		return nil, err
	}
	if c.Policy != nil {
		p.Policy = *c.Policy
	}
	p.RecheckOff = p.RecheckOff || c.NoRecheck
	return p, p.DeclareP95(c.P95Percent)
}

func (c *drillRunCmd) play(ctx context.Context, out io.Writer, p *drill.Plan) (*drill.Evidence, error) {
	e := &drill.Evidence{Format: drill.Format, Plan: p, Against: "embedded", Clock: "real", StartedAt: time.Now().UTC()}
	if c.Simulate {
		e.Against, e.Clock = "the simulator", "virtual"
		var left string
		if p, left = p.WithoutContrast(); left != "" {
			e.Plan, e.LeftOut = p, append(e.LeftOut, left)
		}
	}
	report.Header(out, p, e.Against, e.Clock, e.LeftOut)
	for n := range c.Runs {
		if c.Runs > 1 {
			fmt.Fprintf(out, "run %d of %d\n", n+1, c.Runs)
		}
		r, err := c.once(ctx, out, p, uint64(n)+1)
		if err != nil {
			return nil, err
		}
		r.Judge(p)
		r.Compare(p)
		e.Runs = append(e.Runs, r)
		report.Text(out, e, r)
	}
	return e, nil
}

func (c *drillRunCmd) once(ctx context.Context, out io.Writer, p *drill.Plan, seed uint64) (*drill.Run, error) {
	if c.Simulate {
		return drill.Simulate(ctx, p, seed)
	}
	t, err := drill.StartEmbedded(p, false)
	if err != nil {
		return nil, err
	}
	var progress drill.Progress
	stop := status(out, &progress)
	r, err := drill.Play(ctx, p, t, &progress)
	stop()
	return r, errors.Join(err, t.Stop(context.WithoutCancel(ctx)))
}

// status shows how a live run gets on: in place on a terminal, not at all
// elsewhere. The function that it returns ends it.
func status(out io.Writer, p *drill.Progress) func() {
	if !terminal(out) {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	begin := time.Now()
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				fmt.Fprint(out, "\r\x1b[K")
				return
			case <-tick.C:
				fmt.Fprintf(out, "\r\x1b[K%4.0f s  offered %d, admitted %d, rejected %d, undecided %d, ended %d, usable %d",
					time.Since(begin).Seconds(), p.Offered.Load(), p.Admitted.Load(), p.Rejected.Load(), p.Undecided.Load(), p.Ended.Load(), p.Usable.Load())
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// files writes what was asked for.
func (c *drillRunCmd) files(e *drill.Evidence) error {
	if c.JSON != "" {
		if err := writeFile(c.JSON, e.Write); err != nil {
			return err
		}
	}
	if c.HTML != "" {
		return writeFile(c.HTML, func(w io.Writer) error { return report.HTML(w, e) })
	}
	return nil
}

func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

type drillListCmd struct {
	Verbose bool `short:"v" help:"With all that each declares."`
}

// Run prints the drills.
func (c *drillListCmd) Run(out io.Writer) error {
	for _, p := range drill.Plans() {
		if c.Verbose {
			report.Header(out, p, "embedded", "real", nil)
			continue
		}
		where := "embedded, --simulate"
		if why := drill.CannotSimulate(p); why != "" {
			where = "embedded (no --simulate: " + why + ")"
		}
		if _, err := fmt.Fprintf(out, "%-16s %s\n%-16s   %s\n", p.Name, p.About, "", where); err != nil {
			return err
		}
	}
	return nil
}
