package redisstore

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/broker/ledger"
)

// archiveMark is how long the store goes on keeping every row after the last
// word of an archive.
const archiveMark = 7 * 24 * time.Hour

// ExpectArchive says that an archive is configured: from then on rows are
// dropped only by [Store.Trim]. It must be said again within a week.
func (s *Store) ExpectArchive(ctx context.Context) error {
	return s.markArchive(ctx, func(p redis.Pipeliner, key string) { p.HSetNX(ctx, key, "at", 0) })
}

func (s *Store) markArchive(ctx context.Context, mark func(p redis.Pipeliner, key string)) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	pipe := s.rdb.TxPipeline()
	mark(pipe, s.key("archive"))
	pipe.PExpire(ctx, s.key("archive"), archiveMark)
	if _, err := pipe.Exec(ctx); err != nil {
		return unavailable(err)
	}
	return nil
}

// Archived notes, for the metrics, that the archive has a ledger's first
// booked rows. It is as good as [Store.ExpectArchive].
func (s *Store) Archived(ctx context.Context, k ledger.Kind, booked int64) error {
	return s.markArchive(ctx, func(p redis.Pipeliner, key string) { p.HSet(ctx, key, string(k), booked, "at", s.NowMS()) })
}

// archive reads how far the archive has come; nil when none is configured.
func (s *Store) archive(ctx context.Context, b *ledger.Books) (*ledger.ArchiveState, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	m, err := s.rdb.HGetAll(ctx, s.key("archive")).Result()
	if err != nil {
		return nil, unavailable(err)
	}
	if len(m) == 0 {
		return nil, nil //nolint:nilnil // no archive is no error
	}
	num := func(f string) int64 { n, _ := strconv.ParseInt(m[f], 10, 64); return n }
	a := &ledger.ArchiveState{LastSuccessAtMS: num("at"), LagRows: map[ledger.Kind]int64{}}
	for _, k := range []ledger.Kind{ledger.Spend, ledger.Misses} {
		done := num(string(k))
		if m[string(k)] == "" {
			done = b.Booked(k) - b.Extent(k).Rows
		}
		a.LagRows[k] = max(0, b.Booked(k)-done)
	}
	return a, nil
}

// Overview is what can be said of the books without reading a row.
func (s *Store) Overview(ctx context.Context) (*ledger.Overview, error) {
	b, err := s.Books(ctx)
	if err != nil {
		return nil, err
	}
	out := &ledger.Overview{Balanced: b.Balanced(), Overdue: b.Overdue, Totals: b.Totals, Ledgers: map[ledger.Kind]ledger.InStore{}}
	if out.Archive, err = s.archive(ctx, b); err != nil {
		return nil, err
	}
	for _, k := range []ledger.Kind{ledger.Spend, ledger.Misses} {
		e := b.Extent(k)
		in := ledger.InStore{Rows: e.Rows, OldestAtMS: ledger.IDTimeMS(e.First)}
		if out.Archive != nil { // Redis drops by whole nodes: a few rows more are no news
			in.OverRows = max(0, e.Rows-s.rows)
		}
		out.Ledgers[k] = in
	}
	return out, nil
}

// Trim drops rows that are archived, up to and with the one named, when they
// are older than keepFor or more than the store's bound of rows. It returns how
// many, and whether there is more to drop.
func (s *Store) Trim(ctx context.Context, k ledger.Kind, archived string, keepFor time.Duration) (dropped int64, more bool, err error) {
	v, err := s.run(ctx, scriptTrim, streams[k], archived, s.NowMS()-keepFor.Milliseconds(), s.rows, broker.MaxPage)
	if err != nil {
		return 0, false, err
	}
	r := asReply(v)
	dropped, more = r.int(), r.int() == 1
	return dropped, more, r.err
}
