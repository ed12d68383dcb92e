package redisstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/slackgate"
)

// GateState is what the store says of the pools at one instant.
type GateState struct {
	NowMS int64
	Pools [slackgate.NumPaths]slackgate.PoolState
	// RunningAges are the ages of the running jobs, oldest first, at most 512
	// a pool.
	RunningAges [slackgate.NumPaths][]int64
	// SilentAges are those of them that have had no answer text yet.
	SilentAges [slackgate.NumPaths][]int64
	// Released counts the claims that have come to an end.
	Released [slackgate.NumPaths]int64
}

// State reads the gate's state.
func (s *Store) State(ctx context.Context, policy [slackgate.NumPaths]PoolPolicy) (*GateState, error) {
	v, err := s.run(ctx, scriptState, policy[slackgate.Paid].Limit, policy[slackgate.Free].Limit)
	if err != nil {
		return nil, err
	}
	r := asReply(v)
	st := &GateState{NowMS: r.int()}
	for _, path := range slackgate.Paths {
		p := &st.Pools[path]
		p.Limit, p.Closed, p.FirstByteP95MS = policy[path].Limit, policy[path].Closed, policy[path].FirstByteP95MS
		p.Capacity, p.Waiting, p.Running, p.QueueAgeMS = int(r.int()), int(r.int()), int(r.int()), r.int()
		p.ClassQueueAgeMS = p.QueueAgeMS
		st.Released[path] = r.int()
		st.RunningAges[path], st.SilentAges[path] = r.ints(), r.ints()
	}
	if r.err != nil {
		return nil, r.err
	}
	s.saw(st.NowMS)
	return st, nil
}

// Swept is what one sweep mended.
type Swept struct {
	Expired, Reoffered, Failed int64
	// Ended are the jobs that the sweep closed.
	Ended []string
}

// sweepMost bounds the work of one sweep, per pool and kind.
const sweepMost = 100

// MaxOffers is how often a job may be handed out again after a lost lease.
const MaxOffers = 2

