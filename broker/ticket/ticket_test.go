package ticket

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"leeway/broker/store/storetest"
	"leeway/slackgate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func inBubble(t *testing.T, f func(t *testing.T, q *Queue, rdb redis.UniversalClient)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		rdb := storetest.Dial(func(context.Context, string, string) (net.Conn, error) { return m.Dial() })
		defer func() {
			_ = rdb.Close()
			m.Close()
		}()
		f(t, New(rdb, "lw", 250*time.Millisecond, 24*time.Hour), rdb)
	})
}

// Pending looks at a key that is asynq's own: this holds the two together.
func TestTicketsAreAsynqTasks(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Queue, rdb redis.UniversalClient) {
		ctx := context.Background()
		pending := func(path slackgate.Path, want int64) {
			t.Helper()
			if n, err := q.Pending(ctx, path); n != want || err != nil {
				t.Errorf("%d pending in %s, %v; want %d", n, path, err, want)
			}
		}
		pending(slackgate.Paid, 0) // a queue that asynq has never seen
		if err := q.Put(ctx, slackgate.Paid, 3); err != nil {
			t.Fatal(err)
		}
		if err := q.Put(ctx, slackgate.Paid, 0); err != nil {
			t.Fatal(err)
		}
		pending(slackgate.Paid, 3)
		pending(slackgate.Free, 0)
		inspector := asynq.NewInspectorFromRedisClient(rdb)
		tasks, err := inspector.ListPendingTasks(q.Name(slackgate.Paid))
		if err != nil || len(tasks) != 3 {
			t.Fatalf("%d tasks, %v", len(tasks), err)
		}
		for _, task := range tasks {
			// No job's name, no job's deadline; a timeout beyond the longest.
			if task.Type != Type || len(task.Payload) != 0 || !task.Deadline.IsZero() || task.Timeout != 25*time.Hour || task.MaxRetry != maxRetry || task.Queue != "lw-paid" {
				t.Errorf("ticket %+v", task)
			}
		}
		if err := inspector.DeleteTask(q.Name(slackgate.Paid), tasks[0].ID); err != nil {
			t.Fatal(err)
		}
		pending(slackgate.Paid, 2)
	})
}

// trips notes what is sent in each round trip, those of new connections left
// out.
type trips struct{ sent []string }

func (c *trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "hello" {
			c.sent = append(c.sent, cmd.Name())
		}
		return next(ctx, cmd)
	}
}

func (c *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() != "hello" {
			c.sent = append(c.sent, fmt.Sprintf("%d %s", len(cmds), cmds[0].Name()))
		}
		return next(ctx, cmds)
	}
}

func TestTicketsShareAPipe(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Queue, rdb redis.UniversalClient) {
		ctx := context.Background()
		seen := &trips{}
		rdb.AddHook(seen)
		var total int64
		put := func(n int64, trips ...string) {
			t.Helper()
			seen.sent = nil
			if err := q.Put(ctx, slackgate.Paid, n); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(seen.sent, trips) {
				t.Errorf("%d tickets were sent as %q, not as %q", n, seen.sent, trips)
			}
			total += n
			if have, err := q.Pending(ctx, slackgate.Paid); have != total || err != nil {
				t.Errorf("%d pending, not %d, %v", have, total, err)
			}
		}
		// asynq names a queue once, and the server learns the script.
		put(1, "sadd", "2 evalsha", "evalsha", "eval", "publish")
		put(1, "2 evalsha") // and the workers are told
		put(2, "3 evalsha")
		put(maxPipe, "9 evalsha")
		put(maxPipe+1, "9 evalsha", "2 evalsha")
		put(2*maxPipe+3, "9 evalsha", "9 evalsha", "4 evalsha")
		// A server that lost the script, or another that has taken its place.
		if err := rdb.ScriptFlush(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		put(3, "4 evalsha", "evalsha", "eval", "evalsha", "evalsha", "publish")
		put(3, "4 evalsha")
	})
}

// What Redis refuses is no ticket.
func TestTicketsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Queue, rdb redis.UniversalClient) {
		ctx := context.Background()
		if err := q.Put(ctx, slackgate.Paid, 1); err != nil {
			t.Fatal(err)
		}
		pending := "asynq:{" + q.Name(slackgate.Paid) + "}:pending"
		if err := rdb.Del(ctx, pending).Err(); err != nil {
			t.Fatal(err)
		}
		if err := rdb.Set(ctx, pending, "no list", 0).Err(); err != nil {
			t.Fatal(err)
		}
		for _, n := range []int64{1, 2} {
			if err := q.Put(ctx, slackgate.Paid, n); err == nil {
				t.Errorf("%d tickets were put into a key that is no list", n)
			}
		}
	})
}

