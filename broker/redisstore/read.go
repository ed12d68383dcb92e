package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/slackgate"
)

// State reads the gate's state.
func (s *Store) State(ctx context.Context, policy [slackgate.NumPaths]broker.PoolPolicy) (*broker.GateState, error) {
	sent := time.Now()
	v, err := s.run(ctx, scriptState, policy[slackgate.Paid].Limit, policy[slackgate.Free].Limit)
	if err != nil {
		return nil, err
	}
	r := asReply(v)
	st := &broker.GateState{NowMS: r.int()}
	for _, path := range slackgate.Paths {
		p := &st.Pools[path]
		p.Limit, p.Closed, p.FirstByteP95MS = policy[path].Limit, policy[path].Closed, policy[path].FirstByteP95MS
		p.Capacity, p.Waiting, p.Running, p.QueueAgeMS = int(r.int()), int(r.int()), int(r.int()), r.int()
		p.ClassQueueAgeMS = p.QueueAgeMS
		st.Released[path] = r.int()
		st.RunningAges[path], st.SilentAges[path] = r.ints(), r.ints()
		st.Demands[path] = readDemands(r, st.NowMS)
	}
	if r.err != nil {
		return nil, r.err
	}
	s.saw(sent, st.NowMS)
	return st, nil
}

// demandFadesMS is how long submissions count, on average, in what a producer
// wants.
const demandFadesMS = 30_000

// readDemands reads what producers want. What fades is divided by what a
// steady one of 1 would have come to since its first submission, in a second at
// least.
func readDemands(r *reply, nowMS int64) []slackgate.Demand {
	var out []slackgate.Demand
	list := r.texts()
	for i := 0; i+2 < len(list); i += 3 {
		n, err := strconv.ParseFloat(list[i], 64)
		at, err2 := strconv.ParseInt(list[i+1], 10, 64)
		first, err3 := strconv.ParseInt(list[i+2], 10, 64)
		if err := errors.Join(err, err2, err3); err != nil {
			r.err = fmt.Errorf("%w: demand: %w", broker.ErrUnavailable, err)
			return nil
		}
		n *= math.Exp(-float64(max(0, nowMS-at)) / demandFadesMS)
		out = append(out, slackgate.Demand(n/(demandFadesMS*-math.Expm1(-float64(max(1000, nowMS-first))/demandFadesMS))))
	}
	return out
}

// sweepMost bounds the work of one sweep, per pool and kind.
const sweepMost = 100

// settleBy is how long after its attempt must have been over, or after the
// store was back, an open spend row may still be settled by whoever made it.
// Workers try every 250 ms, and [ledger.GraceMS] is longer.
const settleBy = 5 * time.Second

// closeBy is how long after its job's deadline a lease lapses at the latest. A
// worker books what it cut at the deadline by then; one that is gone does not,
// and the sweep of the next half second closes the job.
const closeBy = 500 * time.Millisecond

// closeByMS is closeBy, or later in a lab that lets jobs run over.
func (s *Store) closeByMS() int64 { return closeBy.Milliseconds() + s.keepOverdue }

// MaxOffers is how often a job may be handed out again after a lost lease.
const MaxOffers = 2

// stoodStill is how long nobody must have swept before the store is taken to
// have been away; leaseGrace is what leases then get on top, and mostGraces how
// often between two renewals: a store that comes and goes is no crash of a
// worker either, and a worker that is gone is noticed all the same.
const (
	stoodStill = 1500 * time.Millisecond
	leaseGrace = 3 * time.Second
	mostGraces = 3
)

