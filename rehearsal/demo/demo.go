// Package demo runs the main job from end to end: real documents go over HTTP to
// the API, through the gate, the queues and both pools, to lab backends over
// TCP, and come back as summaries.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"leeway/broker"
	"leeway/broker/background"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/broker/wire"
	"leeway/rehearsal/corpus"
	"leeway/rehearsal/stage"
	"leeway/slackgate"
)

// Options describe a demo. All are required.
type Options struct {
	// Rate is how many documents are submitted a second.
	Rate   int
	Policy slackgate.Rule
	Out    io.Writer
	// Check prints how the ledgers balance, with each other and with the page of
	// metrics at a URL, and reports whether they do.
	Check func(ctx context.Context, out io.Writer, api *client.Client, metrics string) (bool, error)
}

// limit bounds the demo, whatever happens.
const limit = 2 * time.Minute

// Run returns an error when something that must hold does not.
func Run(ctx context.Context, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cfg := config.Default()
	cfg.Listen, cfg.MetricsListen, cfg.WorkerMetricsListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	cfg.Gate.Policy = o.Policy
	if err := cfg.Complete(); err != nil {
		return err
	}
	s, err := stage.Start(stage.Declared(cfg, nil))
	if err != nil {
		return err
	}
	r := &run{
		Options: o, start: time.Now(), docs: corpus.Documents(),
		api: s.Client(), metrics: "http://" + s.API.MetricsAddr() + "/metrics",
	}
	r.header(cfg)
	err = r.submitAll(ctx, time.Second/time.Duration(max(o.Rate, 1)))
	if err == nil {
		r.summaries()
		err = r.report(ctx)
	}
	return errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
}

// doneJob is a submission and what became of it.
type doneJob struct {
	doc     corpus.Document
	verdict *wire.Verdict
	view    *broker.Job // nil for a refused one
}

type run struct {
	Options

	start   time.Time
	docs    []corpus.Document
	api     *client.Client
	metrics string

	mu   sync.Mutex // guards jobs and Out
	jobs []doneJob
}

func (r *run) printf(format string, args ...any) { _, _ = fmt.Fprintf(r.Out, format, args...) }

func (r *run) header(cfg *config.Config) {
	class := cfg.Classes[cfg.DefaultClass]
	r.printf("Leeway demo: %s\n\n", stage.Banner)
	r.printf("declared workload: %d public documents at %d/s, deadline %d ms, reserve %d ms, policy %s\n",
		len(r.docs), r.Rate, class.DeadlineMS, *class.ReserveMS, r.Policy)
	r.printf("declared pools:    paid %d workers, first byte p95 %d ms; free %d worker, first byte p95 %d ms (lab values)\n\n",
		cfg.Pools.Paid.Limit, cfg.Pools.Paid.FirstByteP95MS, cfg.Pools.Free.Limit, cfg.Pools.Free.FirstByteP95MS)
	r.printf("-> a verdict, told at once; <- an outcome. Times in ms.\n")
}

// submitAll submits on schedule, whatever the answers do, and waits for every end.
func (r *run) submitAll(ctx context.Context, every time.Duration) error {
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

func (r *run) one(ctx context.Context, doc corpus.Document, deadlineMS int64) error {
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
func (r *run) offer(ctx context.Context, job *client.Job) (*wire.Verdict, error) {
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
		if err := background.Sleep(ctx, time.Second); err != nil {
			return nil, err
		}
	}
}

func (r *run) at() float64 { return time.Since(r.start).Seconds() }

func (r *run) verdictLine(doc corpus.Document, v *wire.Verdict) {
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

func (r *run) outcomeLine(doc corpus.Document, v *broker.Job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	firstByte := int64(-1)
	if v.FirstByteMS != nil {
		firstByte = *v.FirstByteMS
	}
	r.printf("%6.2fs <- %-4s %-12s waited %5d  first byte %5d  in all %5d of %5d       %s\n",
		r.at(), v.Path, v.Outcome, v.QueueWaitMS, firstByte, v.ElapsedMS, v.DeadlineAtMS-v.AcceptedAtMS, short(doc.Name))
}

func short(name string) string {
	const most = 40
	if len(name) > most {
		return name[:most-3] + "..."
	}
	return name
}

// summaries shows two answers.
func (r *run) summaries() {
	shown := 0
	for _, j := range r.jobs {
		if j.view == nil || j.view.Outcome != broker.OutcomeUsable || shown == 2 {
			continue
		}
		shown++
		r.printf("\nsummary of %s (%s, by %s):\n%s\n", j.doc.Name, j.doc.Licence, j.view.Backend, j.view.Answer)
	}
}
