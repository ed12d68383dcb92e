package redisstore

import (
	"context"
	"time"

	"leeway/broker"
)

// strayPage is how many keys one look for strays takes at most, and strayEvery
// how long it is at least until the next, whoever looks: a deployment of a
// million jobs is gone through in an hour and a half, at the cost of a claim
// every half second.
const (
	strayPage  = 200
	strayEvery = 450 * time.Millisecond
)

// MendStrays looks at the next page of the deployment's keys for what no step
// of a job leaves behind, but a key that was deleted or evicted does, and mends
// it. Any process may call it; they share one walk.
func (s *Store) MendStrays(ctx context.Context) (broker.Strays, error) {
	sent := time.Now()
	v, err := s.run(ctx, scriptStrays, s.keepMS, strayPage, strayEvery.Milliseconds())
	if err != nil {
		return broker.Strays{}, err
	}
	r := asReply(v)
	s.saw(sent, r.int())
	return broker.Strays{Placed: r.int(), Removed: r.int()}, r.err
}
