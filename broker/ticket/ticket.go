// Package ticket puts asynq tickets into the pools' queues. A ticket says "one
// job is waiting in this pool" and names none: the worker that takes it claims
// the most urgent. Tickets are therefore interchangeable, and one delivered
// twice, late or for nothing does no harm.
package ticket

import (
	"context"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"leeway/slackgate"
)

// Type is the asynq task type of a ticket.
const Type = "leeway:ticket"

// maxRetry is how often asynq may deliver a ticket again after its worker was
// lost; with 0 asynq would archive it, and the archive fills up.
const maxRetry = 3

// Queue puts tickets into the queues of one deployment.
type Queue struct {
	rdb     redis.UniversalClient
	client  *asynq.Client
	prefix  string
	timeout time.Duration
	options [slackgate.NumPaths][]asynq.Option
}

// New returns the ticket queue of a deployment. timeout bounds every call;
// longest is the longest deadline a job may have: a ticket's own timeout is a
// backstop beyond it and carries no job's deadline.
func New(rdb redis.UniversalClient, prefix string, timeout, longest time.Duration) *Queue {
	q := &Queue{rdb: rdb, client: asynq.NewClientFromRedisClient(piped{rdb}), prefix: prefix, timeout: timeout}
	for _, path := range slackgate.Paths {
		q.options[path] = []asynq.Option{
			asynq.Queue(q.Name(path)),
			asynq.MaxRetry(maxRetry),
			asynq.Timeout(longest + time.Hour),
		}
	}
	return q
}

// Name is the asynq queue of a pool.
func (q *Queue) Name(path slackgate.Path) string { return q.prefix + "-" + path.String() }

// maxPipe bounds how many tickets go to Redis in one pipe. As many fit into the
// 4 KiB that a server reads at once: with more, a connection that holds nothing
// on its way (virtual time) would have both ends wait for each other to read.
const maxPipe = 8

// Put adds n tickets to a pool's queue, several of them in one round trip, and
// wakes the workers that wait for one.
func (q *Queue) Put(ctx context.Context, path slackgate.Path, n int64) error {
	for ; n > 0; n -= maxPipe {
		if err := q.put(ctx, path, min(n, maxPipe)); err != nil {
			return fmt.Errorf("ticket for %s: %w", path, err)
		}
	}
	return nil
}

func (q *Queue) put(ctx context.Context, path slackgate.Path, n int64) error {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	pipe := q.rdb.Pipeline()
	into := context.WithValue(ctx, pipeKey{}, pipe)
	for range n {
		if err := q.enqueue(into, path); err != nil {
			return err
		}
	}
	_ = pipe.Process(ctx, q.wake(ctx, path))
	sent, err := pipe.Exec(ctx)
	if err == nil {
		return nil
	}
	for _, cmd := range sent[:n] {
		// A server that has not seen the script wants it whole.
		if err := cmd.Err(); redis.HasErrorPrefix(err, "NOSCRIPT") {
			if err := q.enqueue(ctx, path); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
	}
	// Whether or not anybody hears of it, the tickets are there.
	_ = q.rdb.Process(ctx, q.wake(ctx, path))
	return nil
}

// wake says on the queue's channel that it has a ticket. A Cluster is to take
// it where it takes the ticket, and after that.
func (q *Queue) wake(ctx context.Context, path slackgate.Path) redis.Cmder {
	cmd := redis.NewIntCmd(ctx, "publish", q.channel(path), "")
	cmd.SetFirstKeyPos(1)
	return cmd
}

func (q *Queue) channel(path slackgate.Path) string { return "{" + q.Name(path) + "}:tickets" }

// Listen sends to wakes, which should have room for one, whenever tickets were
// put into a pool's queue, until ctx ends. Some in a row may be told once, and
// what is put while Redis is away may not be told at all.
func (q *Queue) Listen(ctx context.Context, path slackgate.Path, wakes chan<- struct{}) error {
	sub := q.rdb.Subscribe(ctx, q.channel(path))
	defer func() { _ = sub.Close() }()
	in := sub.Channel(redis.WithChannelHealthCheckInterval(10*time.Second), redis.WithChannelSendTimeout(time.Second))
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-in:
			if !ok {
				return nil
			}
		}
		select {
		case wakes <- struct{}{}:
		default: // told already
		}
	}
}

