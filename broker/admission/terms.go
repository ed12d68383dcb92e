package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	"leeway/broker"
	"leeway/broker/coalesce"
	"leeway/broker/faultpoint"
	"leeway/slackgate"
)

// tries is how often numbers are worked out when a flag or a pool's workers changed
// while they were on their way, or their turn was long in coming.
const tries = 3

// offer works out the bounds of each job and has the store check them when turn
// says so.
func (a *Admitter) offer(ctx context.Context, batch []*pending, turn func() error) (broker.OfferResults, error) {
	for range tries {
		s := a.Settings()
		if err := a.bound(ctx, &s, batch); err != nil {
			return broker.OfferResults{}, err
		}
		offers := make([]broker.Offer, len(batch))
		for i, p := range batch {
			offers[i] = p.offer
		}
		a.untold(&s.Pools)
		faultpoint.Reach(faultpoint.Promising)
		sent := false
		got, err := a.Store.AdmitInTurn(ctx, s.Flags, s.Pools, offers, func() error {
			err := turn()
			sent = err == nil
			return err
		})
		faultpoint.Reach(faultpoint.Promised)
		switch {
		case errors.Is(err, coalesce.ErrStale):
			a.tellAgain(&s.Pools)
			continue
		case err != nil:
			if !sent || broker.TroubleOf(err).NothingDone() {
				a.tellAgain(&s.Pools)
			}
			return got, err
		case got.Stale:
			a.tellAgain(&s.Pools)
			return got, broker.ErrUnavailable
		case !got.FlagsChanged && !got.WorkersChanged:
			return got, nil
		}
		a.tellAgain(&s.Pools)
		if got.FlagsChanged {
			err = a.RefreshFlags(ctx)
		} else {
			_, err = a.refresh(ctx)
		}
		if err != nil {
			return got, err
		}
	}
	return broker.OfferResults{}, fmt.Errorf("%w: flags or workers change faster than they can be read", broker.ErrUnavailable)
}

// bound works out what the pools must satisfy to take each job.
func (a *Admitter) bound(ctx context.Context, s *Settings, batch []*pending) error {
	ladders := false
	for _, p := range batch {
		p.class, p.limits = s.Class(p.job.Class), s.Quota
		if !p.onRecord() { // of a job on record the reserve is fixed
			p.reserveMS = max(p.job.ReserveMS, p.class.ReserveMS)
		}
		ladders = ladders || p.class.Policy.Rule == slackgate.Predictive
	}
	if ladders {
		v, err := a.trusted(ctx, s)
		if err != nil {
			return err
		}
		for _, path := range slackgate.Paths {
			s.Pools[path].TakeLadder(&v.pools[path])
		}
	}
	var known slackgate.Snapshot
	for _, path := range slackgate.Paths {
		known.Pools[path] = slackgate.PoolState{
			Limit:          s.Pools[path].Limit,
			FirstByteP95MS: s.Pools[path].FirstByteP95MS,
			Ladder:         s.Pools[path].Ladder,
		}
	}
	at := time.Now()
	for _, p := range batch {
		p.offer = broker.Offer{
			Job: p.job, LeftMS: p.job.LeftMS(at), At: at, ReserveMS: p.reserveMS, Again: p.again,
		}
		slack := p.offer.SlackMS()
		if p.lost {
			recheck := slackgate.NewRecheck(s.Pools[p.again.From].FirstByteP95MS, 0, p.job.FirstByteOnly)
			p.again.Revoke = !recheck.Waits(slack, p.offer.LeftMS)
		}
		p.offer.Miss = slack <= 0 && !p.onRecord()
		p.offer.Bounds = p.bounds(&known, s, slack)
		if s.Budgets != nil && !p.noJob {
			p.charge(s)
		}
		if s.Quota != nil && !p.onRecord() {
			p.offer.Quota = s.Quota(p.job.Producer)
		}
		for i := range p.offer.Bounds {
			if b := &p.offer.Bounds[i]; p.class.Closed[b.Path] {
				*b = slackgate.Bound{}
			}
		}
	}
	return nil
}

// bytes is how long text and instruction are; of a job on record the text is where
// it was.
func (p *pending) bytes() int64 {
	if p.onRecord() {
		return p.textBytes
	}
	return int64(len(p.job.Text) + len(p.job.Instruction))
}

// charge works out what the job may cost, where a budget binds it.
func (p *pending) charge(s *Settings) {
	p.offer.Budgets = s.Budgets(p.job.Producer, p.job.Class)
	for i := range p.offer.Budgets {
		if p.offer.Budgets[i].Set {
			p.offer.CostMicro = s.LargestCost(Size{p.job.Class, p.bytes(), p.job.MaxOutputTokens, p.offer.LeftMS})
			return
		}
	}
}

// bounds are what the pools must satisfy for a job with slackMS left. The
// reserve of a job on record stays what it was at its admission; where the
// ladders serve larger ones by now, it is asked for as much more as it must be,
// on the safe side.
func (p *pending) bounds(known *slackgate.Snapshot, s *Settings, slackMS int64) [2]slackgate.Bound {
	job := p.job.Gate(0, p.reserveMS)
	if more := s.MinReserveMS - job.ReserveMS; p.onRecord() && more > 0 &&
		s.MinReserveMS != slackgate.Unbounded && !job.FirstByteOnly {
		job.ReserveMS += more
		slackMS -= more
	}
	return slackgate.Bounds(known, job, p.class.Policy, slackMS)
}

// atOnce is the turn of what waits for nobody.
func atOnce() error { return nil }