func TestTopUp(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Queue, _ redis.UniversalClient) {
		ctx := context.Background()
		for _, tt := range []struct {
			waiting, running, capacity int
			added, pending             int64
		}{
			{0, 0, 4, 0, 0},
			{3, 4, 4, 0, 0},  // no free slot
			{3, 5, 4, 0, 0},  // a worker died: fewer than none
			{1, 0, 4, 1, 1},  // lost: replaced
			{1, 0, 4, 0, 1},  // there already
			{2, 0, 4, 1, 2},  // one of two
			{10, 1, 4, 1, 3}, // min(waiting, free)
			{10, 3, 4, 0, 3}, // more than enough
			{10, 0, 0, 0, 3}, // no worker lives
		} {
			p := &slackgate.PoolState{Waiting: tt.waiting, Running: tt.running, Capacity: tt.capacity}
			added, err := q.TopUp(ctx, slackgate.Free, p)
			have, err2 := q.Pending(ctx, slackgate.Free)
			if added != tt.added || have != tt.pending || err != nil || err2 != nil {
				t.Errorf("%+v: added %d, %d pending, %v, %v", tt, added, have, err, err2)
			}
		}
	})
}

// A ticket whose message is gone stays active in asynq for ever; one that asynq
// can still take back is left to it.
func TestRemovePhantoms(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Queue, rdb redis.UniversalClient) {
		ctx := context.Background()
		if n, err := q.RemovePhantoms(ctx, slackgate.Paid); n != 0 || err != nil {
			t.Errorf("%d removed of none, %v", n, err)
		}
		if err := q.Put(ctx, slackgate.Paid, 3); err != nil {
			t.Fatal(err)
		}
		const key = "asynq:{lw-paid}:"
		inspector := asynq.NewInspectorFromRedisClient(rdb)
		pending, err := inspector.ListPendingTasks("lw-paid")
		if err != nil {
			t.Fatal(err)
		}
		if err := rdb.Del(ctx, key+"t:"+pending[0].ID).Err(); err != nil {
			t.Fatal(err)
		}
		// A worker takes all three and is gone: its leases lapse after 30 s.
		srv := asynq.NewServerFromRedisClient(rdb, asynq.Config{Concurrency: 3, Queues: map[string]int{"lw-paid": 1}, LogLevel: asynq.FatalLevel, TaskCheckInterval: 10 * time.Second})
		held := make(chan struct{})
		if err := srv.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { <-held; return nil })); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		active := func() int64 { return rdb.LLen(ctx, key+"active").Val() }
		if n := active(); n != 3 {
			t.Fatalf("%d active, want 3", n)
		}
		time.Sleep(14 * time.Minute)
		if n, err := q.RemovePhantoms(ctx, slackgate.Paid); n != 0 || err != nil || active() != 3 {
			t.Errorf("%d removed before their time, %v", n, err)
		}
		time.Sleep(2 * time.Minute)
		if n, err := q.RemovePhantoms(ctx, slackgate.Paid); n != 1 || err != nil || active() != 2 {
			t.Errorf("%d removed, %v, %d active; want 1 and 2: the others' worker lives", n, err, active())
		}
		if n := rdb.Exists(ctx, key+"t:"+pending[0].ID).Val(); n != 0 {
			t.Error("its hash is still there")
		}
		close(held)
		srv.Shutdown()
		if n := active(); n != 0 {
			t.Errorf("%d active at the end", n)
		}
	})
}

func TestRedisAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A Redis that takes connections and answers nothing.
		rdb := storetest.Dial(func(context.Context, string, string) (net.Conn, error) {
			c, s := net.Pipe()
			go func() {
				for buf := make([]byte, 512); ; {
					if _, err := s.Read(buf); err != nil {
						return
					}
				}
			}()
			return c, nil
		})
		q := New(rdb, "lw", 250*time.Millisecond, time.Hour)
		pool := &slackgate.PoolState{Waiting: 1, Capacity: 1}
		for what, call := range map[string]func() error{
			"put":     func() error { return q.Put(context.Background(), slackgate.Paid, 100) },
			"pending": func() error { _, err := q.Pending(context.Background(), slackgate.Paid); return err },
			"top up":  func() error { _, err := q.TopUp(context.Background(), slackgate.Paid, pool); return err },
		} {
			start := time.Now()
			if err := call(); err == nil || time.Since(start) > 250*time.Millisecond {
				t.Errorf("%s: %v after %v", what, err, time.Since(start))
			}
		}
		_ = rdb.Close()
		time.Sleep(time.Second)
	})
}
