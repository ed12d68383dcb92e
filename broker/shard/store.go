package shard

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"leeway/broker"
	"leeway/broker/redisstore"
	"leeway/slackgate"
	"leeway/slackgate/latency"
)

// Store is the stores of a deployment's shards as one. What is of one job or
// batch goes to the shard that its id names, what is of all is asked of every
// shard at once and put together. Where a shard does not answer there is no
// answer, rather than one that leaves its part out.
//
// What no atomic step needs and what is the same for all lies in the first
// shard: orders for backends, the audit, and the flags as they are shown.
type Store struct {
	shards []*redisstore.Store
	turn   atomic.Uint64 // whose turn it is to be asked for webhooks first
}

// New returns the stores of all shards, in their order, as one.
func New(shards ...*redisstore.Store) *Store { return &Store{shards: shards} }

// home is the first shard.
func (s *Store) home() *redisstore.Store { return s.shards[0] }

// Of is the shard that an id names.
func (s *Store) Of(id string) *redisstore.Store { return s.shards[Of(id, len(s.shards))] }

// each asks every shard at once and waits for all.
func (s *Store) each(ask func(i int, shard *redisstore.Store) error) error {
	if len(s.shards) == 1 {
		return ask(0, s.shards[0])
	}
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
func (s *Store) some(ask func(i int, shard *redisstore.Store) error) error {
	var answered atomic.Bool
	err := s.each(func(i int, shard *redisstore.Store) error {
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
func gather[T any](s *Store, ask func(i int, shard *redisstore.Store) (T, error)) ([]T, error) {
	out := make([]T, len(s.shards))
	err := s.each(func(i int, shard *redisstore.Store) (err error) {
		out[i], err = ask(i, shard)
		return err
	})
	return out, err
}

// NowMS is the first shard's clock: see [redisstore.Store.NowMS]. What is reckoned
// with a job's instants is reckoned by the clock of its own shard.
func (s *Store) NowMS() int64 { return s.home().NowMS() }

// SyncClock reads the clock.
func (s *Store) SyncClock(ctx context.Context) error { return s.home().SyncClock(ctx) }

// Writable reports whether any shard takes writes; the error is that of one that
// does not.
func (s *Store) Writable(ctx context.Context) error {
	return s.some(func(_ int, shard *redisstore.Store) error { return shard.Writable(ctx) })
}

// Durability is that of the first shard's server whose settings put something
// at risk; without one that of any.
func (s *Store) Durability(ctx context.Context) (*broker.Durability, error) {
	all, err := gather(s, func(_ int, shard *redisstore.Store) (*broker.Durability, error) { return shard.Durability(ctx) })
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
	return s.Of(id).Get(ctx, id)
}

// Purge deletes a job's text and answer.
func (s *Store) Purge(ctx context.Context, id string) error { return s.Of(id).Purge(ctx, id) }

// Cancel takes a job back for its producer.
func (s *Store) Cancel(ctx context.Context, id string) (broker.Cancellation, error) {
	return s.Of(id).Cancel(ctx, id)
}

// byShard groups the places of ids by the shard that they name.
func (s *Store) byShard(ids []string) map[int][]int {
	out := map[int][]int{}
	for i, id := range ids {
		shard := Of(id, len(s.shards))
		out[shard] = append(out[shard], i)
	}
	return out
}

// spread asks for ids each in its shard, and brings the answers into their order.
func spread[T any](s *Store, ids []string, ask func(shard *redisstore.Store, ids []string) ([]T, error)) ([]T, error) {
	if len(s.shards) == 1 {
		return ask(s.shards[0], ids)
	}
	out := make([]T, len(ids))
	for shard, places := range s.byShard(ids) {
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
	return spread(s, ids, func(shard *redisstore.Store, ids []string) ([]broker.Cancellation, error) {
		return shard.CancelAll(ctx, ids...)
	})
}

// Jobs reads the records of jobs without their answers; see
// [redisstore.Store.Jobs].
func (s *Store) Jobs(ctx context.Context, ids []string) ([]*broker.Job, error) {
	return spread(s, ids, func(shard *redisstore.Store, ids []string) ([]*broker.Job, error) { return shard.Jobs(ctx, ids) })
}

// Renew, OpenSpend, SawFirstByte, Finish, Handback and Settle are those of the
// claimed job's shard.

// Renew prolongs a claim's lease.
func (s *Store) Renew(ctx context.Context, c *broker.Claim, lease time.Duration) (broker.Lease, error) {
	return s.Of(c.ID).Renew(ctx, c, lease)
}

// OpenSpend writes the row of an attempt before its backend is called.
func (s *Store) OpenSpend(ctx context.Context, c *broker.Claim, row *broker.SpendRow) error {
	return s.Of(c.ID).OpenSpend(ctx, c, row)
}

// SawFirstByte notes that a claimed job's first answer text came.
func (s *Store) SawFirstByte(ctx context.Context, c *broker.Claim) error {
	return s.Of(c.ID).SawFirstByte(ctx, c)
}

// Finish commits a claim's outcome.
func (s *Store) Finish(ctx context.Context, c *broker.Claim, f *broker.Finish, rows ...broker.SpendRow) (*broker.Job, error) {
	return s.Of(c.ID).Finish(ctx, c, f, rows...)
}

// Handback returns a claimed job to its place in the order.
func (s *Store) Handback(ctx context.Context, c *broker.Claim, rows ...broker.SpendRow) (ended *broker.Job, err error) {
	return s.Of(c.ID).Handback(ctx, c, rows...)
}

// Settle books attempts of one job that have ended.
func (s *Store) Settle(ctx context.Context, rows ...broker.SpendRow) error {
	if len(rows) == 0 {
		return nil
	}
	return s.Of(rows[0].JobID).Settle(ctx, rows...)
}

// Relay sends answer text of a job to the API replica that asked for it.
func (s *Store) Relay(ctx context.Context, replica string, p *broker.Piece) error {
	return s.Of(p.JobID).Relay(ctx, replica, p)
}

// Measure counts calls that were made for a job.
func (s *Store) Measure(ctx context.Context, job string, samples ...latency.Sample) error {
	return s.Of(job).Measure(ctx, samples...)
}

// Ended delivers the ids of jobs as they end; see [redisstore.Store.Ended].
func (s *Store) Ended(ctx context.Context) (<-chan string, func() error) {
	return s.merge(func(shard *redisstore.Store) (<-chan string, func() error) { return shard.Ended(ctx) })
}

// Cancels delivers the ids of running jobs whose producer took them back.
func (s *Store) Cancels(ctx context.Context) (<-chan string, func() error) {
	return s.merge(func(shard *redisstore.Store) (<-chan string, func() error) { return shard.Cancels(ctx) })
}

// News delivers the ids of jobs that were claimed or began to answer.
func (s *Store) News(ctx context.Context) (<-chan string, func() error) {
	return s.merge(func(shard *redisstore.Store) (<-chan string, func() error) { return shard.News(ctx) })
}

// Relayed delivers the pieces that workers send to a replica.
func (s *Store) Relayed(ctx context.Context, replica string) (<-chan string, func() error) {
	return s.merge(func(shard *redisstore.Store) (<-chan string, func() error) { return shard.Relayed(ctx, replica) })
}

// merge subscribes in every shard and delivers what comes from any. The channel
// is closed once all have been.
func (s *Store) merge(subscribe func(shard *redisstore.Store) (<-chan string, func() error)) (<-chan string, func() error) {
	if len(s.shards) == 1 {
		return subscribe(s.shards[0])
	}
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
	var once sync.Once
	return out, func() error {
		var errs []error
		once.Do(func() {
			close(done)
			for _, closeSub := range closers {
				errs = append(errs, closeSub())
			}
		})
		return errors.Join(errs...)
	}
}

// Backends reads what the living workers report.
func (s *Store) Backends(ctx context.Context) ([]broker.BackendState, error) {
	return s.home().Backends(ctx)
}

// ReportBackends shows how the backends look from one worker.
func (s *Store) ReportBackends(ctx context.Context, worker string, states []broker.BackendState, ttl time.Duration) error {
	return s.home().ReportBackends(ctx, worker, states, ttl)
}

// TakeOutBackend tells all workers to leave a backend alone.
func (s *Store) TakeOutBackend(ctx context.Context, name string, o broker.TakenOut) error {
	return s.home().TakeOutBackend(ctx, name, o)
}

// PutBackBackend undoes TakeOutBackend.
func (s *Store) PutBackBackend(ctx context.Context, name string) error {
	return s.home().PutBackBackend(ctx, name)
}

// HoldBackend tells all workers to leave a backend alone for a while.
func (s *Store) HoldBackend(ctx context.Context, name, why string, hold time.Duration) error {
	return s.home().HoldBackend(ctx, name, why, hold)
}

// BackendOrders reads the orders for backends.
func (s *Store) BackendOrders(ctx context.Context, names []string) ([]broker.BackendOrders, error) {
	return s.home().BackendOrders(ctx, names)
}

// TurnToProbe says whose turn it is to probe a pool, over all shards.
func (s *Store) TurnToProbe(ctx context.Context, pool string, everyMS int64) (bool, error) {
	return s.home().TurnToProbe(ctx, pool, everyMS)
}

// OpenProbe writes the row of a probe before its backend is called.
func (s *Store) OpenProbe(ctx context.Context, row *broker.SpendRow) error {
	return s.Of(row.JobID).OpenProbe(ctx, row)
}

// Budgets fills in what of each budget is spent today and reserved; see
// [redisstore.Store.Budgets]. A job counts where it ran, so that a budget that was
// set in the course of a day shows what was spent in every shard.
func (s *Store) Budgets(ctx context.Context, budgets map[string]*slackgate.Budget) (nowMS int64, err error) {
	if len(s.shards) == 1 {
		return s.shards[0].Budgets(ctx, budgets)
	}
	type read struct {
		nowMS int64
		sums  map[string]*slackgate.Budget
	}
	all, err := gather(s, func(_ int, shard *redisstore.Store) (read, error) {
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

// OpenBatch begins a run of lines of a batch; see [redisstore.Store.OpenBatch].
func (s *Store) OpenBatch(ctx context.Context, id, producer string, again bool, most int) (run int64, err error) {
	return s.Of(id).OpenBatch(ctx, id, producer, again, most)
}

// SetLines puts down what was said to lines that became no jobs.
func (s *Store) SetLines(ctx context.Context, batch string, last bool, lines ...broker.BatchLine) error {
	return s.Of(batch).SetLines(ctx, batch, last, lines...)
}

// Batch reads a batch as a whole.
func (s *Store) Batch(ctx context.Context, id string) (*broker.Batch, error) {
	return s.Of(id).Batch(ctx, id)
}

// CloseBatch refuses all further lines of a batch.
func (s *Store) CloseBatch(ctx context.Context, id string) error { return s.Of(id).CloseBatch(ctx, id) }

// Lines reads lines of a batch in their order.
func (s *Store) Lines(ctx context.Context, id string, after int64, limit int, jobs bool) ([]broker.BatchLine, error) {
	return s.Of(id).Lines(ctx, id, after, limit, jobs)
}

// EndedLines reads lines of a batch in the order in which their jobs ended.
func (s *Store) EndedLines(ctx context.Context, id string, n int64, limit int) ([]broker.BatchLine, error) {
	return s.Of(id).EndedLines(ctx, id, n, limit)
}
