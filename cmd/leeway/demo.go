package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/broker/wire"
	"leeway/cmd/app"
	"leeway/rehearsal/corpus"
	"leeway/slackgate"
)

// demoCmd runs the main job from end to end: real documents go over HTTP to
// the API, through the gate, the queues and both pools, to lab backends over
// TCP, and come back as summaries.
type demoCmd struct {
	Rate   int            `default:"8" help:"Documents submitted a second."`
	Policy slackgate.Rule `default:"predictive" help:"predictive or seed."`
}

// demoLimit bounds the demo, whatever happens.
const demoLimit = 2 * time.Minute

// doneJob is a submission and what became of it.
type doneJob struct {
	doc     corpus.Document
	verdict *wire.Verdict
	view    *broker.View // nil for a refused one
}

// Run exits non-zero when something that must hold does not.
func (d *demoCmd) Run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, demoLimit)
	defer cancel()
	cfg := config.Default()
	cfg.Listen, cfg.MetricsListen, cfg.WorkerMetricsListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	cfg.Gate.Policy = d.Policy
	if err := cfg.Complete(); err != nil {
		return err
	}
	e, err := app.StartEmbedded(app.Options{Config: cfg, Log: app.Logger(io.Discard, slog.LevelError)})
	if err != nil {
		return err
	}
	r := &demoRun{
		out: out, start: time.Now(), docs: corpus.Documents(),
		api: &client.Client{Base: "http://" + e.Addr()}, metrics: "http://" + e.MetricsAddr() + "/metrics",
	}
	r.header(cfg, d.Rate)
	err = r.run(ctx, time.Second/time.Duration(max(d.Rate, 1)))
	if err == nil {
		r.summaries()
		err = r.report(ctx, cfg.Gate.Policy)
	}
	return errors.Join(err, e.Stop(context.WithoutCancel(ctx)))
}

type demoRun struct {
	out     io.Writer
	start   time.Time
	docs    []corpus.Document
	api     *client.Client
	metrics string

	mu   sync.Mutex // guards jobs and out
	jobs []doneJob
}

func (r *demoRun) printf(format string, args ...any) { _, _ = fmt.Fprintf(r.out, format, args...) }

func (r *demoRun) header(cfg *config.Config, rate int) {
	class := cfg.Classes[cfg.DefaultClass]
	r.printf("Leeway demo: %s\n\n", app.Banner)
	r.printf("declared workload: %d public documents at %d/s, deadline %d ms, reserve %d ms, policy %s\n",
		len(r.docs), rate, class.DeadlineMS, *class.ReserveMS, cfg.Gate.Policy)
	r.printf("declared pools:    paid %d workers, first byte p95 %d ms; free %d worker, first byte p95 %d ms (lab values)\n\n",
		cfg.Pools.Paid.Limit, cfg.Pools.Paid.FirstByteP95MS, cfg.Pools.Free.Limit, cfg.Pools.Free.FirstByteP95MS)
	r.printf("-> a verdict, told at once; <- an outcome. Times in ms.\n")
}

// run submits on schedule, whatever the answers do, and waits for every end.
func (r *demoRun) run(ctx context.Context, every time.Duration) error {
	var wg sync.WaitGroup
	errs := make(chan error, len(r.docs)+1)
	submit := func(doc corpus.Document, deadlineMS int64) {
		wg.Go(func() {
			if err := r.one(ctx, doc, deadlineMS); err != nil {
				errs <- fmt.Errorf("%s: %w", doc.Name, err)
			}
		})
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i, doc := range r.docs {
		if i == len(r.docs)/2 {
			submit(doc, 1500) // arrives with less than its reserve: booked as a miss on path reject
		}
		submit(doc, 0)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	wg.Wait()
	close(errs)
	return <-errs
}

func (r *demoRun) one(ctx context.Context, doc corpus.Document, deadlineMS int64) error {
	v, err := r.offer(ctx, &client.Job{Text: doc.Text, DeadlineMS: deadlineMS, Metadata: map[string]string{"document": doc.Name}})
	if err != nil {
		return err
	}
	r.verdictLine(doc, v)
	job := doneJob{doc: doc, verdict: v}
	if v.Path != slackgate.Reject {
		if job.view, err = r.api.Wait(ctx, v.JobID); err != nil {
			return err
		}
		r.outcomeLine(doc, job.view)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.jobs = append(r.jobs, job)
	return nil
}

// offerTries is how often a gate that cannot say (503) is asked again.
const offerTries = 5

// offer submits a document as a sensible producer does: a refusal is an
// answer, "cannot say now" is asked again a little later.
func (r *demoRun) offer(ctx context.Context, job *client.Job) (*wire.Verdict, error) {
	for try := 1; ; try++ {
		v, err := r.api.Submit(ctx, job)
		var refused *wire.Problem
		switch {
		case err == nil:
			return v, nil
		case !errors.As(err, &refused) || refused.Verdict == nil:
			return nil, err
		case !refused.Verdict.Reason.Unavailable():
			return refused.Verdict, nil
		case try == offerTries:
			return nil, err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (r *demoRun) at() float64 { return time.Since(r.start).Seconds() }

func (r *demoRun) verdictLine(doc corpus.Document, v *wire.Verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	path := v.Path
	if path == slackgate.Reject {
		path = slackgate.Paid
		if _, asked := v.NeedMS.Of(slackgate.Free); asked {
			path = slackgate.Free
		}
	}
	need, _ := v.NeedMS.Of(path)
	age, _ := v.QueueAgeMS.Of(path)
	r.printf("%6.2fs -> %-17s slack %5d  need %5d  queue age %5d  predicted wait %5d  %s\n",
		r.at(), v.Reason, v.SlackMS, need, age, v.PredictedWaitMS, short(doc.Name))
}

func (r *demoRun) outcomeLine(doc corpus.Document, v *broker.View) {
	r.mu.Lock()
	defer r.mu.Unlock()
	firstByte := int64(-1)
	if v.FirstByteMS != nil {
		firstByte = *v.FirstByteMS
	}
	r.printf("%6.2fs <- %-4s %-12s waited %5d  first byte %5d  in all %5d of %5d       %s\n",
		r.at(), v.Path, v.Outcome, v.QueueWaitMS, firstByte, v.ElapsedMS, v.DeadlineAtMS-v.AcceptedMS, short(doc.Name))
}

func short(name string) string {
	const most = 40
	if len(name) > most {
		return name[:most-3] + "..."
	}
	return name
}

// summaries shows two answers.
func (r *demoRun) summaries() {
	shown := 0
	for _, j := range r.jobs {
		if j.view == nil || j.view.Outcome != broker.OutcomeUsable || shown == 2 {
			continue
		}
		shown++
		r.printf("\nsummary of %s (%s, by %s):\n%s\n", j.doc.Name, j.doc.Licence, j.view.Backend, j.view.Answer)
	}
}
