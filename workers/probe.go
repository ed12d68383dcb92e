package workers

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"leeway/broker"
	"leeway/slackgate"
	"leeway/workers/attempt"
)

// ProbeEvery is [slackgate.ProbeEveryMS]: how often a pool that its own
// measurement has closed is probed, over all workers together, and by each worker
// a backend that fails. One that is out is probed ever more seldom, to once a
// minute.
const ProbeEvery = slackgate.ProbeEveryMS * time.Millisecond

// probeTimeout bounds a probe. A backend slower than that is measured as cut.
const probeTimeout = 30 * time.Second

// ProbeClass is the class under which probes stand in the spend ledger. They
// are no jobs: they have no outcome.
const ProbeClass = "probe"

// probes sends a tiny request to each backend that is kept from jobs by how it
// answered, and to the soonest of a pool that its own measurement keeps jobs from.
func (p *Pool) probes(ctx context.Context) {
	if p.leaving.Load() {
		return
	}
	for _, u := range p.runner.Upstreams() {
		if u.ProbeDue() {
			p.doubt(u)
		}
	}
	if !p.callable() || !p.Unmeasured(p.idle()) {
		return
	}
	// One probe tells all workers, through what it measures: of the backend that
	// answers soonest, since one that hangs says nothing of the others.
	var soonest *attempt.Upstream
	for _, u := range p.runner.Upstreams() {
		if u.State().State == broker.BackendClosed && (soonest == nil || p.BackendP95(u.Caller.Name()) < p.BackendP95(soonest.Caller.Name())) {
			soonest = u
		}
	}
	if soonest == nil {
		return
	}
	if mine, err := p.Home.TurnToProbe(ctx, p.Path.String(), ProbeEvery.Milliseconds()); err == nil && mine {
		p.doubt(soonest)
	}
}

// doubt probes a backend in the background; one probe of each is under way at a
// time.
func (p *Pool) doubt(u *attempt.Upstream) {
	if p.leaving.Load() {
		return
	}
	p.loop("probe", func(ctx context.Context) error {
		p.probe(ctx, u)
		return nil
	})
}

// idle reports whether this worker runs no job.
func (p *Pool) idle() bool {
	idle := true
	p.running.Range(func(any, any) bool {
		idle = false
		return false
	})
	return idle
}

func (p *Pool) probe(ctx context.Context, u *attempt.Upstream) {
	id := "probe-" + uuid.NewString()
	r := &jobRun{consumer: &consumer{Pool: p, shard: Shard{Store: p.Home}}, claim: &broker.Claim{
		Spec: broker.Spec{ID: id, Class: ProbeClass, MaxOutputTokens: attempt.ProbeMaxTokens}, Path: p.Path,
	}}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	kept := u.State().State != broker.BackendClosed // from jobs
	err := p.runner.Probe(ctx, u, id, attempt.Hooks{
		Before: func(ctx context.Context, call attempt.Call) error {
			r.open = r.newRow(&call)
			return p.Home.OpenProbe(ctx, &r.open)
		},
		After: func(a attempt.Attempt) {
			r.settled = append(r.settled, r.settledRow(&a))
			heard := callSamples(&a)
			// That a backend still hangs which jobs are kept from says nothing of the
			// pool that goes on without it.
			if a.HasText || heard != nil && !kept {
				heard = append(heard, poolSamples(p.Path, a.HasText, a.FirstByte, a.Hold, a.Reason == "", false)...)
			}
			r.measure(heard...)
		},
	})
	if errors.Is(err, attempt.ErrProbing) {
		return
	}
	r.settle()
	p.Log.Info("pool probed", "path", p.Path.String(), "backend", u.Caller.Name(), "error", err)
}
