package redisstore

import (
	"context"
	"time"
)

// strayPage is how many keys one look for strays takes at most, and strayEvery
// how long it is at least until the next, whoever looks: a deployment of a
// million jobs is gone through in an hour and a half, at the cost of a claim
// every half second.
const (
	strayPage  = 200
	strayEvery = 450 * time.Millisecond
)

// Strays is what one look has mended.
type Strays struct {
	// Placed counts unfinished jobs that were in no order and are again.
	Placed int64
	// Removed counts keys and reservations of no job.
	Removed int64
}

// MendStrays looks at the next page of the deployment's keys for what no step
// of a job leaves behind, but a key that was deleted or evicted does, and mends
// it. Any process may call it; they share one walk.
func (s *Store) MendStrays(ctx context.Context) (Strays, error) {
	v, err := s.run(ctx, scriptStrays, s.keepMS, strayPage, strayEvery.Milliseconds())
	if err != nil {
		return Strays{}, err
	}
	r := asReply(v)
	s.saw(r.int())
	return Strays{Placed: r.int(), Removed: r.int()}, r.err
}
