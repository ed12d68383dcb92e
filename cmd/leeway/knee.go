package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"time"

	"leeway/broker/config"
	"leeway/cmd/app"
	"leeway/workers/backend"
	"leeway/workers/knee"
)

// kneeCmd measures a backend's knee.
type kneeCmd struct {
	Config  string `env:"LEEWAY_CONFIG" placeholder:"FILE" help:"Configuration that knows the backend. The knee goes into the knee_file it names."`
	Backend string `placeholder:"NAME" help:"Backend of the configuration to measure."`

	URL      string `placeholder:"URL" help:"Measure this address instead, such as http://127.0.0.1:8001/v1."`
	Model    string `placeholder:"MODEL" help:"With --url: the model."`
	Protocol string `default:"openai" enum:"openai,anthropic,ollama" help:"With --url: openai, anthropic or ollama."`

	To        int           `default:"64" help:"The greatest load, in calls at once; the loads are 1, 2, 4 and so on."`
	Repeats   int           `default:"3" help:"How often each load is measured."`
	Calls     int           `default:"8" help:"Calls of a repeat for each call in flight, after the warm-up; at least 16 in all."`
	Tokens    int           `default:"64" help:"Longest answer asked for. Yours should be as long as your jobs' answers."`
	ValidDays int           `default:"90" help:"How long the knee is believed."`
	Timeout   time.Duration `default:"1m" help:"Bound of one call."`
	Remote    bool          `help:"Measure a backend that is not on this machine. It costs what it generates."`
	Out       string        `placeholder:"FILE" help:"Knee file to write to. Defaults to the configuration's knee_file."`
	JSON      bool          `name:"json" help:"Print the entry of the knee file instead."`
}

// kneeText is what the calls ask to be summarised: long enough for an answer of
// some length.
const kneeText = `A queue that accepts everything promises everything. The caller learns at the deadline, when the work is done and
nobody reads it. A gate at the door compares what a job would have to wait with the time it has left, and refuses at once
what cannot finish. A refusal costs milliseconds; a late answer costs a generation. The limit of what runs at once is no
preference but a measurement: add callers until the backend stops getting faster, and write the number down with its date,
because another model or another machine has another one. Past that number nobody buys throughput, only queue. Spend and
misses are kept in two books, because a cheap night can be one in which every promise was broken. Success is not an answer;
it is an answer in time, whole, not empty, at a known price. Reserve time for the backend that would be failed over to, or
failing over is decoration that runs after the deadline it was to protect.`

// target is the backend to measure, from the configuration or the flags.
func (c *kneeCmd) target() (b *config.Backend, out string, err error) {
	switch {
	case c.URL != "" && c.Backend != "":
		return nil, "", errors.New("--backend and --url name two backends: leave one out")
	case c.URL != "" && c.Model == "":
		return nil, "", errors.New("--url needs --model")
	case c.URL != "":
		return &config.Backend{Name: "backend", Protocol: c.Protocol, URL: c.URL, Model: c.Model}, c.Out, nil
	case c.Config == "" || c.Backend == "":
		return nil, "", errors.New("say what to measure: --config and --backend, or --url and --model")
	}
	cfg, err := config.LoadToMeasure(c.Config, os.Environ())
	if err != nil {
		return nil, "", err
	}
	if b = cfg.Backend(c.Backend); b == nil {
		return nil, "", fmt.Errorf("--backend: %.64q is not in %s", c.Backend, c.Config)
	}
	if c.Out == "" {
		return b, cfg.KneePath(c.Config), nil
	}
	return b, c.Out, nil
}

// Run measures, prints and stores.
func (c *kneeCmd) Run(ctx context.Context, out io.Writer) error {
	b, file, err := c.target()
	if err != nil {
		return err
	}
	u, err := url.Parse(b.URL)
	if err != nil {
		return errors.New("--url: is not a URL")
	}
	if !c.Remote && !config.LoopbackHost(u.Hostname()) {
		return fmt.Errorf("%s is not on this machine: a measurement loads it and costs what it generates; --remote does it anyway", u.Host)
	}
	if c.ValidDays < 1 || c.ValidDays > 3650 {
		return fmt.Errorf("--valid-days: %d is outside 1..3650", c.ValidDays)
	}
	if c.Tokens < 1 || c.Tokens > 100_000 {
		return fmt.Errorf("--tokens: %d is outside 1..100000", c.Tokens)
	}
	text := out
	if c.JSON {
		text = io.Discard
	}
	plan := knee.Plan{
		To: c.To, Repeats: c.Repeats, Calls: c.Calls, CallTimeout: c.Timeout,
		Request: backend.Request{
			System: "Summarise the text.", Text: kneeText, MaxOutputTokens: c.Tokens, Options: backend.Options(b.Options.Options),
		},
	}
	if err := plan.Validate(); err != nil {
		return err
	}
	client, err := app.NewClient(b, nil)
	if err != nil {
		return err
	}
	defer client.Close()
	report := &kneeReport{out: text, repeated: plan.Repeats > 1}
	plan.Measured = report.step
	report.header(b, &plan)
	steps, r, err := knee.Measure(ctx, client, plan)
	if err != nil {
		return err
	}
	if !r.Reached {
		fmt.Fprintf(text, "no knee up to %d calls at once: the backend still gets faster there. Measure on with a greater --to.\n", r.Limit)
		return exitError(1)
	}
	entry, err := c.entry(b, steps, &r)
	if err != nil {
		return err
	}
	report.result(&entry, b)
	if c.JSON {
		if err := printJSON(out, entry); err != nil {
			return err
		}
	}
	if file == "" {
		return nil
	}
	known, err := config.ReadKnees(file)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	known.Put(&entry)
	if err := known.Write(file); err != nil {
		return err
	}
	fmt.Fprintf(text, "written to %s; a reload takes it over\n", file)
	return nil
}

