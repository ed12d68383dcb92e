package workers

import (
	"context"
	"errors"

	"leeway/broker"
	"leeway/broker/coalesce"
)

// What a shared call may hold. Thirty-two jobs that end and as many claims take
// Redis some 5 ms.
const (
	mostSteps      = 32
	mostStepsBytes = 1 << 20 // of answers
)

// shareSteps lets the slots of a pool share calls to a shard's store.
func (p *Pool) shareSteps(s Shard) *coalesce.Caller[*broker.Step, struct{}] {
	return coalesce.New(coalesce.Options[*broker.Step, struct{}]{
		Send: func(steps []*broker.Step, turn func() error) (none struct{}, err error) {
			if err := turn(); err != nil {
				return none, err
			}
			return none, s.Store.Steps(context.Background(), p.Path, s.Limit, p.Lease, steps...)
		},
		Deal:   func([]*broker.Step, struct{}) {},
		Failed: func(int, error) {},
		Gone:   errStopping,
		Size: func(s *broker.Step) int {
			if s.Finish == nil {
				return 0
			}
			return len(s.Finish.Answer)
		},
		Ordered:      func(*broker.Step) bool { return false },
		MostRequests: mostSteps, MostBytes: mostStepsBytes, MostQueued: 2 * max(s.Slots, 1),
	})
}

// step takes a step beside those of other slots, and by itself once the pool has
// stopped. The error is that of the call, else the step's own.
func (c *consumer) step(s *broker.Step) error {
	err := c.steps.Add(context.Background(), s).Wait()
	if errors.Is(err, errStopping) {
		err = c.shard.Store.Steps(context.Background(), c.Path, c.shard.Limit, c.Lease, s)
	}
	if err != nil {
		return err
	}
	return s.Err
}
