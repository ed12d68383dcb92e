package app

import (
	"context"
	"slices"
	"time"
)

// durabilityEvery is how often Redis's own settings are looked at: they can be
// changed while it runs, and a failover brings another server's.
const durabilityEvery = time.Minute

// risks are what Redis's settings put at risk, as last looked at.
func (b *base) risks() []string {
	if r := b.atRisk.Load(); r != nil {
		return *r
	}
	return nil
}

// watchDurability looks at Redis's settings at the start and now and then. A store
// that is away shows elsewhere.
func (b *base) watchDurability(ctx context.Context) error {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wait.C:
		}
		wait.Reset(durabilityEvery)
		if b.lookAtRisks(ctx) != nil {
			wait.Reset(time.Second)
		}
	}
}

// lookAtRisks says loudly what Redis's settings put at risk that they did not
// when it was last looked at.
func (b *base) lookAtRisks(ctx context.Context) error {
	d, err := b.store.Durability(ctx)
	if err != nil {
		return err
	}
	said, risks := b.risks(), d.Risks()
	for _, risk := range risks {
		if !slices.Contains(said, risk) {
			b.log.Warn("redis is not safe to promise on", "risk", risk)
		}
	}
	if len(said) > 0 && len(risks) == 0 {
		b.log.Info("redis is safe to promise on")
	}
	b.atRisk.Store(&risks)
	return nil
}
