package shard

import (
	"context"
	"fmt"
	"slices"
	"time"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/broker/store"
	"leeway/slackgate"
	"leeway/slackgate/latency"
)

// Policy is what a shard's gate is told of the pools: its part of their limits.
func Policy(all [slackgate.NumPaths]broker.PoolPolicy, shard, n int) [slackgate.NumPaths]broker.PoolPolicy {
	for _, path := range slackgate.Paths {
		all[path].Limit = slackgate.Part(all[path].Limit, shard, n)
	}
	return all
}

// State is the state of all gates: what counts jobs and slots is the sum, the
// queue age that of the oldest. The instant is the first shard's.
func (s *Store) State(ctx context.Context, policy [slackgate.NumPaths]broker.PoolPolicy) (*broker.GateState, error) {
	n := len(s.shards)
	all, err := gather(s, func(i int, shard store.Shard) (*broker.GateState, error) {
		return shard.State(ctx, Policy(policy, i, n))
	})
	if err != nil {
		return nil, err
	}
	return together(all), nil
}

// together makes one state of those of all shards.
func together(all []*broker.GateState) *broker.GateState {
	out := all[0]
	for _, path := range slackgate.Paths {
		p := &out.Pools[path]
		for _, st := range all[1:] {
			q := &st.Pools[path]
			p.Limit += q.Limit
			p.Capacity += q.Capacity
			p.Waiting += q.Waiting
			p.Running += q.Running
			p.QueueAgeMS = max(p.QueueAgeMS, q.QueueAgeMS)
			p.ClassQueueAgeMS = max(p.ClassQueueAgeMS, q.ClassQueueAgeMS)
			out.Released[path] += st.Released[path]
			out.RunningAges[path] = append(out.RunningAges[path], st.RunningAges[path]...)
			out.SilentAges[path] = append(out.SilentAges[path], st.SilentAges[path]...)
			out.Demands[path] = append(out.Demands[path], st.Demands[path]...)
		}
		for _, ages := range [][]int64{out.RunningAges[path], out.SilentAges[path]} { // oldest first
			slices.Sort(ages)
			slices.Reverse(ages)
		}
	}
	return out
}

// Slices reads the counts of measured calls over all shards.
func (s *Store) Slices(ctx context.Context, series []latency.Series, from, to int64) ([][]*latency.Histogram, error) {
	all, err := gather(s, func(_ int, shard store.Shard) ([][]*latency.Histogram, error) {
		return shard.Slices(ctx, series, from, to)
	})
	if err != nil {
		return nil, err
	}
	out := all[0]
	for _, more := range all[1:] {
		for i := range out {
			for n, h := range more[i] {
				switch {
				case h == nil:
				case out[i][n] == nil:
					out[i][n] = h
				default:
					out[i][n].Merge(h)
				}
			}
		}
	}
	return out, nil
}

// SmallestSlackMS is the slack of the most urgent waiting job of all shards.
func (s *Store) SmallestSlackMS(ctx context.Context, path slackgate.Path) (slack int64, ok bool, err error) {
	type least struct {
		slack int64
		ok    bool
	}
	all, err := gather(s, func(_ int, shard store.Shard) (l least, err error) {
		l.slack, l.ok, err = shard.SmallestSlackMS(ctx, path)
		return l, err
	})
	if err != nil {
		return 0, false, err
	}
	for _, l := range all {
		if l.ok && (!ok || l.slack < slack) {
			slack, ok = l.slack, true
		}
	}
	return slack, ok, nil
}

// Totals are the running sums of all shards.
func (s *Store) Totals(ctx context.Context) (broker.Totals, error) {
	all, err := gather(s, func(_ int, shard store.Shard) (broker.Totals, error) { return shard.Totals(ctx) })
	if err != nil {
		return nil, err
	}
	for _, more := range all[1:] {
		all[0].Add(more)
	}
	return all[0], nil
}

// Overview is what can be said of the books of all shards without reading a row.
func (s *Store) Overview(ctx context.Context) (*ledger.Overview, error) {
	all, err := gather(s, func(_ int, shard store.Shard) (*ledger.Overview, error) { return shard.Overview(ctx) })
	if err != nil {
		return nil, err
	}
	for _, more := range all[1:] {
		all[0].Add(more)
	}
	return all[0], nil
}

