//go:build server

package archive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/broker/store"
	"leeway/broker/store/storetest"
	"leeway/rehearsal/pgtest"
	"leeway/rehearsal/redistest"
	"leeway/slackgate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var bg = context.Background()

// world is a store over a real Redis and a real PostgreSQL to archive it in.
type world struct {
	store.Shard
	t     testing.TB
	redis *redistest.Server
	pg    *pgtest.Server
	rdb   redis.UniversalClient
	spent int
	// batches, if set, is told of each batch of the archivers started from now on.
	batches func(ledger.Kind, int)
}

const keepRows = 500

func newWorld(tb testing.TB) *world {
	tb.Helper()
	return newWorldOver(tb, redistest.Start(tb))
}

func newWorldOver(tb testing.TB, server *redistest.Server) *world {
	tb.Helper()
	w := &world{t: tb, redis: server, pg: pgtest.Start(tb)}
	rdb, err := storetest.Client(w.redis.URL(), 10*time.Second)
	w.must(err)
	tb.Cleanup(func() { _ = rdb.Close() })
	w.rdb = rdb
	w.Shard = storetest.New(rdb, storetest.Options{Prefix: "a", Timeout: 10 * time.Second, LedgerRows: keepRows})
	w.must(w.SyncClock(bg))
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// run starts an archiver; stop ends it.
func (w *world) run(o Options) (stop func()) {
	w.t.Helper()
	o.URL, o.Deployment, o.Store, o.Log = w.pg.URL(), "test", w.Shard, slog.New(slog.DiscardHandler)
	o.Every = 10 * time.Millisecond
	a, err := New(o)
	w.must(err)
	if w.batches != nil {
		a.batches = w.batches
	}
	ctx, cancel := context.WithCancel(bg)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := a.Run(ctx); err != nil {
			w.t.Error(err)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// book books n attempts and n arrivals without slack.
func (w *world) book(n int) {
	w.t.Helper()
	var rows []broker.SpendRow
	var offers []broker.Offer
	for range n {
		w.spent++
		row := broker.SpendRow{
			JobID: fmt.Sprintf("job-%d", w.spent), Attempt: 1, Path: slackgate.Paid, Class: "c", Producer: "p\x00", Backend: "b",
			Currency: "USD", PriceVersion: "1", MaxCostMicro: 10, Priced: true, MaxInputTokens: 1, MaxOutputTokens: 1,
		}
		w.must(w.OpenProbe(bg, &row))
		row.InputTokens, row.OutputTokens, row.CostMicro, row.Known, row.Result = 2, 3, int64(w.spent), broker.KnownReported, "whole"
		rows = append(rows, row)
		j := &broker.Submission{Spec: broker.Spec{ID: fmt.Sprintf("late-%d", w.spent), Class: "c"}, DeadlineInMS: 1000, ReserveMS: 2000}
		offers = append(offers, broker.Offer{Job: j, LeftMS: 1000, ReserveMS: 2000, Miss: true})
	}
	w.must(w.Settle(bg, rows...))
	_, err := storetest.Admit(bg, w, [slackgate.NumPaths]broker.PoolPolicy{}, offers...)
	w.must(err)
}

// bookOne opens and settles one attempt of a job of its own. An error leaves
// open whether it is booked.
func (w *world) bookOne(ctx context.Context, n int) error {
	row := broker.SpendRow{
		JobID: fmt.Sprintf("job-%d", n), Attempt: 1, Path: slackgate.Paid, Class: "c", Producer: "p", Backend: "b",
		Currency: "USD", PriceVersion: "1", MaxCostMicro: 10, Priced: true, MaxInputTokens: 1, MaxOutputTokens: 1,
	}
	if err := w.OpenProbe(ctx, &row); err != nil {
		return err
	}
	row.InputTokens, row.OutputTokens, row.CostMicro, row.Known, row.Result = 2, 3, 5, broker.KnownReported, "whole"
	return w.Settle(ctx, row)
}

func (w *world) query(sql string, into ...any) {
	w.t.Helper()
	conn, err := pgx.Connect(bg, w.pg.URL())
	w.must(err)
	defer func() { _ = conn.Close(bg) }()
	w.must(conn.QueryRow(bg, sql).Scan(into...))
}

// lag is how many rows the archive is behind, as the metrics say.
func (w *world) lag() int64 {
	w.t.Helper()
	books, err := w.Overview(bg)
	w.must(err)
	st := books.Archive
	if st == nil {
		return 1 << 40 // the archiver has not begun
	}
	return st.LagRows[ledger.Spend] + st.LagRows[ledger.Misses]
}

// caughtUp waits until the archive has everything.
func (w *world) caughtUp() {
	w.t.Helper()
	for end := time.Now().Add(20 * time.Second); w.lag() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("the archive is still %d rows behind", w.lag())
		}
	}
}

// archived holds the archive against what was booked: every row once.
func (w *world) archived() {
	w.t.Helper()
	var rows, jobs, cost, misses, late int64
	w.query("SELECT count(*), count(DISTINCT job_id), coalesce(sum(cost_micro), 0)::bigint FROM leeway.spend WHERE deployment = 'test'", &rows, &jobs, &cost)
	w.query("SELECT count(*), count(DISTINCT job_id) FROM leeway.miss WHERE deployment = 'test' AND path = 'reject' AND cause = 'arrived_without_slack'", &misses, &late)
	n := int64(w.spent)
	if rows != n || jobs != n || cost != n*(n+1)/2 || misses != n || late != n {
		w.t.Errorf("archived: %d spend rows of %d jobs at %d, %d misses of %d jobs; booked were %d of each at %d", rows, jobs, cost, misses, late, n, n*(n+1)/2)
	}
}

func (w *world) rowsInRedis() int64 {
	w.t.Helper()
	books, err := w.Books(bg)
	w.must(err)
	return max(books.Spend.Rows, books.Misses.Rows)
}

func (w *world) balanced() {
	w.t.Helper()
	r, err := w.CheckLedgers(bg)
	w.must(err)
	if !r.Balanced {
		for _, i := range r.Items {
			w.t.Errorf("%s: %v", i.Name, i.Problems)
		}
	}
}

func TestArchive(t *testing.T) {
	w := newWorld(t)
	w.book(50) // before there is an archive
	stop := w.run(Options{BatchRows: 64, Window: time.Hour})
	w.caughtUp()
	w.archived()
	w.book(3 * keepRows)
	w.caughtUp()
	w.archived()
	for end := time.Now().Add(20 * time.Second); w.rowsInRedis() > keepRows; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d rows are still in Redis", w.rowsInRedis())
		}
	}
	w.balanced()
	stop()
	// Nobody archives: everything booked meanwhile stays.
	w.book(2 * keepRows)
	if n := w.rowsInRedis(); n != 3*keepRows {
		t.Errorf("%d rows in Redis while the archive is away, want %d", n, 3*keepRows)
	}
	if n := w.lag(); n != 4*keepRows {
		t.Errorf("the archive is said to be %d rows behind, it is %d", n, 4*keepRows)
	}
	// Another process goes on where it stopped, and only one of two works.
	stop1, stop2 := w.run(Options{BatchRows: 64}), w.run(Options{BatchRows: 64})
	w.caughtUp()
	w.archived()
	stop1()
	w.book(10)
	w.caughtUp()
	w.archived()
	stop2()
	w.balanced()
}

