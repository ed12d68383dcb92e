//go:build server

package archive

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"leeway/broker/ledger"
	"leeway/rehearsal/redistest"
)

// Rows are booked at a steady pace and archived as they come, while Redis dies
// in the middle of the copy and comes back with its AOF, then the database, then
// both. What Redis acknowledged is in the archive once, and what it did not
// answer is there at most once.
func TestBothDieWhileCopying(t *testing.T) {
	w := newWorldOver(t, redistest.Start(t, "--appendfsync", "always"))
	var batches, acknowledged, unknown atomic.Int64
	w.batches = func(ledger.Kind, int) { batches.Add(1) }
	stop := w.run(Options{BatchRows: 4})
	defer stop()
	ctx, cancel := context.WithCancel(bg)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 1; ctx.Err() == nil; n++ {
			if w.bookOne(ctx, n) == nil {
				acknowledged.Add(1)
			} else {
				unknown.Add(1)
				<-time.After(5 * time.Millisecond) // nobody is there to answer
			}
		}
	}()
	more := func(what string, count *atomic.Int64, n int64) {
		t.Helper()
		n += count.Load()
		for end := time.Now().Add(30 * time.Second); count.Load() < n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d %s, want %d", count.Load(), what, n)
			}
		}
	}
	for _, fault := range []struct{ redis, database bool }{{true, false}, {false, true}, {true, true}} {
		more("batches", &batches, 3)
		if fault.redis {
			w.redis.Kill()
		}
		if fault.database {
			w.pg.Kill()
		}
		if fault.redis {
			w.redis.Run()
		}
		more("rows booked", &acknowledged, 30)
		if fault.database {
			w.pg.Run()
		}
	}
	more("batches", &batches, 3)
	cancel()
	<-done
	w.caughtUp()
	w.balanced()
	var rows, jobs int64
	w.query("SELECT count(*), count(DISTINCT job_id) FROM leeway.spend WHERE deployment = 'test'", &rows, &jobs)
	t.Logf("%d rows acknowledged, %d tries without an answer, %d rows archived of %d jobs", acknowledged.Load(), unknown.Load(), rows, jobs)
	if rows != jobs || rows < acknowledged.Load() || rows > acknowledged.Load()+unknown.Load() {
		t.Errorf("%d rows archived of %d jobs: %d were acknowledged, %d more may have been booked", rows, jobs, acknowledged.Load(), unknown.Load())
	}
}
