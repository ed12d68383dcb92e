package config

import (
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
// With an empty class it is asked for a batch, whose lines may be of any class
// that the producer may use.
//
// Each producer that has limits has a home of its own, as long as its jobs are
// told by its key alone. Where a class has a budget, or anybody may give any
// producer's name, all that is counted has one home.
func (c *Config) Home(producer, class string) (name string, ok bool) {
	limited := c.limited(producer)
	batch := class == ""
	if c.classBudgeted() {
		if limited {
			return "", true
		}
		for n, cl := range c.Classes {
			if cl.BudgetMicroPerDay != nil && (n == class || batch && c.MayUse(producer, n)) {
				return "", true
			}
		}
		return "", false
	}
	if len(c.Access.Producers) > 0 {
		return producer, limited
	}
	if batch {
		for n := range c.Producers {
			if c.limited(n) {
				return "", true
			}
		}
	}
	return "", limited
}

// limited reports whether something is counted of a producer's jobs.
func (c *Config) limited(producer string) bool {
	q := c.Quota(producer)
	return q.Limited() || c.Producers[producer].BudgetMicroPerDay != nil
}

func (c *Config) classBudgeted() bool {
	for _, cl := range c.Classes {
		if cl.BudgetMicroPerDay != nil {
			return true
		}
	}
	return false
}

func (c *Config) completeShards() error {
	n := c.Redis.Shards
	if err := within("redis.shards", int64(n), 1, MaxShards); err != nil {
		return err
	}
	seen := map[int]bool{}
	for _, at := range c.Worker.Shards {
		if err := within("worker.shards", int64(at), 0, int64(n-1)); err != nil {
			return err
		}
		if seen[at] {
			return broker.Fieldf("worker.shards", "%d is named twice", at)
		}
		seen[at] = true
	}
	for _, path := range slackgate.Paths {
		p := c.Pool(path)
		if p.Limit > 0 && p.Limit < n {
			return broker.Fieldf("pools."+path.String()+".limit", "%d is less than redis.shards (%d): each shard needs a slot of its own", p.Limit, n)
		}
		if slots, of := c.Slots(path), len(c.WorkerShards()); p.Limit > 0 && slots > 0 && slots < of {
			return broker.Fieldf("worker."+path.String()+"_slots", "%d is less than the %d shards that this worker serves: serve fewer with worker.shards", slots, of)
		}
	}
	return nil
}
