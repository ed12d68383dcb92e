// Package redisstore keeps promises, jobs and ledgers in Redis. Each change of
// a job's state is one script, so that check, promise, record and ledger rows
// are one atomic step; one clock rules, Redis TIME, read inside the scripts.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/broker/store"
)

// Options configure a Store.
type Options struct {
	// Prefix names the keys; it becomes the hash tag. Required.
	Prefix string
	// Timeout bounds every call. Defaults to 250 ms.
	Timeout time.Duration
	// Keep is how long an ended job and its answer stay. Defaults to 24 h.
	Keep time.Duration
	// LedgerRows bounds each ledger's stream. Defaults to 1,000,000.
	LedgerRows int64
	// Rollups is how long the sums of a minute stay. Defaults to 30 days.
	Rollups time.Duration
	// KeepOverdue is how long waiting jobs keep their place after their first
	// byte was due, for a lab whose re-check is off. Defaults to 0.
	KeepOverdue time.Duration
}

// Store is the Redis store. It is safe for concurrent use.
type Store struct {
	rdb     redis.UniversalClient
	prefix  string
	keys    []string
	timeout time.Duration
	keepMS  int64
	rows    int64
	// rollups is how long a minute's sums stay; books tells the scripts that
	// book both.
	rollups time.Duration
	books   string
	// keepOverdue is Options.KeepOverdue, in ms.
	keepOverdue int64

	held atomic.Bool // no script runs; see Hold
	// clock is what Redis TIME was at a local instant, as far as replies tell.
	clock atomic.Pointer[reading]
}

type reading struct {
	nowMS int64
	at    time.Time
}

// New returns a store on a client made by [Client]. The caller closes the
// client.
func New(rdb redis.UniversalClient, o Options) *Store {
	if o.Timeout == 0 {
		o.Timeout = 250 * time.Millisecond
	}
	if o.Keep == 0 {
		o.Keep = 24 * time.Hour
	}
	if o.LedgerRows == 0 {
		o.LedgerRows = 1_000_000
	}
	if o.Rollups == 0 {
		o.Rollups = 30 * 24 * time.Hour
	}
	prefix := "{" + o.Prefix + "}"
	return &Store{
		rdb: rdb, prefix: prefix, keys: []string{prefix},
		timeout: o.Timeout, keepMS: o.Keep.Milliseconds(), rows: o.LedgerRows,
		rollups: o.Rollups, books: fmt.Sprintf("%d:%d", o.LedgerRows, o.Rollups.Milliseconds()),
		keepOverdue: o.KeepOverdue.Milliseconds(),
	}
}

// run evaluates a script within the store's timeout and maps what goes wrong.
func (s *Store) run(ctx context.Context, script *redis.Script, args ...any) (any, error) {
	if s.held.Load() {
		return nil, &broker.StoreError{Trouble: broker.TroubleNoAnswer, Err: errHeld}
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	v, err := script.Run(ctx, s.rdb, s.keys, args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, unavailable(err)
	}
	return v, nil
}

// saw takes the store's clock from the reply to a call that was sent at a local
// instant. How old the reply is nobody knows: the store read its clock at some time
// since then. So what was believed stands, as long as that is possible.
func (s *Store) saw(sent time.Time, nowMS int64) {
	for {
		was, now := s.clock.Load(), time.Now()
		next := &reading{nowMS: nowMS, at: now}
		if was != nil {
			latest := nowMS + now.Sub(sent).Milliseconds()
			next.nowMS = min(max(was.nowMS+now.Sub(was.at).Milliseconds(), nowMS), latest)
		}
		if s.clock.CompareAndSwap(was, next) {
			return
		}
	}
}

// NowMS is the store's clock, carried forward on the local monotonic clock
// since the last replies; 0 before the first.
func (s *Store) NowMS() int64 { return s.atMS(time.Now()) }

// atMS is a local instant on the store's clock; 0 before the first reply.
func (s *Store) atMS(at time.Time) int64 {
	r := s.clock.Load()
	if r == nil {
		return 0
	}
	return r.nowMS + at.Sub(r.at).Milliseconds()
}

// node is the server that holds the deployment's keys, for commands that name
// none: a Cluster would answer them from any of its servers.
func (s *Store) node(ctx context.Context) (redis.Cmdable, error) {
	cluster, ok := s.rdb.(*redis.ClusterClient)
	if !ok {
		return s.rdb, nil
	}
	master, err := cluster.MasterForKey(ctx, s.prefix)
	if err != nil {
		return nil, unavailable(err)
	}
	return master, nil
}

// SyncClock reads the store's clock.
func (s *Store) SyncClock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	node, err := s.node(ctx)
	if err != nil {
		return err
	}
	sent := time.Now()
	t, err := node.Time(ctx).Result()
	if err != nil {
		return unavailable(err)
	}
	s.saw(sent, t.UnixMilli()) //nolint:forbidigo // Redis TIME itself
	return nil
}

