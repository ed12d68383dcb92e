package config

import (
	"cmp"

	"leeway/broker"
	"leeway/slackgate"
)

// MaxShards is the largest number of shards.
const MaxShards = 64

// WorkerShards are the shards that this worker serves.
func (c *Config) WorkerShards() []int {
	if len(c.Worker.Shards) > 0 {
		return c.Worker.Shards
	}
	all := make([]int, c.Redis.Shards)
	for i := range all {
		all[i] = i
	}
	return all
}

// Home says where the jobs of a producer and a class must go, because what they
// may cost or how many there may be is counted in one place. Those with
// one name have one home. ok is false for those that may go anywhere.
// With [broker.AnyClass] it is asked for an idempotency key, which may come with
// any class that the producer may use, and with an empty class for a batch, whose
// lines may be of any class and, where anybody may give any name, producer.
//
// Each producer that has limits has a home of its own, as long as its jobs are
// told by its key alone. Where a class has a budget, or anybody may give any
// producer's name, all that is counted has one home.
func (c *Config) Home(producer, class string) (name string, ok bool) {
	ok = c.limited(producer)
	batch := class == ""
	classBudgeted := false
	for n, cl := range c.Classes {
		if cl.BudgetMicroPerDay != nil {
			classBudgeted = true
			ok = ok || n == class || (batch || class == broker.AnyClass) && c.MayUse(producer, n)
		}
	}
	switch {
	case classBudgeted:
		return "", ok
	case len(c.Access.Producers) > 0:
		return producer, ok
	}
	if batch {
		for n := range c.Producers {
			ok = ok || c.limited(n)
		}
	}
	return "", ok
}

// limited reports whether something is counted of a producer's jobs.
func (c *Config) limited(producer string) bool {
	q := c.Quota(producer)
	return q.Limited() || c.Producers[producer].BudgetMicroPerDay != nil
}

func (c *Config) checkShards() error {
	n := c.Redis.Shards
	if err := within("redis.shards", n, 1, MaxShards); err != nil {
		return err
	}
	seen := map[int]bool{}
	for _, at := range c.Worker.Shards {
		if err := cmp.Or(
			within("worker.shards", at, 0, n-1),
			checkf(!seen[at], "worker.shards", "%d is named twice", at),
		); err != nil {
			return err
		}
		seen[at] = true
	}
	for _, path := range slackgate.Paths {
		limit, slots, served := c.Pool(path).Limit, c.Slots(path), len(c.WorkerShards())
		if err := cmp.Or(
			checkf(limit == 0 || limit >= n, "pools."+path.String()+".limit",
				"%d is less than redis.shards (%d): each shard needs a slot of its own", limit, n),
			checkf(limit == 0 || slots == 0 || slots >= served, "worker."+path.String()+"_slots",
				"%d is less than the %d shards that this worker serves: serve fewer with worker.shards", slots, served),
		); err != nil {
			return err
		}
	}
	return nil
}
