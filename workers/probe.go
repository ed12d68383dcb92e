package workers

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"leeway/broker"
	"leeway/workers/attempt"
)

// ProbeEvery is how often a pool that its own measurement has closed is
// probed, over all workers together.
const ProbeEvery = 3 * time.Second

// probeTimeout bounds a probe. A backend slower than that is measured as cut.
const probeTimeout = 30 * time.Second

// ProbeClass is the class under which probes stand in the spend ledger. They
// are no jobs: they have no outcome.
const ProbeClass = "probe"

// probes sends a tiny request to what nothing else would ever try again: to the
// first backend of a pool whose measured first byte fits no job's slack, and to
// the backends of a worker that has none left to call.
func (p *Pool) probes(ctx context.Context) {
	switch {
	case p.leaving.Load():
	case !p.callable():
		for _, u := range p.runner.Upstreams() {
			if u.State().State == broker.BackendOpen {
				p.probe(ctx, u)
			}
		}
	case p.closedByMeasurement():
		// One probe tells all workers, through what it measures. A backend
		// that is to be left alone is.
		i := slices.IndexFunc(p.runner.Upstreams(), func(u *attempt.Upstream) bool {
			s := u.State().State
			return s != broker.BackendOut && s != broker.BackendHeld
		})
		if i < 0 {
			return
		}
		if mine, err := p.Home.TurnToProbe(ctx, p.Path.String(), ProbeEvery.Milliseconds()); err == nil && mine {
			p.probe(ctx, p.runner.Upstreams()[i])
		}
	}
}

// closedByMeasurement reports whether the pool's first byte is believed to
// take longer than any job of its classes can wait.
func (p *Pool) closedByMeasurement() bool {
	slack := p.LongestSlack()
	return slack > 0 && p.FirstByteP95() > slack // 0: no class uses the pool
}

func (p *Pool) probe(ctx context.Context, u *attempt.Upstream) {
	id := "probe-" + uuid.NewString()
	r := &jobRun{consumer: &consumer{Pool: p, shard: Shard{Store: p.Home}}, claim: &broker.Claim{
		Spec: broker.Spec{ID: id, Class: ProbeClass, MaxOutputTokens: attempt.ProbeMaxTokens}, Path: p.Path,
	}}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := p.runner.Probe(ctx, u, id, attempt.Hooks{
		Before: func(ctx context.Context, call attempt.Call) error {
			r.open = r.newRow(&call)
			return p.Home.OpenProbe(ctx, &r.open)
		},
		After: func(a attempt.Attempt) {
			r.settled = append(r.settled, r.settledRow(&a))
			r.measure(poolSamples(p.Path, a.HasText, a.FirstByte, a.Hold, a.Reason == "")...)
			r.measure(callSamples(&a)...)
		},
	})
	r.settle()
	p.Log.Info("pool probed", "path", p.Path.String(), "backend", u.Caller.Name(), "error", err)
}
