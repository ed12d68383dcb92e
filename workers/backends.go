package workers

import (
	"context"
	"time"

	"leeway/broker"
)

// syncEvery is how often a worker tells the others how its backends are, and
// hears what they and the operators say of them.
const syncEvery = time.Second

// forgetReport is when a silent worker's report is forgotten.
const forgetReport = 5 * syncEvery

// syncBackends keeps the pool's backends in step with all other workers: it
// takes over measured p95s, an operator's orders and what other workers have
// learned, and reports how the backends look from here. Only one runs at a time.
func (p *Pool) syncBackends(ctx context.Context) {
	p.takeP95s()
	upstreams := p.runner.Upstreams()
	names := make([]string, len(upstreams))
	for i, u := range upstreams {
		names[i] = u.Caller.Name()
	}
	orders, err := p.Home.BackendOrders(ctx, names)
	if err != nil {
		return // with the store away nothing is admitted either
	}
	for i, o := range orders {
		u, name := upstreams[i], names[i]
		if o.BackAtMS != 0 && o.BackAtMS != p.putBack[name] {
			p.putBack[name] = o.BackAtMS
			u.PutBack()
		}
		switch {
		case o.Out != nil && !p.takenOut[name]:
			u.TakeOut(o.Out.Why)
			p.takenOut[name] = true
		case o.Out == nil && p.takenOut[name]:
			u.PutBack()
			delete(p.takenOut, name)
		case o.HeldFor > 0 && u.State().State == broker.BackendClosed:
			u.Hold(o.HeldFor, "another worker's breaker opened")
		}
	}
	if err := p.Home.ReportBackends(ctx, p.id, p.Backends(), forgetReport); err != nil && ctx.Err() == nil {
		p.Log.Debug("backends not reported", "path", p.Path.String(), "error", err)
	}
}

// takeP95s has the runner go by what is measured of the backends.
func (p *Pool) takeP95s() {
	for _, u := range p.runner.Upstreams() {
		u.SetP95(p.BackendP95(u.Caller.Name()))
	}
}

// Backends is how the pool's backends look from this worker.
func (p *Pool) Backends() []broker.BackendState {
	var out []broker.BackendState
	for _, u := range p.runner.Upstreams() {
		s := u.State()
		s.Path = p.Path
		out = append(out, s)
	}
	return out
}

// sharedHold is how long other workers leave a backend alone whose breaker has
// opened here; each of them then finds out for itself.
const sharedHold = 5 * time.Second

// onState is told by the runner when a backend's state changes.
func (p *Pool) onState(name, state, why string) {
	p.Log.Warn("backend changed state", "path", p.Path.String(), "backend", name, "state", state, "why", why)
	for _, c := range p.consumers {
		select {
		case c.shows <- struct{}{}:
		default: // it is to look already
		}
	}
	if state != broker.BackendOpen {
		return
	}
	p.inFlight.Go(func() {
		if err := p.Home.HoldBackend(context.Background(), name, why, sharedHold); err != nil {
			p.Log.Debug("open breaker not shared", "backend", name, "error", err)
		}
	})
}
