package workers

import (
	"context"
	"time"

	"github.com/hibiken/asynq"

	"leeway/broker"
	"leeway/broker/joblog"
)

// ticketFor is how long a slot goes on claiming under one ticket. asynq gives a
// ticket an hour beyond the longest deadline, after which it would take the
// slot for free while the handler still runs.
const ticketFor = 30 * time.Minute

// handle turns a ticket into claims: while jobs wait, the slot takes one after
// the other, each in the step in which the one before ends, without going back to
// asynq. It never returns an error: tickets are interchangeable, and one spent for
// nothing is made up for by whoever sees a job waiting without one.
func (c *consumer) handle(context.Context, *asynq.Task) error {
	c.inFlight.Add(1)
	defer c.inFlight.Done()
	c.Background.Guard("ticket "+c.Path.String(), func() {
		until := time.Now().Add(ticketFor)
		for claim := c.claim(); claim != nil; {
			r := &jobRun{consumer: c, claim: claim, until: until}
			r.run()
			switch {
			case r.asked:
				claim = r.next
			case time.Now().After(until):
				c.putTicket() // others may wait
				return
			default:
				claim = c.claim()
			}
		}
	})
	return nil
}

// mayClaim reports whether this worker can take a job: else what waits is others'
// to take, or is offered to the gate again.
func (c *consumer) mayClaim() bool {
	return !c.leaving.Load() && c.steps.Running() && c.callable()
}

// claim takes a job. It is nil when none waits, and when every slot of the pool
// is taken: those are the ones to come back.
func (c *consumer) claim() *broker.Claim {
	for c.mayClaim() {
		step := &broker.Step{Claim: true}
		if err := c.step(step); err != nil {
			step.Found.Err = err
		}
		if claim := c.claimedBy(step); claim != nil || !step.Found.Later {
			return claim
		}
	}
	return nil
}

// claimedBy is the job that a step has claimed, and tells what it met.
func (c *consumer) claimedBy(step *broker.Step) *broker.Claim {
	for _, gone := range step.Found.Lost {
		joblog.Lost(c.base, c.Log, gone)
	}
	for _, ended := range step.Found.Ended {
		joblog.Ended(c.base, c.Log, ended)
	}
	switch err := step.Found.Err; {
	case err == nil:
	case step.Claimed == nil:
		c.Log.Warn("claim failed", "path", c.Path.String(), "error", err)
	default:
		c.Log.Error("claimed job cannot be read", "job_id", step.Claimed.ID, "error", err)
	}
	return step.Claimed
}

// putTicket adds a ticket for one job.
func (c *consumer) putTicket() {
	if err := c.shard.Tickets.Put(context.Background(), c.Path, 1); err != nil {
		c.Log.Warn("ticket not written", "path", c.Path.String(), "error", err)
	}
}
