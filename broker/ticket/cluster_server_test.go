//go:build server

package ticket

import (
	"context"
	"testing"
	"time"

	"leeway/broker/store/storetest"
	"leeway/rehearsal/redistest"
	"leeway/slackgate"
)

// On a Cluster the queues of the two pools live on whatever node they happen to;
// a pipe of tickets and the word of them go there.
func TestTicketsOnACluster(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	rdb, err := storetest.Client(c.URL(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rdb.Close() }()
	q := New(rdb, "lw", 5*time.Second, time.Hour)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, path := range slackgate.Paths {
		wakes, ended := make(chan struct{}, 1), make(chan error)
		go func() { ended <- q.Listen(ctx, path, wakes) }()
		defer func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		var n int64
		for heard, end := false, time.Now().Add(20*time.Second); !heard; {
			if time.Now().After(end) {
				t.Fatalf("nobody heard of %d tickets", n)
			}
			if err := q.Put(ctx, path, 3); err != nil {
				t.Fatal(err)
			}
			n += 3
			select {
			case <-wakes:
				heard = true
			case <-time.After(100 * time.Millisecond): // it may not listen yet
			}
		}
		if have, err := q.Pending(ctx, path); have != n || err != nil {
			t.Errorf("%d pending in %s, not %d, %v", have, path, n, err)
		}
	}
}
