package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/broker/store"
	"leeway/broker/store/storetest"
	"leeway/broker/ticket"
	"leeway/slackgate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type bench struct {
	*Reconciler
	t     *testing.T
	rdb   redis.UniversalClient
	redis *miniredis.Miniredis
	log   *syncBuffer

	mu     sync.Mutex // guards mended
	mended map[Mending]int64
}

func (b *bench) count(what Mending, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mended[what] += n
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func inBubble(t *testing.T, f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		rdb := storetest.Dial(func(context.Context, string, string) (net.Conn, error) { return m.Dial() })
		b := &bench{t: t, rdb: rdb, redis: m, log: &syncBuffer{}, mended: map[Mending]int64{}}
		store := storetest.New(rdb, storetest.Options{Prefix: "t"})
		b.Reconciler = &Reconciler{
			Store: store, Tickets: ticket.New(rdb, "t", 250*time.Millisecond, time.Hour), Policy: policy,
			Log:      slog.New(slog.NewJSONHandler(b.log, nil)),
			Draining: func(slackgate.Path) bool { return false },
			Strays:   true,
			Mended:   b.count,
		}
		b.must(store.Beat(context.Background(), broker.Worker{ID: "w", Path: slackgate.Paid, Slots: 4}, 24*time.Hour))
		defer func() {
			_ = rdb.Close()
			m.Close()
			time.Sleep(time.Second) // the client's own goroutines see that they are done
		}()
		f(b)
	})
}

