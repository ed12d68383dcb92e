// Package archive copies both ledgers from Redis into PostgreSQL, row by row
// and in order, before Redis drops them. Any number of processes may run an
// [Archiver]: one works at a time, and another goes on where it stopped.
package archive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"leeway/broker"
	"leeway/broker/background"
	"leeway/broker/ledger"
	"leeway/broker/store"
)

// Options configure an Archiver. URL, Deployment, Store and Log are required.
type Options struct {
	// URL of the database, with the password inside. It is never logged.
	URL string
	// Deployment keeps the rows of several deployments in one database apart.
	Deployment string
	Store      store.Shard
	// Window is how long archived rows stay in Redis; 0: not at all.
	Window time.Duration
	// BatchRows is the most rows of one transaction. Defaults to 5000.
	BatchRows int
	// Every is how long to wait when there is nothing to do. Defaults to 1 s.
	Every time.Duration
	Log   *slog.Logger
}

// Bounds of what the database may take.
const (
	connectTimeout = 5 * time.Second
	batchTimeout   = 30 * time.Second
	pauseMax       = 30 * time.Second
	// expectEvery is how often the store is told that there is an archive.
	expectEvery = time.Hour
)

// Archiver archives until its context ends. Create it with [New].
type Archiver struct {
	Options
	config *pgx.ConnConfig
	// batches is told of each batch, for tests.
	batches func(k ledger.Kind, rows int)
}

// New checks the options; nothing is connected yet.
func New(o Options) (*Archiver, error) {
	config, err := pgx.ParseConfig(o.URL)
	if err != nil {
		return nil, broker.Fieldf("archive.url", "is not a PostgreSQL URL") // the URL may hold a password
	}
	config.ConnectTimeout = connectTimeout
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "leeway"
	}
	config.RuntimeParams["statement_timeout"] = fmt.Sprint(batchTimeout.Milliseconds())
	if o.BatchRows == 0 {
		o.BatchRows = 5000
	}
	if o.Every == 0 {
		o.Every = time.Second
	}
	return &Archiver{Options: o, config: config, batches: func(ledger.Kind, int) {}}, nil
}

// Run archives until ctx is done. A database or a Redis that is away is no
// failure of the loop: it goes on when they do, and meanwhile Redis keeps every
// row.
func (a *Archiver) Run(ctx context.Context) error {
	pause := a.Every
	away := false
	for ctx.Err() == nil {
		began := time.Now()
		err := a.session(ctx)
		if ctx.Err() != nil {
			break
		}
		if !away {
			a.Log.Warn("archive cannot go on: rows stay in Redis meanwhile", "error", err)
		}
		away = true
		if time.Since(began) > pauseMax {
			pause, away = a.Every, false // it had worked for a while
		}
		_ = background.Sleep(ctx, pause) // the loop sees that it was told to end
		pause = min(2*pause, pauseMax)
	}
	return nil //nolint:nilerr // the loop was told to end
}

// session archives over one connection until something fails.
func (a *Archiver) session(ctx context.Context) error {
	if err := a.Store.ExpectArchive(ctx); err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, a.config)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTimeout)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	expected := time.Now()
	if err := migrate(ctx, conn); err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	w := &writer{conn: conn, deployment: a.Deployment}
	if err := w.prepare(ctx); err != nil {
		return err
	}
	worked := false
	for {
		if time.Since(expected) > expectEvery {
			if err := a.Store.ExpectArchive(ctx); err != nil {
				return err
			}
			expected = time.Now()
		}
		mine, err := a.lock(ctx, w)
		if err != nil {
			return err
		}
		more := false
		if mine {
			if !worked {
				a.Log.Info("archive works here", "deployment", a.Deployment)
				worked = true
			}
			for _, k := range []ledger.Kind{ledger.Spend, ledger.Misses} {
				again, err := a.round(ctx, w, k)
				if err != nil {
					return fmt.Errorf("%s ledger: %w", k, err)
				}
				more = more || again
			}
		}
		if !more && background.Sleep(ctx, a.Every) != nil {
			return ctx.Err()
		}
	}
}

func (a *Archiver) lock(ctx context.Context, w *writer) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	return w.lock(ctx)
}

