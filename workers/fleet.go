package workers

import (
	"context"
	"time"

	"leeway/broker"
	"leeway/workers/attempt"
)

// fleetEvery is how often a worker tells the others how its backends are, and
// hears what they and the operators say of them.
const fleetEvery = time.Second

// fleetForget is when a silent worker's report is forgotten.
const fleetForget = 5 * fleetEvery

// fleet keeps the pool's backends in step with all other workers: it takes
// over measured p95s, an operator's orders and what other workers have
// learned, and reports how the backends look from here.
func (p *Pool) fleet(ctx context.Context) error {
	tick := time.NewTicker(fleetEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := p.inStep(ctx); err != nil {
			return err
		}
	}
}

// inStep is one round of fleet. Only one runs at a time.
func (p *Pool) inStep(ctx context.Context) error {
	states := p.runner.State()
	names := make([]string, len(states))
	for i := range states {
		names[i] = states[i].Name
		if err := p.runner.SetP95(names[i], p.BackendP95(names[i])); err != nil {
			return err
		}
	}
	orders, err := p.Store.BackendOrders(ctx, names)
	if err != nil {
		return nil //nolint:nilerr // with the store away nothing is admitted either
	}
	for i, o := range orders {
		switch name := names[i]; {
		case o.Out != nil && !p.takenOut[name]:
			err = p.runner.TakeOut(name, o.Out.Why)
			p.takenOut[name] = true
		case o.Out == nil && p.takenOut[name]:
			err = p.runner.PutBack(name)
			delete(p.takenOut, name)
		case o.HeldFor > 0 && states[i].State == attempt.StateClosed:
			err = p.runner.Hold(name, o.HeldFor, "another worker's breaker opened")
		}
		if err != nil {
			return err
		}
	}
	if err := p.Store.ReportBackends(ctx, p.id, p.Backends(), fleetForget); err != nil && ctx.Err() == nil {
		p.Log.Debug("backends not reported", "path", p.Path.String(), "error", err)
	}
	return nil
}

// Backends is how the pool's backends look from this worker.
func (p *Pool) Backends() []broker.BackendState {
	var out []broker.BackendState
	for _, s := range p.runner.State() {
		out = append(out, broker.BackendState{
			Path: p.Path, Backend: s.Name, Model: s.Model, State: string(s.State), Why: s.Why,
			InFlight: s.InFlight, MaxInFlight: s.MaxInFlight,
			FirstByteP95MS: s.P95.Milliseconds(), RetryInMS: s.RetryIn.Milliseconds(),
		})
	}
	return out
}

// sharedHold is how long other workers leave a backend alone whose breaker has
// opened here; each of them then finds out for itself.
const sharedHold = 5 * time.Second

// onState is told by the runner when a backend's state changes.
func (p *Pool) onState(name string, s attempt.State, why string) {
	p.Log.Warn("backend changed state", "path", p.Path.String(), "backend", name, "state", string(s), "why", why)
	if s != attempt.StateOpen {
		return
	}
	p.inFlight.Go(func() {
		if err := p.Store.HoldBackend(context.Background(), name, why, sharedHold); err != nil {
			p.Log.Debug("open breaker not shared", "backend", name, "error", err)
		}
	})
}