// entry is what is stored of a measurement.
func (c *kneeCmd) entry(b *config.Backend, steps []knee.Step, r *knee.Result) (config.MeasuredKnee, error) {
	e := config.MeasuredKnee{
		Backend: b.Name, Model: b.Model,
		Knee: config.Knee{Limit: r.Limit, MeasuredOn: time.Now().UTC().Format(time.DateOnly), ValidDays: c.ValidDays, Fingerprint: b.Fingerprint()},
	}
	for i := range steps {
		if steps[i].Concurrent == r.Limit {
			e.FirstByteP95MS = int64(math.Ceil(steps[i].FirstByteP95MS.Median))
		}
	}
	var err error
	e.Steps, err = json.Marshal(steps)
	return e, err
}

// kneeReport prints a measurement as it is made.
type kneeReport struct {
	out      io.Writer
	repeated bool // so that there is a spread
	steps    []knee.Step
}

func (k *kneeReport) header(b *config.Backend, p *knee.Plan) {
	fmt.Fprintf(k.out, "backend %s: %s, model %s, at %s, fingerprint %s\n", b.Name, b.Protocol, b.Model, b.URL, b.Fingerprint())
	fmt.Fprintf(k.out, "loads of %v calls at once, each measured %d times after a warm-up, in an open loop; answers of at most %d tokens;\n"+
		"at most %d calls, fewer once %d loads do not stand. In brackets: least and greatest of the repeats.\n\n",
		p.Loads(), p.Repeats, p.Request.MaxOutputTokens, p.MostCalls(), 2)
	fmt.Fprintf(k.out, "%7s  %-26s %-14s %-28s %-14s %s\n", "at once", "tokens/s", "a doubling", "first byte p95 ms", "a doubling", "")
}

// step prints one load.
func (k *kneeReport) step(s knee.Step) {
	k.steps = append(k.steps, s)
	gain, climb, verdict := "", "", ""
	if n := len(k.steps); n > 1 {
		if r, err := knee.Find(k.steps); err == nil {
			before, c := &k.steps[n-2], r.Changes[n-2]
			gain = fmt.Sprintf("%+.0f %%", 100*c.Gain)
			if k.repeated && s.TokensPerS.Low <= before.TokensPerS.High && before.TokensPerS.Low <= s.TokensPerS.High {
				gain = "within noise"
			}
			switch {
			case c.Climb == 0:
			case k.repeated && c.InNoise:
				climb = "within noise"
			default:
				climb = fmt.Sprintf("x %.2f", c.Climb)
			}
			if verdict = c.Beyond; verdict != "" {
				verdict = "beyond: " + verdict
			}
		}
	}
	fmt.Fprintf(k.out, "%7d  %-26s %-14s %-28s %-14s %s\n", s.Concurrent, span(s.TokensPerS), gain, span(s.FirstByteP95MS), climb, verdict)
}

func span(s knee.Spread) string { return fmt.Sprintf("%.0f (%.0f-%.0f)", s.Median, s.Low, s.High) }

// result prints the knee, and how to write it down by hand.
func (k *kneeReport) result(e *config.MeasuredKnee, b *config.Backend) {
	fmt.Fprintf(k.out, "\nknee: %d calls at once (first byte p95 there: %d ms), measured %s, believed until %s\n"+
		"in the configuration of %s:\n  knee: {limit: %d, measured_on: %s, valid_days: %d, fingerprint: %q}\n",
		e.Limit, e.FirstByteP95MS, e.MeasuredOn, e.LastDay(), b.Name, e.Limit, e.MeasuredOn, e.ValidDays, e.Fingerprint)
}