// round archives one batch of a ledger, drops what need not stay in Redis, and
// reports whether there is more to do.
func (a *Archiver) round(ctx context.Context, w *writer, k ledger.Kind) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	at, err := a.start(ctx, w, k)
	if err != nil {
		return false, err
	}
	n := 0
	switch k {
	case ledger.Spend:
		n, err = batch(ctx, a, w, k, &at, a.Store.SpendRows, func(r *broker.SpendRow) string { return r.ID }, spendTable)
	case ledger.Misses:
		n, err = batch(ctx, a, w, k, &at, a.Store.MissRows, func(r *broker.MissRow) string { return r.ID }, missTable)
	}
	if err != nil {
		return false, err
	}
	if n < a.BatchRows {
		if err := a.count(ctx, w, k, &at); err != nil {
			return false, err
		}
	}
	if err := a.Store.Archived(ctx, k, at.booked); err != nil {
		return false, err
	}
	if at.id == origin {
		return false, nil
	}
	_, more, err = a.Store.Trim(ctx, k, at.id, a.Window)
	return more || n == a.BatchRows, err
}

// position is how far a ledger is archived.
type position struct {
	id     string
	booked int64
}

// origin stands before the first row of a ledger.
const origin = "0-0"

// start reads the position, and begins one for a ledger that has none.
func (a *Archiver) start(ctx context.Context, w *writer, k ledger.Kind) (position, error) {
	at, err := w.position(ctx, k)
	if !errors.Is(err, pgx.ErrNoRows) {
		return at, err
	}
	books, err := a.Store.Books(ctx)
	if err != nil {
		return at, err
	}
	at = position{id: origin, booked: books.Booked(k) - books.Extent(k).Rows}
	return at, w.begin(ctx, k, at)
}

// count sets the number of archived rows right when every row there is has been
// archived: it is for showing how far behind the archive is, and drifts when
// Redis was restored from a backup.
func (a *Archiver) count(ctx context.Context, w *writer, k ledger.Kind, at *position) error {
	books, err := a.Store.Books(ctx)
	if err != nil {
		return err
	}
	last := books.Extent(k).Last
	if booked := books.Booked(k); booked != at.booked && (last == "" || ledger.CompareIDs(last, at.id) <= 0) {
		at.booked = booked
		return w.count(ctx, k, booked)
	}
	return nil
}

// batch archives rows after a position, at most BatchRows, and moves it. Rows that
// cannot be read are kept as they are, in a table of their own.
func batch[T any](ctx context.Context, a *Archiver, w *writer, k ledger.Kind, at *position,
	read func(ctx context.Context, f *ledger.Filter, cursor string, limit int) (*broker.Page[T], error), id func(*T) string, to *table[T],
) (int, error) {
	var rows []T
	var bad []broker.Unreadable
	cursor := at.id
	for len(rows)+len(bad) < a.BatchRows {
		p, err := read(ctx, &ledger.Filter{}, cursor, min(a.BatchRows-len(rows)-len(bad), broker.MaxPage))
		if err != nil {
			return 0, err
		}
		rows, bad = append(rows, p.Rows...), append(bad, p.Unreadable...)
		if cursor = p.Next; cursor == "" {
			break
		}
	}
	n := len(rows) + len(bad)
	if n == 0 {
		return 0, nil
	}
	next := position{booked: at.booked + int64(n)}
	if len(rows) > 0 {
		next.id = id(&rows[len(rows)-1])
	}
	if len(bad) > 0 {
		last := &bad[len(bad)-1]
		if next.id == "" || ledger.CompareIDs(last.ID, next.id) > 0 {
			next.id = last.ID
		}
		a.Log.Error("rows that cannot be read are kept apart", "ledger", string(k), "rows", len(bad), "last", last.ID, "error", last.Why)
	}
	written, err := write(ctx, w, k, *at, next, rows, bad, to)
	if err != nil {
		return 0, err
	}
	if written != len(rows) {
		a.Log.Warn("rows were in the archive already", "ledger", string(k), "rows", len(rows), "written", written, "up_to", next.id)
	}
	*at = next
	a.batches(k, n)
	return n, nil
}