func (q *Queue) enqueue(ctx context.Context, path slackgate.Path) error {
	_, err := q.client.EnqueueContext(ctx, asynq.NewTask(Type, nil), q.options[path]...)
	return err
}

// piped is asynq's way to Redis. asynq enqueues one task in a round trip of its
// own; with a pipe in the context what it would send goes into that, and asynq
// is told that it was taken.
type piped struct{ redis.UniversalClient }

type pipeKey struct{}

// EvalSha puts the call into the context's pipe, if there is one.
func (p piped) EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd {
	pipe, ok := ctx.Value(pipeKey{}).(redis.Pipeliner)
	if !ok {
		return p.UniversalClient.EvalSha(ctx, sha1, keys, args...)
	}
	pipe.EvalSha(ctx, sha1, keys, args...)
	taken := redis.NewCmd(ctx)
	taken.SetVal(int64(1))
	return taken
}

// key is what asynq calls a part of a pool's queue.
func (q *Queue) key(path slackgate.Path, part string) string {
	return "asynq:{" + q.Name(path) + "}:" + part
}

// PendingKey is where asynq keeps the tickets that wait to be taken.
func (q *Queue) PendingKey(path slackgate.Path) string { return q.key(path, "pending") }

// Pending is how many tickets wait to be taken. asynq's inspector fails on a
// queue it has not seen and on a single lost hash; the list's length does not.
func (q *Queue) Pending(ctx context.Context, path slackgate.Path) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	n, err := q.rdb.LLen(ctx, q.PendingKey(path)).Result()
	if err != nil {
		return 0, fmt.Errorf("pending tickets of %s: %w", path, err)
	}
	return n, nil
}

// phantomAfter is how long a ticket's lease has lapsed when asynq will not take
// it back any more: it does so half a minute after, but not when the ticket's
// message is gone, and not with any of the queue while one message there cannot
// be read. asynq leases by its workers' clocks, which may be minutes off.
const phantomAfter = 15 * time.Minute

// phantomsMost bounds the phantoms of one call.
const phantomsMost = 1000

var removePhantoms = redis.NewScript(`
local cutoff = tonumber(redis.call("TIME")[1]) - tonumber(ARGV[1])
local ids = redis.call("ZRANGEBYSCORE", KEYS[1], "-inf", string.format("%.0f", cutoff), "LIMIT", 0, ARGV[2])
for _, id in ipairs(ids) do
  redis.call("ZREM", KEYS[1], id)
  redis.call("LREM", KEYS[2], 0, id)
  redis.call("DEL", ARGV[3] .. id)
end
return #ids
`)

// RemovePhantoms removes tickets that asynq would hold as active for ever, and
// returns how many. They are written nowhere else than by asynq, and this is the
// one thing that it has no call for. A ticket carries no job, so that none is
// missed; one whose worker lives after all ends with a warning of asynq's.
func (q *Queue) RemovePhantoms(ctx context.Context, path slackgate.Path) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	n, err := removePhantoms.Run(ctx, q.rdb, []string{q.key(path, "lease"), q.key(path, "active")},
		int64(phantomAfter.Seconds()), phantomsMost, q.key(path, "t:")).Int64()
	if err != nil {
		return 0, fmt.Errorf("phantom tickets of %s: %w", path, err)
	}
	return n, nil
}

// TopUp sees to it that at least min(waiting, free) tickets are pending in a
// pool, and returns how many it added.
func (q *Queue) TopUp(ctx context.Context, path slackgate.Path, pool *slackgate.PoolState) (int64, error) {
	want := int64(min(pool.Waiting, pool.Capacity-pool.Running))
	if want <= 0 {
		return 0, nil
	}
	have, err := q.Pending(ctx, path)
	if err != nil || have >= want {
		return 0, err
	}
	return want - have, q.Put(ctx, path, want-have)
}
