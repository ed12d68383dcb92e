package shard

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"leeway/broker"
	"leeway/broker/store"
	"leeway/slackgate"
)

// Store is the stores of several shards as one. What is of one job or batch goes
// to the shard that its id names, what is of all is asked of every shard at once
// and put together. Where a shard does not answer there is no answer, rather than
// one that leaves its part out.
//
// What no atomic step needs and what is the same for all lies in the first shard,
// whose calls are the Store's own unless said otherwise here: the clock, orders
// for backends, the audit, and the flags as they are shown.
type Store struct {
	first

	shards []store.Shard
	turn   atomic.Uint64 // whose turn it is to be asked for webhooks first
}

// first is the first shard.
type first = store.Store

// New returns the stores of all shards, in their order, as one.
func New(shards ...store.Shard) *Store { return &Store{first: shards[0], shards: shards} }

// of is the shard that an id names.
func (s *Store) of(id string) store.Shard { return s.shards[Of(id, len(s.shards))] }

// each asks every shard at once and waits for all.
func (s *Store) each(ask func(i int, shard store.Shard) error) error {
	errs := make([]error, len(s.shards))
	var wg sync.WaitGroup
	for i, shard := range s.shards {
		wg.Go(func() { errs[i] = ask(i, shard) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// some asks every shard at once where the answer of any will do: there is an
// error only when none has one.
func (s *Store) some(ask func(i int, shard store.Shard) error) error {
	var answered atomic.Bool
	err := s.each(func(i int, shard store.Shard) error {
		err := ask(i, shard)
		if err == nil {
			answered.Store(true)
		}
		return err
	})
	if answered.Load() {
		return nil
	}
	return err
}

// gather asks every shard for one thing.
func gather[T any](s *Store, ask func(i int, shard store.Shard) (T, error)) ([]T, error) {
	out := make([]T, len(s.shards))
	err := s.each(func(i int, shard store.Shard) (err error) {
		out[i], err = ask(i, shard)
		return err
	})
	return out, err
}

// Writable reports whether any shard takes writes; the error is that of one that
// does not.
func (s *Store) Writable(ctx context.Context) error {
	return s.some(func(_ int, shard store.Shard) error { return shard.Writable(ctx) })
}

// Durability is that of the first shard's server whose settings put something
// at risk; without one that of any.
func (s *Store) Durability(ctx context.Context) (*broker.Durability, error) {
	all, err := gather(s, func(_ int, shard store.Shard) (*broker.Durability, error) { return shard.Durability(ctx) })
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		if len(d.Risks()) > 0 {
			return d, nil
		}
	}
	return all[0], nil
}

// Get reads a job.
func (s *Store) Get(ctx context.Context, id string) (*broker.Job, error) {
	return s.of(id).Get(ctx, id)
}

// Purge deletes a job's text and answer.
func (s *Store) Purge(ctx context.Context, id string) error { return s.of(id).Purge(ctx, id) }

// spread asks for ids each in its shard, and brings the answers into their order.
func spread[T any](s *Store, ids []string, ask func(shard store.Shard, ids []string) ([]T, error)) ([]T, error) {
	places := map[int][]int{}
	for i, id := range ids {
		shard := Of(id, len(s.shards))
		places[shard] = append(places[shard], i)
	}
	out := make([]T, len(ids))
	for shard, places := range places {
		some := make([]string, len(places))
		for i, at := range places {
			some[i] = ids[at]
		}
		got, err := ask(s.shards[shard], some)
		if err != nil {
			return nil, err
		}
		for i, at := range places {
			out[at] = got[i]
		}
	}
	return out, nil
}

// CancelAll takes jobs back, those of one shard in one step.
func (s *Store) CancelAll(ctx context.Context, ids ...string) ([]broker.Cancellation, error) {
	return spread(s, ids, func(shard store.Shard, ids []string) ([]broker.Cancellation, error) {
		return shard.CancelAll(ctx, ids...)
	})
}

// Jobs reads the records of jobs without their answers.
func (s *Store) Jobs(ctx context.Context, ids []string) ([]*broker.Job, error) {
	return spread(s, ids, func(shard store.Shard, ids []string) ([]*broker.Job, error) { return shard.Jobs(ctx, ids) })
}

// Ended delivers the ids of jobs as they end.
func (s *Store) Ended(ctx context.Context) (<-chan string, func() error) {
	return s.merge(func(shard store.Shard) (<-chan string, func() error) { return shard.Ended(ctx) })
}

// News delivers the ids of jobs that were claimed or began to answer.
func (s *Store) News(ctx context.Context) (<-chan string, func() error) {
	return s.merge(func(shard store.Shard) (<-chan string, func() error) { return shard.News(ctx) })
}

// Relayed delivers the pieces that workers send to a replica.
func (s *Store) Relayed(ctx context.Context, replica string) (<-chan string, func() error) {
	return s.merge(func(shard store.Shard) (<-chan string, func() error) { return shard.Relayed(ctx, replica) })
}

// merge subscribes in every shard and delivers what comes from any. The channel
// is closed once all have been.
func (s *Store) merge(subscribe func(shard store.Shard) (<-chan string, func() error)) (<-chan string, func() error) {
	out := make(chan string, 256)
	done := make(chan struct{})
	var wg sync.WaitGroup
	var closers []func() error
	for _, shard := range s.shards {
		in, closeSub := subscribe(shard)
		closers = append(closers, closeSub)
		wg.Go(func() {
			for m := range in {
				select {
				case out <- m:
				case <-done:
				}
			}
		})
	}
	go func() {
		wg.Wait()
		close(out)
	}()
	return out, sync.OnceValue(func() error {
		close(done)
		var errs []error
		for _, closeSub := range closers {
			errs = append(errs, closeSub())
		}
		return errors.Join(errs...)
	})
}

// Budgets fills in what of each budget is spent today and reserved. A job counts
// where it ran, so that a budget that was set in the course of a day shows what
// was spent in every shard.
func (s *Store) Budgets(ctx context.Context, budgets map[string]*slackgate.Budget) (nowMS int64, err error) {
	type read struct {
		nowMS int64
		sums  map[string]*slackgate.Budget
	}
	all, err := gather(s, func(_ int, shard store.Shard) (read, error) {
		own := make(map[string]*slackgate.Budget, len(budgets))
		for f, b := range budgets {
			own[f] = new(*b)
		}
		now, err := shard.Budgets(ctx, own)
		return read{now, own}, err
	})
	if err != nil {
		return 0, err
	}
	for f, b := range budgets {
		b.SpentMicro, b.ReservedMicro = 0, 0
		for _, r := range all {
			b.SpentMicro += r.sums[f].SpentMicro
			b.ReservedMicro += r.sums[f].ReservedMicro
		}
	}
	return all[0].nowMS, nil
}

// OpenBatch begins a run of lines of a batch.
func (s *Store) OpenBatch(ctx context.Context, id, producer string, again bool, most int) (run int64, err error) {
	return s.of(id).OpenBatch(ctx, id, producer, again, most)
}

// SetLines puts down what was said to lines that became no jobs.
func (s *Store) SetLines(ctx context.Context, batch string, last bool, lines ...broker.BatchLine) error {
	return s.of(batch).SetLines(ctx, batch, last, lines...)
}

// Batch reads a batch as a whole.
func (s *Store) Batch(ctx context.Context, id string) (*broker.Batch, error) {
	return s.of(id).Batch(ctx, id)
}

// CloseBatch refuses all further lines of a batch.
func (s *Store) CloseBatch(ctx context.Context, id string) error { return s.of(id).CloseBatch(ctx, id) }

// Lines reads lines of a batch in their order.
func (s *Store) Lines(ctx context.Context, id string, after int64, limit int, jobs bool) ([]broker.BatchLine, error) {
	return s.of(id).Lines(ctx, id, after, limit, jobs)
}

// EndedLines reads lines of a batch in the order in which their jobs ended.
func (s *Store) EndedLines(ctx context.Context, id string, n int64, limit int) ([]broker.BatchLine, error) {
	return s.of(id).EndedLines(ctx, id, n, limit)
}
