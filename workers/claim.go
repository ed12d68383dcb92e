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
// the other, without going back to asynq for each. It never returns an error:
// tickets are interchangeable, and one spent for nothing is made up for by
// whoever sees a job waiting without one.
func (c *consumer) handle(context.Context, *asynq.Task) error {
	c.inFlight.Add(1)
	defer c.inFlight.Done()
	c.Background.Guard("ticket "+c.Path.String(), func() {
		for began := time.Now(); c.takeOne(); {
			if time.Since(began) > ticketFor {
				c.putTicket() // others may wait
				return
			}
		}
	})
	return nil
}

// takeOne claims a job and runs it. It reports whether there may be another:
// with nothing waiting none is needed, and with every slot of the pool taken
// those are the ones to come back.
func (c *consumer) takeOne() (again bool) {
	p := c.Pool
	if p.leaving.Load() {
		return false
	}
	claim, met, err := c.shard.Store.Claim(p.base, p.Path, c.shard.Limit, p.Lease)
	for _, gone := range met.Lost {
		joblog.Lost(p.base, p.Log, gone)
	}
	for _, ended := range met.Ended {
		joblog.Ended(p.base, p.Log, ended)
	}
	switch {
	case err != nil && claim == nil:
		p.Log.Warn("claim failed", "path", p.Path.String(), "error", err)
		return false
	case err != nil:
		p.Log.Error("claimed job cannot be read", "job_id", claim.ID, "error", err)
		(&jobRun{consumer: c, claim: claim}).finish(&broker.Finish{
			Outcome: broker.OutcomeFailed, Cause: broker.CauseRecordLost, Reason: "record_lost", FirstByteMS: -1,
		})
		return true
	case claim == nil:
		return false // nothing waits, or every slot of the pool is taken
	}
	(&jobRun{consumer: c, claim: claim}).run()
	return true
}

// putTicket adds a ticket for one job.
func (c *consumer) putTicket() {
	if err := c.shard.Tickets.Put(context.Background(), c.Path, 1); err != nil {
		c.Log.Warn("ticket not written", "path", c.Path.String(), "error", err)
	}
}