// Sweep ends waiting jobs whose first byte is past due, and puts back into their
// order or fails jobs whose lease has lapsed. Any process may call it.
func (s *Store) Sweep(ctx context.Context) (*broker.Swept, error) {
	sent := time.Now()
	v, err := s.run(ctx, scriptSweep, s.books, s.keepMS, sweepMost, MaxOffers,
		settleBy.Milliseconds()+s.keepOverdue, stoodStill.Milliseconds(), leaseGrace.Milliseconds(), s.keepOverdue, mostGraces)
	if err != nil {
		return nil, err
	}
	r := asReply(v)
	now := r.int()
	out := &broker.Swept{JustBack: r.int() == 1, Expired: r.int(), Reoffered: r.int(), Failed: r.int()}
	for gone := range r.groups(3) {
		l := broker.Lost{Class: gone[1], ID: gone[2]}
		if err := l.Path.UnmarshalText([]byte(gone[0])); err != nil {
			return nil, fmt.Errorf("%w: sweep: %w", broker.ErrUnavailable, err)
		}
		out.Lost = append(out.Lost, l)
	}
	out.Ended = r.jobs()
	if r.err != nil {
		return nil, r.err
	}
	s.saw(sent, now)
	return out, nil
}

// Waiting is how many jobs wait in a pool.
func (s *Store) Waiting(ctx context.Context, path slackgate.Path) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	n, err := s.rdb.ZCard(ctx, s.key("waiting", path.String())).Result()
	if err != nil {
		return 0, unavailable(err)
	}
	return n, nil
}

// WaitingIDs lists waiting jobs of a pool, the most urgent first, after skip of
// them.
func (s *Store) WaitingIDs(ctx context.Context, path slackgate.Path, skip, limit int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	members, err := s.rdb.ZRange(ctx, s.key("waiting", path.String()), int64(skip), int64(skip)+int64(limit)-1).Result()
	if err != nil {
		return nil, unavailable(err)
	}
	ids := make([]string, 0, len(members))
	for _, m := range members {
		// "<arrival>:<class>:<id>"
		if parts := strings.SplitN(m, ":", 3); len(parts) == 3 {
			ids = append(ids, parts[2])
		}
	}
	return ids, nil
}

// SmallestSlackMS is the slack of the most urgent waiting job; ok is false
// when nothing waits.
func (s *Store) SmallestSlackMS(ctx context.Context, path slackgate.Path) (slack int64, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	first, err := s.rdb.ZRangeWithScores(ctx, s.key("waiting", path.String()), 0, 0).Result()
	if err != nil {
		return 0, false, unavailable(err)
	}
	if len(first) == 0 {
		return 0, false, nil
	}
	return int64(first[0].Score) - s.NowMS(), true, nil
}

// Totals reads the running sums.
func (s *Store) Totals(ctx context.Context) (broker.Totals, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	m, err := s.rdb.HGetAll(ctx, s.key("totals")).Result()
	if err != nil {
		return nil, unavailable(err)
	}
	t := make(broker.Totals, len(m))
	for k, v := range m {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: totals: %s is not a number", broker.ErrUnavailable, k)
		}
		t[k] = n
	}
	return t, nil
}

// Ended delivers the ids of jobs as they end, until ctx is done. Messages can
// be lost while Redis is away: readers must also look for themselves now and
// then.
func (s *Store) Ended(ctx context.Context) (<-chan string, func() error) {
	return s.subscribe(ctx, "ended", strings.Fields)
}

// Cancels delivers the ids of running jobs whose producer took them back.
func (s *Store) Cancels(ctx context.Context) (<-chan string, func() error) {
	return s.subscribe(ctx, "cancel", strings.Fields)
}

// subscribe delivers the messages of a channel, of which one may hold several.
func (s *Store) subscribe(ctx context.Context, what string, messages func(payload string) []string) (<-chan string, func() error) {
	sub := s.rdb.Subscribe(ctx, s.key(what))
	in := sub.Channel(redis.WithChannelHealthCheckInterval(10*time.Second), redis.WithChannelSendTimeout(time.Second))
	out := make(chan string, 256)
	go func() {
		defer close(out)
		for m := range in {
			for _, msg := range messages(m.Payload) {
				select {
				case out <- msg:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out, sub.Close
}
