package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"leeway/cmd/app"
	"leeway/rehearsal/drill"
	"leeway/rehearsal/drill/report"
	"leeway/slackgate"
)

type drillCmd struct {
	Run   drillRunCmd   `cmd:"" default:"withargs" help:"Play a drill. Exit 0: every threshold held, 1: one did not, or the drill could not be run."`
	List  drillListCmd  `cmd:"" help:"List the drills, what each declares, and what cannot be run where."`
	Setup drillSetupCmd `cmd:"" help:"Print the configuration that a drill declares, for processes of its own, with the commands to start them."`
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

	deploymentFlags

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
	if err := c.checkFlags(); err != nil {
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

// play plays the plan where the flags say, as often as they say, and prints each
// run.
func (c *drillRunCmd) play(ctx context.Context, out io.Writer, p *drill.Plan) (*drill.Evidence, error) {
	e := &drill.Evidence{Format: drill.Format, Plan: p, Against: "embedded", Clock: "real", StartedAt: time.Now().UTC()}
	var once func(context.Context, *drill.Plan, uint64) (*drill.Run, error)
	switch {
	case c.Simulate:
		e.Against, e.Clock = "the simulator", "virtual"
		once = drill.Simulate
		var left string
		if e.Plan, left = p.WithoutContrast(); left != "" {
			e.LeftOut = append(e.LeftOut, left)
		}
	case c.URL != "":
		d, err := c.open(ctx)
		if err != nil {
			return nil, err
		}
		defer d.Close()
		fitted, err := d.Fit(ctx, p)
		if err != nil {
			return nil, err
		}
		e.Against, e.Plan, e.Differs, e.LeftOut = d.Client.Base, fitted.Plan, fitted.Differs, fitted.LeftOut
		once = func(ctx context.Context, p *drill.Plan, _ uint64) (*drill.Run, error) {
			return live(ctx, out, p, &d.Target)
		}
	default:
		once = func(ctx context.Context, p *drill.Plan, _ uint64) (*drill.Run, error) { return embedded(ctx, out, p) }
	}
	report.Header(out, e)
	for n := range c.Runs {
		if c.Runs > 1 {
			fmt.Fprintf(out, "run %d of %d\n", n+1, c.Runs)
		}
		r, err := once(ctx, e.Plan, uint64(n)+1)
		if err != nil {
			return nil, err
		}
		r.Judge(e.Plan)
		r.Compare(e.Plan)
		e.Runs = append(e.Runs, r)
		report.Text(out, e, r)
	}
	return e, nil
}

// embedded plays a plan against a Leeway of its own in this process.
func embedded(ctx context.Context, out io.Writer, p *drill.Plan) (*drill.Run, error) {
	app.LogRedis(slog.New(slog.DiscardHandler)) // what a fault does to connections is no news
	t, err := drill.StartEmbedded(p, false)
	if err != nil {
		return nil, err
	}
	r, err := live(ctx, out, p, &t.Target)
	return r, errors.Join(err, t.Stop(context.WithoutCancel(ctx)))
}

// live plays a plan against a target in real time.
func live(ctx context.Context, out io.Writer, p *drill.Plan, t *drill.Target) (*drill.Run, error) {
	var progress drill.Progress
	defer status(out, &progress)()
	return drill.Play(ctx, p, t, &progress)
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
				fmt.Fprint(out, eraseLine)
				return
			case <-tick.C:
				fmt.Fprint(out, lastLine(fmt.Sprintf("%4.0f s  offered %d, admitted %d, rejected %d, undecided %d, ended %d, usable %d",
					time.Since(begin).Seconds(), p.Offered.Load(), p.Admitted.Load(), p.Rejected.Load(), p.Undecided.Load(), p.Ended.Load(), p.Usable.Load())))
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
	deploymentFlags
}

// Run prints the drills, with --api those that can be played there and why the
// others cannot.
func (c *drillListCmd) Run(ctx context.Context, out io.Writer) error {
	where := func(p *drill.Plan) string {
		if why := drill.CannotSimulate(p); why != "" {
			return "embedded (no --simulate: " + why + ")"
		}
		return "embedded, --simulate"
	}
	if c.URL != "" {
		d, err := c.open(ctx)
		if err != nil {
			return err
		}
		defer d.Close()
		where = func(p *drill.Plan) string {
			if why := d.Cannots(p); len(why) > 0 {
				return "left out: " + strings.Join(why, "; ")
			}
			f, err := d.Fit(ctx, p)
			if err != nil {
				return "left out: " + strings.TrimPrefix(err.Error(), p.Name+": ")
			}
			return fmt.Sprintf("can be played there, with %d of its %d thresholds", len(f.Plan.Thresholds), len(p.Thresholds))
		}
	}
	for _, p := range drill.Plans() {
		if c.Verbose {
			report.Header(out, &drill.Evidence{Plan: p, Against: "embedded", Clock: "real"})
			continue
		}
		if _, err := fmt.Fprintf(out, "%-16s %s\n%-16s   %s\n", p.Name, p.About, "", where(p)); err != nil {
			return err
		}
	}
	return nil
}

type drillSetupCmd struct {
	Name string `arg:"" help:"The drill, as drill list has it."`
}

// Run prints the file.
func (c *drillSetupCmd) Run(out io.Writer) error {
	p, err := drill.Named(c.Name)
	if err != nil {
		return err
	}
	return p.WriteSetup(out)
}
