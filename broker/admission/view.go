package admission

import (
	"context"
	"time"

	"leeway/broker"
	"leeway/slackgate"
)

// How fresh the state is that ladders are built from. A ladder that is a
// little old is on the safe side: running jobs have got further than it says.
const (
	// RefreshEvery is how often the state is read while nobody asks.
	RefreshEvery = 50 * time.Millisecond
	// TrustFor is how old the state may be before a submission waits for a
	// new one; without one it is refused.
	TrustFor = 200 * time.Millisecond
)

// view is the pools' state as last read, with the ladders built from it. It is
// replaced as a whole.
type view struct {
	at    time.Time
	pools [slackgate.NumPaths]broker.PoolPolicy
	state *broker.GateState
	// reserveMS is the smallest reserve that the ladders serve.
	reserveMS int64
}

// Load is how full the pools are, as last read.
type Load struct {
	// Known is set while the state is fresh enough to decide by.
	Known bool
	// Seen tells one reading from the next.
	Seen  int64
	Pools [slackgate.NumPaths]slackgate.PoolState
}

// Load is what is known of the pools without asking the store.
func (a *Admitter) Load() Load {
	v := a.view.Load()
	if v == nil {
		return Load{}
	}
	return Load{Known: time.Since(v.at) < TrustFor, Seen: v.at.UnixNano(), Pools: v.state.Pools} //nolint:forbidigo // tells readings apart
}

// refresh reads the state and builds the ladders.
func (a *Admitter) refresh(ctx context.Context) (*view, error) {
	s := a.Settings()
	at := time.Now()
	st, err := a.Store.State(ctx, s.Pools)
	if err != nil {
		return nil, err
	}
	a.trips.took(time.Since(at))
	v := &view{at: at, pools: s.Pools, state: st, reserveMS: s.MinReserveMS}
	for _, path := range slackgate.Paths {
		ladder := new(slackgate.Ladder)
		ladder.Build(&slackgate.LadderInput{
			Capacity:      st.Pools[path].Capacity,
			RunningAgesMS: st.RunningAges[path],
			Belief:        s.Beliefs[path],
			DispatchMS:    a.dispatchMS(s.DispatchMS),
			ReserveMS:     s.MinReserveMS,
			HorizonMS:     s.HorizonMS,
		})
		v.pools[path].SetLadder(ladder, st.Released[path])
		v.pools[path].SetShares(ladder.Shares(st.Demands[path]))
	}
	a.view.Store(v)
	return v, nil
}

// trusted returns a view fresh enough to decide by under the settings.
func (a *Admitter) trusted(ctx context.Context, s *Settings) (*view, error) {
	if v := a.view.Load(); v != nil && time.Since(v.at) < TrustFor && v.reserveMS == s.MinReserveMS {
		return v, nil
	}
	return a.refresh(ctx)
}

// Refresh keeps the view fresh until ctx is done, so that a submission needs
// one call to the store and no more.
func (a *Admitter) Refresh(ctx context.Context) error {
	tick := time.NewTicker(RefreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			// A store that is away shows in the submissions themselves.
			_, _ = a.refresh(ctx)
			a.tell(ctx)
		}
	}
}