// The database is away while rows are booked and comes back, several times and
// without a farewell.
func TestArchiveDownAndBack(t *testing.T) {
	w := newWorld(t)
	stop := w.run(Options{BatchRows: 32})
	defer stop()
	for round := range 3 {
		w.book(300)
		if round == 0 {
			w.caughtUp()
		}
		w.pg.Kill() // in the middle of its work in later rounds
		w.book(300)
		if round > 0 {
			w.balanced()
		}
		w.pg.Run()
		w.book(100)
		w.caughtUp()
		w.archived()
	}
	var spend, miss int64
	w.query("SELECT (SELECT booked FROM leeway.cursor WHERE ledger = 'spend'), (SELECT booked FROM leeway.cursor WHERE ledger = 'misses')", &spend, &miss)
	if spend != int64(w.spent) || miss != int64(w.spent) {
		t.Errorf("the cursors count %d and %d rows, booked were %d", spend, miss, w.spent)
	}
	w.balanced()
}

// A restored database whose position is older than its rows takes nothing
// twice, and a position that moved under a writer stops it.
func TestNothingTwice(t *testing.T) {
	w := newWorld(t)
	w.must(w.ExpectArchive(bg))
	w.book(100)
	stop := w.run(Options{BatchRows: 32, Window: time.Hour})
	w.caughtUp()
	stop()
	var dummy int
	w.query("WITH moved AS (UPDATE leeway.cursor SET row_ms = 0, row_seq = 0, booked = 0 RETURNING 1) SELECT count(*)::int FROM moved", &dummy)
	stop = w.run(Options{BatchRows: 32, Window: time.Hour})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var booked int64
		w.query("SELECT min(booked) FROM leeway.cursor", &booked)
		if booked == 100 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the archive did not catch up again")
		}
	}
	stop()
	w.archived()

	conn, err := pgx.Connect(bg, w.pg.URL())
	w.must(err)
	defer func() { _ = conn.Close(bg) }()
	wr := &writer{conn: conn, deployment: "test"}
	w.must(wr.prepare(bg))
	rows := []broker.SpendRow{{ID: "99-1", JobID: "x", Attempt: 1}}
	if _, err := write(bg, wr, ledger.Spend, position{id: "1-1"}, position{id: "99-1", booked: 1}, rows, nil, spendTable); !errors.Is(err, errMoved) {
		t.Errorf("wrote from a position that is not there: %v", err)
	}
	w.archived()
}