// CheckLedgers holds the books of each shard against each other. Nothing is booked over two shards, so that all
// balance if each does.
func (s *Store) CheckLedgers(ctx context.Context) (*ledger.Report, error) {
	all, err := gather(s, func(_ int, shard store.Shard) (*ledger.Report, error) { return shard.CheckLedgers(ctx) })
	if err != nil {
		return nil, err
	}
	out := &ledger.Report{Balanced: true, AtMS: all[0].AtMS, Totals: broker.Totals{}}
	for shard, r := range all {
		out.Balanced = out.Balanced && r.Balanced
		out.Totals.Add(r.Totals)
		if shard == 0 {
			for _, i := range r.Items {
				out.Items = append(out.Items, &ledger.Item{Name: i.Name, OK: true})
			}
		}
		for at, i := range r.Items {
			sum := out.Items[at]
			sum.OK, sum.Found = sum.OK && i.OK, sum.Found+i.Found
			if shard > 0 {
				sum.Detail += "; "
			}
			sum.Detail += fmt.Sprintf("shard %d: %s", shard, i.Detail)
			for _, p := range i.Problems {
				if len(sum.Problems) < ledger.MostProblems {
					sum.Problems = append(sum.Problems, fmt.Sprintf("shard %d: %s", shard, p))
				}
			}
		}
	}
	return out, nil
}

// DueWebhooks leaves of due what has something due in any shard. One that is away
// holds up what is its own: there is an error only when none answers.
func (s *Store) DueWebhooks(ctx context.Context, due ...broker.WebhookDue) ([]broker.WebhookDue, error) {
	found := make([][]broker.WebhookDue, len(s.shards))
	if err := s.some(func(i int, shard store.Shard) (err error) {
		found[i], err = shard.DueWebhooks(ctx, due...)
		return err
	}); err != nil {
		return nil, err
	}
	all := slices.Concat(found...)
	return slices.DeleteFunc(slices.Clone(due), func(d broker.WebhookDue) bool { return !slices.Contains(all, d) }), nil
}

// TakeWebhooks takes ends that are due, of each producer no more than asked for
// over all shards. Which shard is asked first changes, so that none waits for
// another's to run out. What was taken is told also when a shard is away.
func (s *Store) TakeWebhooks(ctx context.Context, lease time.Duration, due ...broker.WebhookDue) ([]broker.Untold, error) {
	var out []broker.Untold
	var away error
	left := slices.Clone(due)
	first := int(s.turn.Add(1) % uint64(len(s.shards)))
	for i := range s.shards {
		if len(left) == 0 {
			break
		}
		got, err := s.shards[(first+i)%len(s.shards)].TakeWebhooks(ctx, lease, left...)
		if err != nil {
			away = err
			continue
		}
		out = append(out, got...)
		for j := range left {
			for k := range got {
				if got[k].Producer == left[j].Producer {
					left[j].Most--
				}
			}
		}
		left = slices.DeleteFunc(left, func(d broker.WebhookDue) bool { return d.Most <= 0 })
	}
	if len(out) > 0 {
		return out, nil
	}
	return nil, away
}

// SettleWebhook puts down how an attempt ended.
func (s *Store) SettleWebhook(ctx context.Context, u *broker.Untold, result broker.WebhookResult, next time.Duration) (broker.WebhookResult, error) {
	return s.of(u.JobID).SettleWebhook(ctx, u, result, next)
}

// WebhooksWaiting is how many ends each producer's webhook is yet to be told of.
func (s *Store) WebhooksWaiting(ctx context.Context, producers []string) (map[string]int64, error) {
	all, err := gather(s, func(_ int, shard store.Shard) (map[string]int64, error) {
		return shard.WebhooksWaiting(ctx, producers)
	})
	if err != nil {
		return nil, err
	}
	out := all[0]
	for _, more := range all[1:] {
		for name, n := range more {
			out[name] += n
		}
	}
	return out, nil
}