// Writable reports whether the store takes writes: a full or read-only Redis
// still answers reads.
func (s *Store) Writable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.rdb.Set(ctx, s.key("writable"), "1", time.Second).Err(); err != nil {
		return unavailable(err)
	}
	return nil
}

func (s *Store) key(parts ...string) string {
	return s.prefix + ":" + strings.Join(parts, ":")
}

// reply reads a flat reply of integers and strings.
type reply struct {
	v   []any
	i   int
	err error
}

func asReply(v any) *reply {
	list, ok := v.([]any)
	if !ok {
		return &reply{err: fmt.Errorf("%w: reply is %T, not a list", broker.ErrUnavailable, v)}
	}
	return &reply{v: list}
}

// part reads a reply within this one, after its length. What is wrong with it, or
// why there is none, is no fault of the rest.
func (r *reply) part() *reply {
	n := r.int()
	if n < 0 {
		return &reply{err: unavailable(errors.New(r.string()))}
	}
	if r.err == nil && n > int64(len(r.v)-r.i) {
		r.err = fmt.Errorf("%w: reply ends early", broker.ErrUnavailable)
	}
	if r.err != nil {
		return &reply{err: r.err}
	}
	r.i += int(n)
	return &reply{v: r.v[r.i-int(n) : r.i]}
}

func (r *reply) more() bool { return r.err == nil && r.i < len(r.v) }

func (r *reply) next() any {
	if r.err != nil {
		return nil
	}
	if r.i >= len(r.v) {
		r.err = fmt.Errorf("%w: reply ends early", broker.ErrUnavailable)
		return nil
	}
	r.i++
	return r.v[r.i-1]
}

func (r *reply) int() int64 {
	switch v := r.next().(type) {
	case int64:
		return v
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		if err == nil {
			return n
		}
	}
	if r.err == nil {
		r.err = fmt.Errorf("%w: reply holds no number at place %d", broker.ErrUnavailable, r.i-1)
	}
	return 0
}

// ints reads a list that follows its length.
func (r *reply) ints() []int64 {
	var out []int64
	for range r.int() {
		out = append(out, r.int())
		if r.err != nil {
			return nil
		}
	}
	return out
}

// groups reads texts that belong together n by n.
func (r *reply) groups(n int) iter.Seq[[]string] {
	texts := r.texts()
	if r.err == nil && len(texts)%n != 0 {
		r.err = fmt.Errorf("%w: reply has %d texts where each has %d", broker.ErrUnavailable, len(texts), n)
		texts = nil
	}
	return slices.Chunk(texts, n)
}

func (r *reply) string() string {
	v, ok := r.next().(string)
	if !ok && r.err == nil {
		r.err = fmt.Errorf("%w: reply holds no text at place %d", broker.ErrUnavailable, r.i-1)
	}
	return v
}

// job reads a job that ended: its id and its record. One whose record cannot be
// read has ended all the same: what is known of it is told.
func (r *reply) job() *broker.Job {
	id, m := r.string(), pairs(r.texts())
	if r.err != nil {
		return nil
	}
	j, err := readJob(id, m, "")
	if err != nil {
		j = &broker.Job{
			ID: id, State: broker.StateDone,
			Outcome: broker.Outcome(m["outcome"]), Cause: broker.Cause(m["cause"]), Reason: m["reason"],
		}
		_ = j.Path.UnmarshalText([]byte(m["path"]))
	}
	return j
}

// jobs reads such jobs after their number.
func (r *reply) jobs() []*broker.Job {
	var out []*broker.Job
	for range r.int() {
		if out = append(out, r.job()); r.err != nil {
			return nil
		}
	}
	return out
}

var _ store.Shard = (*Store)(nil)
