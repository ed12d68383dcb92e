package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
)

// ReportBackends shows how the backends look from one worker. The report is
// forgotten after ttl.
func (s *Store) ReportBackends(ctx context.Context, worker string, states []broker.BackendState, ttl time.Duration) error {
	raw, err := json.Marshal(states)
	if err != nil {
		return err
	}
	_, err = s.run(ctx, scriptReport, worker, raw, ttl.Milliseconds())
	return err
}

// Backends reads what the living workers report.
func (s *Store) Backends(ctx context.Context) ([]broker.BackendState, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	workers, err := s.rdb.ZRangeByScore(ctx, s.key("fleet"), &redis.ZRangeBy{
		Min: strconv.FormatInt(s.NowMS(), 10), Max: "+inf", Count: 1000,
	}).Result()
	if err != nil {
		return nil, unavailable(err)
	}
	if len(workers) == 0 {
		return nil, nil
	}
	keys := make([]string, len(workers))
	for i, w := range workers {
		keys[i] = s.key("fleet", w)
	}
	reports, err := s.rdb.MGet(ctx, keys...).Result()
	if err != nil {
		return nil, unavailable(err)
	}
	var out []broker.BackendState
	for i, r := range reports {
		raw, ok := r.(string)
		if !ok {
			continue // forgotten since
		}
		var states []broker.BackendState
		if json.Unmarshal([]byte(raw), &states) != nil {
			continue // one worker's nonsense must not hide the others
		}
		for j := range states {
			states[j].Worker = workers[i]
		}
		out = append(out, states...)
	}
	return out, nil
}

// TakeOutBackend tells all workers to leave a backend alone until it is put
// back.
func (s *Store) TakeOutBackend(ctx context.Context, name string, o broker.TakenOut) error {
	o.AtMS = s.NowMS()
	raw, err := json.Marshal(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.rdb.HSet(ctx, s.key("backends", "out"), name, raw).Err(); err != nil {
		return unavailable(err)
	}
	return nil
}

// putBackFor is how long workers, which look once a second, are told that a
// backend was put back.
const putBackFor = 10 * time.Second

// PutBackBackend undoes TakeOutBackend, and tells all workers to forget what has
// made them leave the backend alone.
func (s *Store) PutBackBackend(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	_, err := s.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.HDel(ctx, s.key("backends", "out"), name)
		p.Del(ctx, s.key("backends", "held", name))
		p.Set(ctx, s.key("backends", "back", name), s.NowMS(), putBackFor)
		return nil
	})
	if err != nil {
		return unavailable(err)
	}
	return nil
}

// HoldBackend tells all workers that a backend is to be left alone for a
// while: one of them has learned it the hard way.
func (s *Store) HoldBackend(ctx context.Context, name, why string, hold time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.rdb.Set(ctx, s.key("backends", "held", name), why, hold).Err(); err != nil {
		return unavailable(err)
	}
	return nil
}

// BackendOrders reads the orders for backends, in the order of the names.
func (s *Store) BackendOrders(ctx context.Context, names []string) ([]broker.BackendOrders, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var outs *redis.SliceCmd
	held, back := make([]*redis.DurationCmd, len(names)), make([]*redis.StringCmd, len(names))
	_, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		outs = p.HMGet(ctx, s.key("backends", "out"), names...)
		for i, n := range names {
			held[i], back[i] = p.PTTL(ctx, s.key("backends", "held", n)), p.Get(ctx, s.key("backends", "back", n))
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, unavailable(err)
	}
	orders := make([]broker.BackendOrders, len(names))
	for i := range names {
		orders[i].HeldFor = max(held[i].Val(), 0)
		orders[i].BackAtMS, _ = back[i].Int64() // 0: not put back, or nonsense
		raw, ok := outs.Val()[i].(string)
		if !ok {
			continue
		}
		orders[i].Out = new(broker.TakenOut)
		if err := json.Unmarshal([]byte(raw), orders[i].Out); err != nil {
			// Somebody wrote it, and meant the backend to be out.
			orders[i].Out.Why = "unreadable order"
		}
	}
	return orders, nil
}