func policy() (p [slackgate.NumPaths]broker.PoolPolicy) {
	p[slackgate.Paid] = broker.PoolPolicy{Limit: 100, FirstByteP95MS: 1200}
	p[slackgate.Free] = broker.PoolPolicy{Limit: 100, FirstByteP95MS: 4000}
	return p
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// put admits a job to paid and writes no ticket for it.
func (b *bench) put(id string, deadlineMS int64) {
	b.t.Helper()
	got, err := admit(b.Store, policy(), broker.Offer{
		Job:    &broker.Submission{Spec: broker.Spec{ID: id, Class: "c", Text: "x", Prefer: [2]slackgate.Path{slackgate.Paid}}, DeadlineInMS: deadlineMS, ReserveMS: 2000},
		LeftMS: deadlineMS, ReserveMS: 2000,
		Bounds: [2]slackgate.Bound{{Path: slackgate.Paid, MaxInFlight: 10_000, MaxQueueAgeMS: slackgate.Unbounded, MaxClassQueueAgeMS: slackgate.Unbounded}},
	})
	b.must(err)
	if got.Jobs[0].Path != slackgate.Paid {
		b.t.Fatalf("%s not admitted", id)
	}
}

func (b *bench) tickets() int64 {
	b.t.Helper()
	n, err := b.Tickets.Pending(context.Background(), slackgate.Paid)
	b.must(err)
	return n
}

func TestOnceMends(t *testing.T) {
	inBubble(t, func(b *bench) {
		ctx := context.Background()
		b.must(b.Once(ctx))
		for id, deadline := range map[string]int64{"due": 5000, "claimed": 600_000, "patient1": 600_000, "patient2": 600_000, "last": 4000} {
			b.put(id, deadline)
		}
		c, _, err := b.Store.Claim(ctx, slackgate.Paid, 100, 2*time.Second)
		if err != nil || c == nil || c.ID != "last" {
			t.Fatalf("%+v, %v", c, err)
		}
		// Its worker is gone, and there are no tickets at all.
		for range 2 { // another process sweeps, and writes no tickets
			time.Sleep(900 * time.Millisecond)
			_, err = b.Store.Sweep(ctx)
			b.must(err)
		}
		time.Sleep(1200 * time.Millisecond)
		b.must(b.Once(ctx))
		for id, want := range map[string]broker.Cause{"due": broker.CauseExpiredInQueue, "last": broker.CauseWorkerLost} {
			if v, err := b.Store.Get(ctx, id); err != nil || v.Cause != want {
				t.Errorf("%s: %+v, %v", id, v, err)
			}
			if n := strings.Count(b.log.String(), `"job_id":"`+id+`"`); n != 1 {
				t.Errorf("%s has %d lines in the log", id, n)
			}
		}
		if b.tickets() != 3 {
			t.Errorf("%d tickets for 3 waiting jobs", b.tickets())
		}
		b.must(b.Once(ctx))
		if b.tickets() != 3 {
			t.Errorf("%d tickets after a second look", b.tickets())
		}
		if want := map[Mending]int64{Expired: 1, Reoffered: 0, WorkerLost: 1, RecordLost: 0, Ticket: 3, Place: 0, Stray: 0, Phantom: 0}; !maps.Equal(b.mended, want) {
			t.Errorf("mended %v, want %v", b.mended, want)
		}
		rows, err := b.Store.MissRows(ctx, &ledger.Filter{}, "", 10)
		if err != nil || len(rows.Rows) != 2 {
			t.Errorf("%+v, %v", rows, err)
		}
	})
}

// A record that ends and cannot be read gets a line of what is known of it, and
// keeps nobody else from theirs.
func TestOneUnreadableRecord(t *testing.T) {
	inBubble(t, func(b *bench) {
		ctx := context.Background()
		b.put("broken", 3000)
		b.put("due", 4000)
		b.put("patient", 600_000)
		b.must(b.rdb.HSet(ctx, "{t}:job:broken", "spec", "{").Err())
		time.Sleep(3 * time.Second)
		b.must(b.Once(ctx))
		if b.tickets() != 1 {
			t.Errorf("%d tickets, want 1", b.tickets())
		}
		for _, want := range []string{`"job_id":"due"`, `"job_id":"broken","class":"","path":"paid"`} {
			if !strings.Contains(b.log.String(), want) {
				t.Errorf("no line has %s:\n%s", want, b.log)
			}
		}
	})
}

// A job whose record is gone has its line too.
func TestLostRecord(t *testing.T) {
	inBubble(t, func(b *bench) {
		ctx := context.Background()
		b.put("lost", 3000)
		b.must(b.rdb.Del(ctx, "{t}:job:lost").Err())
		time.Sleep(3 * time.Second)
		b.must(b.Once(ctx))
		b.must(b.Once(ctx))
		if n := strings.Count(b.log.String(), `"job_id":"lost"`); n != 1 || !strings.Contains(b.log.String(), `"reason":"record_lost"`) {
			t.Errorf("%d lines for it in %s", n, b.log)
		}
		if b.mended[RecordLost] != 1 || b.mended[WorkerLost] != 0 {
			t.Errorf("mended %v", b.mended)
		}
	})
}

// What was deleted from outside is put right, counted and said.
func TestStrays(t *testing.T) {
	inBubble(t, func(b *bench) {
		ctx := context.Background()
		b.put("j", 600_000)
		b.must(b.rdb.Del(ctx, "{t}:waiting:paid").Err())
		b.must(b.rdb.Set(ctx, "{t}:text:none", "x", 0).Err())
		b.must(b.Once(ctx))
		if b.mended[Place] != 1 || b.mended[Stray] != 1 || b.tickets() != 1 {
			t.Errorf("mended %v, %d tickets", b.mended, b.tickets())
		}
		if !strings.Contains(b.log.String(), `"placed":1,"removed":1`) {
			t.Errorf("log %s", b.log)
		}
		if c, _, err := b.Store.Claim(ctx, slackgate.Paid, 100, time.Minute); err != nil || c == nil || c.ID != "j" {
			t.Errorf("claimed %+v, %v", c, err)
		}
		// asynq holds a ticket of which it has nothing but the name.
		const key = "asynq:{t-paid}:"
		b.must(b.rdb.LPush(ctx, key+"active", "phantom").Err())
		b.must(b.rdb.ZAdd(ctx, key+"lease", redis.Z{Score: float64(time.Now().Add(-time.Hour).Unix()), Member: "phantom"}).Err())
		for range 2 { // looked for once a minute
			b.must(b.Once(ctx))
			time.Sleep(time.Minute)
		}
		b.must(b.Once(ctx))
		if b.mended[Phantom] != 1 || !strings.Contains(b.log.String(), "asynq would hold for ever") {
			t.Errorf("mended %v", b.mended)
		}
	})
}

// The loop outlives an outage, says so once, and mends afterwards.
func TestRunOutlivesAnOutage(t *testing.T) {
	inBubble(t, func(b *bench) {
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := b.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		b.put("j", 600_000)
		time.Sleep(Interval + time.Millisecond)
		if b.tickets() != 1 {
			t.Errorf("%d tickets", b.tickets())
		}
		for outage := range 2 {
			b.redis.SetError("LOADING Redis is loading the dataset in memory")
			if err := b.Once(ctx); !errors.Is(err, broker.ErrUnavailable) {
				t.Errorf("once: %v", err)
			}
			time.Sleep(10 * Interval)
			b.redis.SetError("")
			time.Sleep(2 * Interval)
			if n := strings.Count(b.log.String(), "reconciler cannot reach the store"); n != outage+1 {
				t.Errorf("outage %d is in the log %d times", outage+1, n)
			}
		}
		b.put("k", 600_000)
		time.Sleep(2 * Interval)
		if b.tickets() != 2 {
			t.Errorf("%d tickets after the outages", b.tickets())
		}
		cancel()
		wg.Wait()
	})
}

// reoffers replaces the gate: what moves is taken over, as the gate would have it
// done, and everything that was offered is noted.
func (b *bench) reoffers(moves func(id string) bool) (offered *[]string, lost *bool) {
	offered, lost = new([]string), new(bool)
	b.Reoffer = func(ctx context.Context, from slackgate.Path, jobs []*broker.Job, l bool) (moved, revoked int, err error) {
		*lost = l
		for _, j := range jobs {
			*offered = append(*offered, j.ID)
			if !moves(j.ID) {
				continue
			}
			moved++
			_, err := admit(b.Store, policy(), broker.Offer{
				Job: &broker.Submission{Spec: broker.Spec{ID: j.ID, Class: "c"}}, LeftMS: 600_000, ReserveMS: 2000, Again: &broker.Again{From: from},
				Bounds: [2]slackgate.Bound{{Path: from.Other(), MaxInFlight: 1000, MaxQueueAgeMS: slackgate.Unbounded, MaxClassQueueAgeMS: slackgate.Unbounded}},
			})
			b.must(err)
		}
		return moved, revoked, nil
	}
	return offered, lost
}

// The waiting jobs of a pool that is being drained, or has no worker left, are
// offered to the gate again; one that cannot be read holds up nobody.
func TestWhatWaitsIsOfferedAgain(t *testing.T) {
	for _, drained := range []bool{true, false} {
		inBubble(t, func(b *bench) {
			ctx := context.Background()
			for _, id := range []string{"a", "broken", "gone", "z"} {
				b.put(id, 600_000)
			}
			b.must(b.rdb.HSet(ctx, "{t}:job:broken", "spec", "{").Err())
			b.must(b.rdb.Del(ctx, "{t}:job:gone").Err())
			b.must(b.Store.Beat(ctx, broker.Worker{ID: "w", Path: slackgate.Free, Slots: 4}, 24*time.Hour))
			offered, lost := b.reoffers(func(id string) bool { return id == "a" })
			b.must(b.Once(ctx))
			if len(*offered) != 0 {
				t.Errorf("offered %v out of a pool in good health", *offered)
			}
			if drained {
				b.Draining = func(p slackgate.Path) bool { return p == slackgate.Paid }
			} else {
				b.must(b.Store.Leave(ctx, broker.Worker{ID: "w", Path: slackgate.Paid, Slots: 4}))
				for range 3 { // nobody had swept before: the workers may just not have been heard of
					b.must(b.Once(ctx))
					time.Sleep(time.Second)
				}
				if len(*offered) != 0 {
					t.Errorf("offered %v when the store was just back", *offered)
				}
			}
			b.must(b.Once(ctx))
			if got := strings.Join(*offered, " "); got != "a z" || *lost == drained || !strings.Contains(b.log.String(), `"moved":1`) {
				t.Errorf("drained %t: offered %v, lost %t, log %s", drained, got, *lost, b.log)
			}
			b.Reoffer = func(context.Context, slackgate.Path, []*broker.Job, bool) (int, int, error) {
				return 0, 0, broker.ErrUnavailable
			}
			if err := b.Once(ctx); !errors.Is(err, broker.ErrUnavailable) {
				t.Error(err)
			}
		})
	}
}

// However many jobs that cannot move are more urgent, the others are offered.
func TestAllThatWaitIsOfferedAgain(t *testing.T) {
	inBubble(t, func(b *bench) {
		const stuck = 3*reofferStays + 7
		for i := range stuck {
			b.put(fmt.Sprintf("stuck%d", i), 600_000)
		}
		for i := range 5 {
			b.put(fmt.Sprintf("moves%d", i), 700_000)
		}
		b.Draining = func(p slackgate.Path) bool { return p == slackgate.Paid }
		offered, _ := b.reoffers(func(id string) bool { return strings.HasPrefix(id, "moves") })
		looks, all := 0, func() int { return len(slices.Compact(slices.Sorted(slices.Values(*offered)))) }
		for ; looks < 10 && all() < stuck+5; looks++ {
			before := len(*offered)
			b.must(b.Once(context.Background()))
			if n := len(*offered) - before; n > reofferStays+reofferPage+5 {
				t.Errorf("%d offers in one look", n)
			}
		}
		if all() != stuck+5 || looks > 5 {
			t.Errorf("%d of %d jobs offered after %d looks", all(), stuck+5, looks)
		}
		// It begins again with the most urgent.
		*offered = nil
		b.must(b.Once(context.Background()))
		if len(*offered) == 0 || (*offered)[0] != "stuck0" {
			t.Errorf("offered %d jobs, %.20v", len(*offered), *offered)
		}
	})
}

// Two processes mend at once: nothing is mended twice.
func TestTwoReconcilers(t *testing.T) {
	inBubble(t, func(b *bench) {
		for i := range 20 {
			b.put(string(rune('a'+i)), 3000)
		}
		time.Sleep(2 * time.Second)
		var wg sync.WaitGroup
		for range 4 {
			process := *b.Reconciler // each has a memory of its own
			wg.Go(func() {
				if err := process.Once(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := strings.Count(b.log.String(), `"outcome":"expired"`); n != 20 {
			t.Errorf("%d lines for 20 jobs", n)
		}
		if rows, err := b.Store.MissRows(context.Background(), &ledger.Filter{}, "", 100); err != nil || len(rows.Rows) != 20 {
			t.Errorf("%d misses, %v", len(rows.Rows), err)
		}
	})
}

func admit(s store.Shard, p [slackgate.NumPaths]broker.PoolPolicy, o broker.Offer) (broker.OfferResults, error) {
	return storetest.Admit(context.Background(), s, p, o)
}
