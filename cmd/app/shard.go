package app

import (
	"context"
	"sync/atomic"
	"time"

	"leeway/broker"
	"leeway/broker/admission"
	"leeway/broker/config"
	"leeway/broker/flag"
	"leeway/broker/measure"
	"leeway/broker/reconcile"
	"leeway/broker/redisstore"
	"leeway/broker/shard"
	"leeway/broker/store"
	"leeway/broker/ticket"
	"leeway/slackgate"
	"leeway/workers"
)

// part is one shard as a process has it: all that an admission needs.
type part struct {
	base    *base
	index   int
	prefix  string
	store   *redisstore.Store
	tickets *ticket.Queue
	flags   atomic.Pointer[flag.Table]
	gate    *admission.Admitter
}

// makeShards makes the shards' stores and queues. Where there are several, none of
// them does anything before the process has agreed with the store on how many.
func (b *base) makeShards() {
	cfg := b.config()
	n := cfg.Redis.Shards
	var stores []store.Shard
	for i, prefix := range shard.Prefixes(cfg.Redis.Prefix, n) {
		p := &part{base: b, index: i, prefix: prefix}
		p.store = redisstore.New(b.rdb, redisstore.Options{
			Prefix: prefix, Timeout: cfg.RedisTimeout(), Keep: ms(cfg.Keep.ResultMS),
			LedgerRows: (cfg.Keep.LedgerRows + int64(n) - 1) / int64(n), Rollups: ms(cfg.Keep.RollupMS), KeepOverdue: labOverrun(cfg),
		})
		if n > 1 {
			p.store.Hold()
		}
		p.tickets = ticket.New(b.rdb, prefix, cfg.RedisTimeout(), ms(cfg.LongestDeadlineMS()))
		p.flags.Store(flag.NewTable(0, nil))
		b.shards, stores = append(b.shards, p), append(stores, p.store)
	}
	if b.store = stores[0]; n > 1 {
		b.several = shard.New(stores...)
		b.store = b.several
	}
}

// makeGates makes the shards' gates.
func (b *base) makeGates() {
	var gates []*admission.Admitter
	for _, p := range b.shards {
		p.gate = admission.New(admission.Options{
			Store: p.store, Tickets: p.tickets, Settings: p.settings, RefreshFlags: p.refreshFlags, Observer: b.metrics, Log: b.log,
		})
		gates = append(gates, p.gate)
	}
	b.admitter = shard.NewAdmitter(func(producer, class string) (string, bool) { return b.config().Home(producer, class) }, gates...)
}

// partOf is the shard of a job.
func (b *base) partOf(id string) *part { return b.shards[shard.Of(id, len(b.shards))] }

// refreshFlags reads the shard's flags anew.
func (p *part) refreshFlags(ctx context.Context) error {
	t, err := p.store.Flags(ctx)
	if err != nil {
		return err
	}
	p.flags.Store(t)
	return nil
}

// followFlags keeps the flags fresh between decisions, and the same in all
// shards; the decisions themselves notice a change at once.
func (b *base) followFlags(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if b.several != nil {
			if n, err := b.several.Align(ctx); n > 0 {
				b.log.Warn("flags were not the same in all shards: the first one's were set in the others", "flags", n, "error", err)
			}
		}
		for _, p := range b.shards {
			_ = p.refreshFlags(ctx) // a store that is away shows elsewhere
		}
	}
}

// values are what configuration and flags say for every class now. The first shard
// speaks for all where no shard is concerned.
func (b *base) values() flag.Values { return b.shards[0].values("") }

func (p *part) values(class string) flag.Values {
	return p.flags.Load().Apply(startValues(p.base.config()), class, p.store.NowMS())
}

// policy is the pools' side of a decision of the shard, without ladders.
func (p *part) policy() [slackgate.NumPaths]broker.PoolPolicy {
	return shard.Policy(p.base.poolPolicy(), p.index, len(p.base.shards))
}

// settings is what the shard's gate decides by now.
func (p *part) settings() admission.Settings {
	b := p.base
	cfg, table, now := b.config(), p.flags.Load(), p.store.NowMS()
	start := startValues(cfg)
	s := admission.Settings{
		Flags:        table,
		Class:        func(name string) admission.ClassSettings { return classSettings(table.Apply(start, name, now)) },
		Pools:        p.policy(),
		DispatchMS:   dispatchPolls * cfg.Worker.PollMS,
		MinReserveMS: slackgate.Unbounded,
		HorizonMS:    cfg.LongestDeadlineMS(),
	}
	if len(cfg.Producers) > 0 {
		s.Quota = cfg.Quota
	}
	if cfg.Budgeted() {
		s.Budgets = cfg.Budgets
		s.LargestCost = func(size admission.Size) int64 { return largestCost(cfg, size, now) }
	}
	for _, path := range slackgate.Paths {
		m := b.meter.Get(measure.PoolName(path))
		s.Beliefs[path] = m.Belief()
	}
	for name, c := range cfg.Classes {
		if c.Success == config.SuccessWhole {
			s.MinReserveMS = min(s.MinReserveMS, max(*c.ReserveMS, table.Apply(start, name, now).ReserveMS))
		}
	}
	return s
}

// reconciler mends what is left behind in the shard.
func (p *part) reconciler() *reconcile.Reconciler {
	return &reconcile.Reconciler{
		Store: p.store, Tickets: p.tickets, Policy: p.policy, Log: p.base.log,
		Draining: func(path slackgate.Path) bool { return p.flags.Load().Draining(path, p.store.NowMS()) },
		Reoffer:  p.gate.Reoffer,
		Strays:   !p.base.embedded,
		Mended:   p.base.metrics.Mended,
	}
}

// shardSlots is what this worker offers to a pool in each of the shards that it
// serves, in their order: its slots divided, and nowhere more than the shard's
// part of the pool's limit.
func shardSlots(cfg *config.Config, path slackgate.Path) []int {
	limit, serves := cfg.Pool(path).Limit, cfg.WorkerShards()
	slots := min(cfg.Slots(path), limit)
	out := make([]int, len(serves))
	for i, at := range serves {
		out[i] = min(slackgate.Part(slots, i, len(serves)), slackgate.Part(limit, at, cfg.Redis.Shards))
	}
	return out
}

// lanes are the shards of a pool that this worker serves.
func (w *Worker) lanes(cfg *config.Config, path slackgate.Path) []workers.Shard {
	var out []workers.Shard
	for i, slots := range shardSlots(cfg, path) {
		if slots == 0 {
			continue
		}
		p := w.shards[cfg.WorkerShards()[i]]
		out = append(out, workers.Shard{
			Store: p.store, Tickets: p.tickets, Slots: slots, Limit: slackgate.Part(cfg.Pool(path).Limit, p.index, len(w.shards)),
		})
	}
	return out
}
