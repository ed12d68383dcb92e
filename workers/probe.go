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
const ProbeEvery = 3 * time.Second

// probeTimeout bounds a probe. A backend slower than that is measured as cut.
const probeTimeout = 30 * time.Second

// ProbeClass is the class under which probes stand in the spend ledger. They
// are no jobs: they have no outcome.
const ProbeClass = "probe"

// probes sends a tiny request now and then to what nothing else would ever try
// again: to the first backend of a pool whose measured first byte fits no
// job's slack, and to the backends of a worker that has none left to call.
func (p *Pool) probes(ctx context.Context) error {
	tick := time.NewTicker(ProbeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		switch {
		case p.leaving.Load():
		case !p.callable():
			for _, b := range p.runner.State() {
				if b.State == attempt.StateOpen {
					p.probe(ctx, b.Name)
				}
			}
		case p.closedByMeasurement():
			// One probe tells all workers, through what it measures. A backend
			// that is to be left alone is.
			name := p.probeable()
			if name == "" {
				continue
			}
			if mine, err := p.Store.TurnToProbe(ctx, p.Path.String(), ProbeEvery.Milliseconds()); err == nil && mine {
				p.probe(ctx, name)
			}
		}
	}
}

// probeable is the first backend that nobody has asked to leave alone.
func (p *Pool) probeable() string {
	for _, b := range p.runner.State() {
		if b.State != attempt.StateOut && b.State != attempt.StateHeld {
			return b.Name
		}
	}
	return ""
}

// closedByMeasurement reports whether the pool's first byte is believed to
// take longer than any job of its classes can wait.
func (p *Pool) closedByMeasurement() bool {
	slack := p.LongestSlack()
	return slack > 0 && p.FirstByteP95() > slack // 0: no class uses the pool
}

func (p *Pool) probe(ctx context.Context, name string) {
	id := "probe-" + uuid.NewString()
	c := &broker.Claim{Job: broker.Job{ID: id, Class: ProbeClass, MaxOutputTokens: attempt.ProbeMaxTokens}, Path: p.Path}
	var openedAt int64
	var settled []redisstore.Settlement
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := p.runner.Probe(ctx, name, id, attempt.Hooks{
		Before: func(ctx context.Context, call attempt.Call) error {
			row := p.row(c, &call)
			err := p.Store.OpenProbe(ctx, &row, !call.Tariff.Free(), backend.EstimateTokens(attempt.ProbeText), attempt.ProbeMaxTokens)
			openedAt = row.OpenedAtMS
			return err
		},
		After: func(_ context.Context, call attempt.Call, s attempt.Settlement) {
			row := p.settlement(c, &call, &s)
			row.OpenedAtMS = openedAt
			settled = append(settled, row)
			p.measure(id, poolSamples(p.Path, s.HasText, s.FirstByte, s.Hold, s.Reason == "")...)
			p.measure(id, callSamples(&call, &s)...)
		},
	})
	p.settle(c, settled)
	p.Log.Info("pool probed", "path", p.Path.String(), "backend", name, "error", err)
}
