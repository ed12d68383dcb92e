//go:build server

package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"leeway/broker"
	"leeway/rehearsal/redistest"
	"leeway/slackgate"
)

// The first process settles how many shards there are.
func TestNumberOfShardsIsSettled(t *testing.T) {
	srv, ctx := redistest.Start(t), context.Background()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	rdb, err := Client(srv.URL(), 5*time.Second)
	must(err)
	t.Cleanup(func() { _ = rdb.Close() })
	store := func(prefix string) *Store {
		return New(rdb, Options{Prefix: prefix, Timeout: 5 * time.Second})
	}
	agree := func(prefix string, n, want int) {
		t.Helper()
		_, err := store(prefix).Agree(ctx, n)
		got, ok := errors.AsType[*broker.ShardsError](err)
		if ok != (want != 0) || ok && got.Stored != want {
			t.Errorf("%s with %d shards: %v", prefix, n, err)
		}
	}
	agree("two", 2, 0)
	agree("two", 2, 0)
	agree("two", 1, 2)
	agree("two", 3, 2)
	agree("one", 1, 0)
	agree("one", 2, 1)
	agree("one", 1, 0)
	must(store("used").Beat(ctx, broker.Worker{ID: "w", Path: slackgate.Paid, Slots: 1}, time.Hour)) // and never asked
	agree("used", 2, 1)
	if n, err := rdb.Exists(ctx, "{one}:shards", "{used}:shards").Result(); err != nil || n != 0 {
		t.Errorf("%d keys for one shard, %v", n, err)
	}

	held := store("held")
	held.Hold()
	if err := held.Beat(ctx, broker.Worker{ID: "w", Path: slackgate.Paid, Slots: 1}, time.Hour); !errors.Is(err, broker.ErrUnavailable) {
		t.Errorf("held: %v", err)
	}
	if n, err := rdb.Exists(ctx, "{held}:layout").Result(); err != nil || n != 0 {
		t.Errorf("it wrote: %d, %v", n, err)
	}
	held.Release()
	must(held.Beat(ctx, broker.Worker{ID: "w", Path: slackgate.Paid, Slots: 1}, time.Hour))
}