// Sweep ends waiting jobs whose first byte is past due, and offers again or
// fails jobs whose lease has lapsed. p95 is what a re-offered job must still
// have. Any process may call it.
func (s *Store) Sweep(ctx context.Context, p95 [slackgate.NumPaths]int64) (*Swept, error) {
	v, err := s.run(ctx, scriptSweep, s.rows, s.keepMS, sweepMost, MaxOffers, p95[slackgate.Paid], p95[slackgate.Free])
	if err != nil {
		return nil, err
	}
	r := asReply(v)
	s.saw(r.int())
	out := &Swept{Expired: r.int(), Reoffered: r.int(), Failed: r.int()}
	for r.more() {
		out.Ended = append(out.Ended, r.string())
	}
	return out, r.err
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

// Page is one page of a ledger.
type Page[T any] struct {
	Rows []T `json:"rows"`
	// Next is the cursor of the next page; empty at the end.
	Next string `json:"next_cursor,omitempty"`
}

// MaxPage bounds a page of a ledger.
const MaxPage = 1000

// SpendPage reads settled spend rows after a cursor, oldest first.
func (s *Store) SpendPage(ctx context.Context, cursor string, limit int) (*Page[broker.SpendRow], error) {
	return page(ctx, s, "spend", cursor, limit, func(m redis.XMessage) (row broker.SpendRow, err error) {
		raw, _ := m.Values["row"].(string)
		err = json.Unmarshal([]byte(raw), &row)
		row.ID = m.ID
		return row, err
	})
}

// MissPage reads miss rows after a cursor, oldest first.
func (s *Store) MissPage(ctx context.Context, cursor string, limit int) (*Page[broker.MissRow], error) {
	return page(ctx, s, "miss", cursor, limit, missRow)
}

func missRow(m redis.XMessage) (broker.MissRow, error) {
	str := func(f string) string { v, _ := m.Values[f].(string); return v }
	num := func(f string) int64 { n, _ := strconv.ParseInt(str(f), 10, 64); return n }
	var adm broker.Admission
	row := broker.MissRow{
		ID: m.ID, JobID: str("job_id"), Class: str("class"), Producer: str("producer"),
		Outcome: broker.Outcome(str("outcome")), Cause: broker.Cause(str("cause")),
		AtMS: num("at_ms"), DeadlineMS: num("deadline_at_ms"),
		QueueWaitMS: num("queue_wait_ms"), FirstByteMS: num("first_byte_ms"), LateByMS: num("late_by_ms"),
	}
	if err := row.Path.UnmarshalText([]byte(str("path"))); err != nil {
		return row, err
	}
	if err := json.Unmarshal([]byte(str("admission")), &adm); err != nil {
		return row, err
	}
	row.SlackMS, row.QueueAgeMS, row.PredictedWaitMS = adm.SlackMS, adm.QueueAgeMS, adm.PredictedWaitMS
	return row, nil
}

func page[T any](ctx context.Context, s *Store, ledger, cursor string, limit int, read func(redis.XMessage) (T, error)) (*Page[T], error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	start := "-"
	if cursor != "" {
		if !isCursor(cursor) {
			return nil, broker.Fieldf("cursor", "is not one that a page named")
		}
		start = "(" + cursor
	}
	limit = min(max(limit, 1), MaxPage)
	msgs, err := s.rdb.XRangeN(ctx, s.key("ledger", ledger), start, "+", int64(limit)).Result()
	if err != nil {
		return nil, unavailable(err)
	}
	p := &Page[T]{Rows: make([]T, 0, len(msgs))}
	for _, m := range msgs {
		row, err := read(m)
		if err != nil {
			return nil, fmt.Errorf("ledger %s: row %s: %w", ledger, m.ID, err)
		}
		p.Rows = append(p.Rows, row)
	}
	if len(msgs) == limit {
		p.Next = msgs[len(msgs)-1].ID
	}
	return p, nil
}

// isCursor reports whether c is the place of a row: "<ms>-<n>", both below
// 2^63, so that Redis takes it too.
func isCursor(c string) bool {
	ms, n, ok := strings.Cut(c, "-")
	for _, part := range []string{ms, n} {
		if _, err := strconv.ParseUint(part, 10, 63); err != nil {
			return false
		}
	}
	return ok
}

// OpenSpendRows reads the attempts that are not settled.
func (s *Store) OpenSpendRows(ctx context.Context) ([]broker.SpendRow, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	m, err := s.rdb.HGetAll(ctx, s.key("spend", "open")).Result()
	if err != nil {
		return nil, unavailable(err)
	}
	rows := make([]broker.SpendRow, 0, len(m))
	for k, raw := range m {
		var row openRow
		if err := json.Unmarshal([]byte(raw), &row); err != nil {
			return nil, fmt.Errorf("open spend row %s: %w", k, err)
		}
		rows = append(rows, row.SpendRow)
	}
	return rows, nil
}

// Ended delivers the ids of jobs as they end, until ctx is done. Messages can
// be lost while Redis is away: readers must also look for themselves now and
// then.
func (s *Store) Ended(ctx context.Context) (<-chan string, func() error) {
	return s.subscribe(ctx, "ended")
}

// Cancels delivers the ids of running jobs whose producer took them back.
func (s *Store) Cancels(ctx context.Context) (<-chan string, func() error) {
	return s.subscribe(ctx, "cancel")
}

func (s *Store) subscribe(ctx context.Context, what string) (<-chan string, func() error) {
	sub := s.rdb.Subscribe(ctx, s.key(what))
	in := sub.Channel(redis.WithChannelHealthCheckInterval(10*time.Second), redis.WithChannelSendTimeout(time.Second))
	out := make(chan string, 256)
	go func() {
		defer close(out)
		for m := range in {
			select {
			case out <- m.Payload:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, sub.Close
}
