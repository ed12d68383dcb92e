package redisstore

import (
	"context"
	"strconv"
	"time"

	"leeway/broker"
	"leeway/broker/ledger"
)

// archiveMark is how long the store goes on keeping every row after the last
// word of an archive.
const archiveMark = 7 * 24 * time.Hour

// ExpectArchive says that an archive is configured: from then on rows are
// dropped only by [Store.Trim]. It must be said again within a week.
func (s *Store) ExpectArchive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	pipe := s.rdb.TxPipeline()
	pipe.HSetNX(ctx, s.key("archive"), "at", 0)
	pipe.PExpire(ctx, s.key("archive"), archiveMark)
	if _, err := pipe.Exec(ctx); err != nil {
		return unavailable(err)
	}
	return nil
}

// Archived notes, for the metrics, that the archive has a ledger's first
// booked rows.
func (s *Store) Archived(ctx context.Context, k ledger.Kind, booked int64) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.rdb.HSet(ctx, s.key("archive"), string(k), booked, "at", s.NowMS()).Err(); err != nil {
		return unavailable(err)
	}
	return nil
}

// Archive reads how far the archive has come; nil when none is configured.
func (s *Store) Archive(ctx context.Context, b *ledger.Books) (*ledger.ArchiveState, error) {
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

// KeptRows is how many rows of a ledger are to stay in the store. With an
// archive there are more only while it lags.
func (s *Store) KeptRows() int64 { return s.rows }
