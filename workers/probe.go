package workers

import (
	"context"
	"time"

	"github.com/google/uuid"

	"leeway/broker"
	"leeway/broker/redisstore"
	"leeway/workers/attempt"
	"leeway/workers/backend"
)

// ProbeEvery is how often a pool that its own measurement has closed is
// probed, over all workers together.
const ProbeEvery = 10 * time.Second

// probeTimeout bounds a probe. A backend slower than that is measured as cut.
const probeTimeout = 30 * time.Second

// ProbeClass is the class under which probes stand in the spend ledger. They
// are no jobs: they have no outcome.
const ProbeClass = "probe"

// probes sends a tiny request to the pool's first backend now and then while
// the pool's measured first byte fits no job's slack: without traffic nothing
// else would ever measure it again.
func (p *Pool) probes(ctx context.Context) error {
	tick := time.NewTicker(ProbeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		slack := p.LongestSlack()
		if p.leaving.Load() || slack <= 0 || p.FirstByteP95() <= slack {
			continue // leaving, used by no class, or open
		}
		mine, err := p.Store.TurnToProbe(ctx, p.Path.String(), ProbeEvery.Milliseconds())
		if err != nil || !mine {
			continue // with the store away there is nothing to open
		}
		p.probe(ctx)
	}
}

func (p *Pool) probe(ctx context.Context) {
	name := p.Runner.State()[0].Name
	id := "probe-" + uuid.NewString()
	c := &broker.Claim{Job: broker.Job{ID: id, Class: ProbeClass, MaxOutputTokens: 1}, Path: p.Path}
	var settled []redisstore.Settlement
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := p.Runner.Probe(ctx, name, id, attempt.Hooks{
		Before: func(ctx context.Context, call attempt.Call) error {
			row := p.row(c, &call)
			return p.Store.OpenProbe(ctx, &row, p.Tariffs[call.Backend].Priced, backend.EstimateTokens("probe"), 1)
		},
		After: func(_ context.Context, call attempt.Call, s attempt.Settlement) {
			settled = append(settled, p.settlement(c, &call, &s))
			p.measure(poolSamples(p.Path, s.HasText, s.FirstByte, s.Hold, s.Reason == "")...)
			p.measure(callSamples(&call, &s)...)
		},
	})
	p.settle(c, settled)
	p.Log.Info("pool probed", "path", p.Path.String(), "backend", name, "error", err)
}
