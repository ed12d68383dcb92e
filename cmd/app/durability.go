package app

import (
	"context"
	"slices"
	"time"
)

// durabilityEvery is how often Redis's own settings are looked at: they can be
// changed while it runs, and a failover brings another server's.
const durabilityEvery = time.Minute

// watchDurability says loudly what Redis's settings put at risk, at the start
// and whenever it changes. A store that is away shows elsewhere.
func (b *base) watchDurability(ctx context.Context) error {
	var said []string
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wait.C:
		}
		wait.Reset(durabilityEvery)
		d, err := b.store.Durability(ctx)
		if err != nil {
			wait.Reset(time.Second)
			continue
		}
		risks := d.Risks()
		for _, risk := range risks {
			if !slices.Contains(said, risk) {
				b.log.Warn("redis is not safe to promise on", "risk", risk)
			}
		}
		if len(said) > 0 && len(risks) == 0 {
			b.log.Info("redis is safe to promise on")
		}
		said = risks
	}
}
