package workers

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"leeway/broker/store/storetest"
	"leeway/broker/ticket"
	"leeway/slackgate"
)

// overRedis runs f in virtual time with a Redis of its own.
func overRedis(t *testing.T, f func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		rdb := storetest.Dial(func(context.Context, string, string) (net.Conn, error) { return m.Dial() })
		defer func() {
			_ = rdb.Close()
			m.Close()
			synctest.Wait()
		}()
		f(t, m, rdb)
	})
}

// Only an answer that is an error makes asynq wait: no task, a script that
// Redis does not know yet, and a value are answers like any other.
func TestAsynqWaitsAfterErrorsOnly(t *testing.T) {
	overRedis(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		p := waitingClient{UniversalClient: rdb}
		for _, row := range []struct {
			name, script, refusal string
			want                  time.Duration
		}{
			{"a value", `return 1`, "", 0},
			{"nothing", `return nil`, "", 0},
			{"refused", `return 2`, "READONLY You can't write against a read only replica.", 2 * errorPause},
			{"an error of the script's own", `return redis.error_reply("NOT FOUND")`, "", errorPause},
		} {
			begun := time.Now()
			m.SetError(row.refusal)
			for range 2 {
				// The first run of a script is answered NOSCRIPT.
				err := redis.NewScript(row.script).Run(context.Background(), p, nil).Err()
				if (err == nil) != (row.name == "a value") {
					t.Errorf("%s: %v", row.name, err)
				}
			}
			if took := time.Since(begun); took != row.want {
				t.Errorf("%s: paused for %v, want %v", row.name, took, row.want)
			}
		}
	})
}

// Where there is no task asynq is told so once it has waited for one; a task
// that is put there meanwhile it gets at once.
func TestAsynqWaitsForTickets(t *testing.T) {
	overRedis(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		const poll = 10 * time.Millisecond
		ctx, cancel := context.WithCancel(context.Background())
		wakes := make(chan struct{}, 1)
		tickets := ticket.New(rdb, "lw", time.Second, time.Hour)
		listened := make(chan error)
		go func() { listened <- tickets.Listen(ctx, slackgate.Paid, wakes) }()
		synctest.Wait()
		p := waitingClient{rdb, tickets.PendingKey(slackgate.Paid), wakes, poll}
		take := func(key string) (took time.Duration, got bool) {
			begun := time.Now()
			err := redis.NewScript(`return redis.call('RPOP', KEYS[1])`).Run(ctx, p, []string{key}).Err()
			if err != nil && !errors.Is(err, redis.Nil) {
				t.Fatal(err)
			}
			return time.Since(begun), err == nil
		}
		put := func(after time.Duration, n int64) {
			time.AfterFunc(after, func() {
				if err := tickets.Put(ctx, slackgate.Paid, n); err != nil {
					t.Error(err)
				}
			})
		}
		expect := func(what string, want time.Duration, got bool) {
			t.Helper()
			if took, found := take(p.pending); took != want || found != got {
				t.Errorf("%s: after %v, %v; want %v, %v", what, took, found, want, got)
			}
		}
		take(p.pending) // the server learns the script
		expect("none", poll, false)
		put(3*time.Millisecond, 1)
		expect("put meanwhile", 3*time.Millisecond, true)
		put(4*time.Millisecond, 3)
		expect("three", 4*time.Millisecond, true)
		expect("the second", 0, true)
		expect("the third", 0, true)
		expect("none left", poll, false)
		// One that somebody else takes first.
		time.AfterFunc(2*time.Millisecond, func() { wakes <- struct{}{} })
		expect("woken for nothing", poll, false)
		if took, _ := take("another"); took != 0 {
			t.Errorf("another key: after %v", took)
		}
		cancel()
		if err := <-listened; err != nil {
			t.Error(err)
		}
	})
}