// Rows that cannot be read are kept apart, and the archive goes on behind them.
func TestUnreadableRows(t *testing.T) {
	w := newWorld(t)
	w.book(10)
	for k, values := range map[string][]any{"spend": {"row", "{\x00"}, "miss": {"path", "nowhere"}} {
		w.must(w.rdb.XAdd(bg, &redis.XAddArgs{Stream: "{a}:ledger:" + k, Values: values}).Err())
	}
	stop := w.run(Options{BatchRows: 4, Window: time.Hour})
	defer stop()
	w.book(10)
	kept := func() (n int64) {
		w.query("SELECT (SELECT count(*) FROM leeway.spend) + (SELECT count(*) FROM leeway.miss)", &n)
		return n
	}
	for end := time.Now().Add(20 * time.Second); w.lag() > 0 || kept() < 40; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d of 40 rows are archived", kept())
		}
	}
	w.archived()
	var apart, named int64
	w.query(`SELECT count(*), count(*) FILTER (WHERE why <> '' AND raw LIKE '{"%') FROM leeway.unreadable`, &apart, &named)
	if apart != 2 || named != 2 {
		t.Errorf("%d rows are kept apart, %d of them as they were", apart, named)
	}
}

func TestMigrations(t *testing.T) {
	pg := pgtest.Start(t)
	connect := func() *pgx.Conn {
		c, err := pgx.Connect(bg, pg.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(bg) })
		return c
	}
	// Many at once, and again: each migration is made once.
	var wg sync.WaitGroup
	for range 5 {
		c := connect()
		wg.Go(func() {
			for range 2 {
				if err := migrate(bg, c); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	c := connect()
	// A database that is ahead of the build is left alone.
	if _, err := c.Exec(bg, "INSERT INTO leeway.migration (version) VALUES (1000)"); err != nil {
		t.Fatal(err)
	}
	if err := migrate(bg, c); err == nil {
		t.Error("a newer schema was taken for this one")
	}
}
