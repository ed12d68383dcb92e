package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/slackgate"
)

// MostRecords bounds how many jobs' records a check looks at.
const MostRecords = 200_000

// CheckLedgers holds the books against each other: outcomes, attempts, misses,
// rows, roll-ups and totals. It only reads, page by page, so that admission
// goes on meanwhile, and it may run at any time.
func (s *Store) CheckLedgers(ctx context.Context) (*ledger.Report, error) {
	if err := s.SyncClock(ctx); err != nil {
		return nil, err
	}
	b := ledger.NewBalance()
	records, skipped, err := s.records(ctx)
	if err != nil {
		return nil, err
	}
	b.Records(records, skipped)
	if err := s.unfinished(ctx, b); err != nil {
		return nil, err
	}
	open, err := s.OpenSpendRows(ctx)
	if err != nil {
		return nil, err
	}
	b.Open(open.Rows)
	b.Unreadable(ledger.ItemOpen, open.Unreadable...)
	books, err := s.readBooks(ctx, ledger.MostHeld)
	if err != nil {
		return nil, err
	}
	b.Books(books)
	if err := errors.Join(
		checkRows(ctx, s, b, books, ledger.Spend, s.SpendRows, func(r *broker.SpendRow) (string, string) { return r.ID, r.Producer },
			b.Spend, ledger.Sums.AddSpend),
		checkRows(ctx, s, b, books, ledger.Misses, s.MissRows, func(r *broker.MissRow) (string, string) { return r.ID, r.Producer },
			b.Miss, ledger.Sums.AddMiss),
	); err != nil {
		return nil, err
	}
	if open, err = s.OpenSpendRows(ctx); err != nil {
		return nil, err
	}
	b.StillOpen(open.Rows)
	return b.Report(), nil
}

// Books reads what the rows are held against, at one instant, without budgets.
func (s *Store) Books(ctx context.Context) (*ledger.Books, error) { return s.readBooks(ctx, 0) }

// readBooks reads the books, and the budgets with up to mostHeld reservations.
func (s *Store) readBooks(ctx context.Context, mostHeld int) (*ledger.Books, error) {
	sent := time.Now()
	v, err := s.run(ctx, scriptBooks, ledger.GraceMS, mostHeld)
	if err != nil {
		return nil, err
	}
	r := asReply(v)
	b := &ledger.Books{NowMS: r.int(), Totals: broker.Totals{}}
	for _, path := range slackgate.Paths {
		b.Waiting[path], b.Running[path] = r.int(), r.int()
	}
	for _, e := range []*ledger.Extent{&b.Spend, &b.Misses} {
		e.Rows, e.First, e.Last = r.int(), r.string(), r.string()
	}
	b.Open, b.Archived, b.Overdue, b.KeptRows = r.int(), r.int() == 1, r.int(), s.rows
	for name, v := range pairs(r.texts()) {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: totals: %s is not a number", broker.ErrUnavailable, name)
		}
		b.Totals[name] = n
	}
	for range r.int() {
		m := ledger.MinuteSums{Minute: r.int(), Sums: pairs(r.texts()), Producers: set(r.texts())}
		b.Minutes = append(b.Minutes, m)
		if r.err != nil {
			break
		}
	}
	if mostHeld > 0 {
		b.Budgets = readBudgetBooks(r)
	}
	if r.err != nil {
		return nil, r.err
	}
	s.saw(sent, b.NowMS)
	return b, nil
}

func readBudgetBooks(r *reply) *ledger.BudgetBooks {
	q := &ledger.BudgetBooks{Held: r.int()}
	looked := r.int() == 1
	q.Reserved, q.Spent, q.HeldSums = r.sums(), r.sums(), r.sums()
	if !looked {
		q.HeldSums = nil
	}
	q.Orphans = r.texts()
	return q
}

// sums reads a list of names and numbers that follows its length.
func (r *reply) sums() map[string]int64 {
	out := map[string]int64{}
	for name, v := range pairs(r.texts()) {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil && r.err == nil {
			r.err = fmt.Errorf("%w: %s is not a number", broker.ErrUnavailable, name)
		}
		out[name] = n
	}
	return out
}

// texts reads a list that follows its length.
func (r *reply) texts() []string {
	var out []string
	for range r.int() {
		out = append(out, r.string())
		if r.err != nil {
			return nil
		}
	}
	return out
}

func pairs(flat []string) map[string]string {
	m := make(map[string]string, len(flat)/2)
	for i := 0; i+1 < len(flat); i += 2 {
		m[flat[i]] = flat[i+1]
	}
	return m
}

// records reads the jobs on record, up to MostRecords.
func (s *Store) records(ctx context.Context) (out []ledger.Record, skipped bool, err error) {
	skipped, err = s.eachKey(ctx, s.key("job", ""), func(ids []string) (bool, error) {
		got, err := s.readRecords(ctx, ids)
		out = append(out, got...)
		return len(out) < MostRecords, err
	})
	return out, skipped, err
}

// unfinished feeds each producer's set of unfinished jobs to a balance, each
// page of it read together with the records of its jobs. There are no more sets
// than unfinished jobs.
func (s *Store) unfinished(ctx context.Context, b *ledger.Balance) error {
	_, err := s.eachKey(ctx, s.key("live", ""), func(names []string) (bool, error) {
		for _, name := range names {
			if err := s.unfinishedOf(ctx, b, name); err != nil {
				return false, err
			}
		}
		return true, nil
	})
	return err
}

func (s *Store) unfinishedOf(ctx context.Context, b *ledger.Balance, name string) error {
	pool, producer, _ := strings.Cut(name, ":")
	for cursor := "0"; ; {
		v, err := s.run(ctx, scriptLive, pool, producer, cursor)
		if err != nil {
			return err
		}
		r := asReply(v)
		cursor = r.string()
		l := ledger.Listed{Pool: pool, Producer: producer, Jobs: r.int(), Gone: r.int()}
		for r.more() {
			l.Ended = append(l.Ended, r.string())
		}
		if r.err != nil {
			return r.err
		}
		b.Listed(&l)
		if cursor == "0" {
			return nil
		}
	}
}

// eachKey goes through the keys of a prefix, page by page and each once, and
// hands on what follows the prefix in them. It reports whether it was told to
// stop before the end.
func (s *Store) eachKey(ctx context.Context, prefix string, page func(names []string) (more bool, err error)) (stopped bool, err error) {
	seen := map[string]bool{} // a scan may name a key twice
	for cursor := uint64(0); ; {
		keys, next, err := s.scan(ctx, cursor, prefix+"*")
		if err != nil {
			return false, err
		}
		var names []string
		for _, k := range keys {
			if n := strings.TrimPrefix(k, prefix); !seen[n] {
				seen[n] = true
				names = append(names, n)
			}
		}
		more, err := page(names)
		if err != nil {
			return false, err
		}
		if cursor = next; cursor == 0 || !more {
			return cursor != 0, nil
		}
	}
}

func (s *Store) scan(ctx context.Context, cursor uint64, match string) ([]string, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	node, err := s.node(ctx)
	if err != nil {
		return nil, 0, err
	}
	keys, next, err := node.Scan(ctx, cursor, match, broker.MaxPage).Result()
	if err != nil {
		return nil, 0, unavailable(err)
	}
	return keys, next, nil
}

// recordsRead bounds the records of one script call.
const recordsRead = 200

func (s *Store) readRecords(ctx context.Context, ids []string) (out []ledger.Record, err error) {
	for chunk := range slices.Chunk(ids, recordsRead) {
		args := make([]any, len(chunk))
		for i, id := range chunk {
			args[i] = id
		}
		v, err := s.run(ctx, scriptRecords, args...)
		if err != nil {
			return nil, err
		}
		r := asReply(v)
		num := func() int64 { n, _ := strconv.ParseInt(r.string(), 10, 64); return n } // absent: 0
		for _, id := range chunk {
			rec := ledger.Record{
				ID: id, State: broker.State(r.string()), Outcome: broker.Outcome(r.string()),
				Attempts: int(num()), AcceptedAtMS: num(), EndedMS: num(), Unlisted: r.int() == 1,
			}
			if rec.State != "" { // else expired since the scan
				out = append(out, rec)
			}
		}
		if r.err != nil {
			return nil, r.err
		}
	}
	return out, nil
}

// checkRows feeds a ledger's rows to a balance, and holds each minute's sums
// against them once all its rows have been seen.
func checkRows[T any](ctx context.Context, s *Store, b *ledger.Balance, books *ledger.Books, k ledger.Kind,
	read func(context.Context, *ledger.Filter, string, int) (*broker.Page[T], error), of func(*T) (id, producer string),
	feed func(*T), add func(ledger.Sums, *T, string),
) error {
	ext := books.Extent(k)
	if ext.Rows == 0 {
		return nil
	}
	m := &minuteWalk{s: s, b: b, books: books, kind: k}
	m.next = max(b.FirstMinute(k), ledger.MinuteOf(s.OldestRollupAtMS()))
	var rows []T // of the minute at hand
	at := int64(-1)
	compare := func() error {
		if at < 0 {
			return nil
		}
		return m.upTo(ctx, at, func(sums *ledger.MinuteSums) ledger.Sums {
			out := ledger.Sums{}
			for i := range rows {
				_, producer := of(&rows[i])
				add(out, &rows[i], sums.SummedUnder(producer))
			}
			return out
		})
	}
	cursor := ""
	for {
		p, err := read(ctx, &ledger.Filter{}, cursor, broker.MaxPage)
		if err != nil {
			return err
		}
		for _, u := range p.Unreadable {
			if ledger.CompareIDs(u.ID, ext.Last) <= 0 {
				b.Unreadable(ledger.TotalsItem(k), u)
			}
		}
		for i := range p.Rows {
			r := &p.Rows[i]
			id, _ := of(r)
			if ledger.CompareIDs(id, ext.Last) > 0 {
				return compare()
			}
			if minute := ledger.MinuteOf(ledger.IDTimeMS(id)); minute != at {
				if err := compare(); err != nil {
					return err
				}
				rows, at = rows[:0], minute
			}
			rows = append(rows, *r)
			feed(r)
		}
		if cursor = p.Next; cursor == "" {
			return compare()
		}
	}
}

// minuteWalk goes through the minutes of a ledger in order, those without a row
// too.
type minuteWalk struct {
	s     *Store
	b     *ledger.Balance
	books *ledger.Books
	kind  ledger.Kind
	next  int64
}

// upTo compares the minutes up to and with one that has rows.
func (w *minuteWalk) upTo(ctx context.Context, minute int64, sum func(*ledger.MinuteSums) ledger.Sums) error {
	if minute < w.next {
		return nil
	}
	compare := func(m *ledger.MinuteSums) {
		rows := ledger.Sums{}
		if m.Minute == minute {
			rows = sum(m)
		}
		w.b.Compare(w.kind, m, rows)
	}
	// The minutes of the last rows may have grown since; they were read with
	// the rest.
	frozen := func(n int64) *ledger.MinuteSums {
		for i := range w.books.Minutes {
			if m := &w.books.Minutes[i]; m.Minute == n {
				return m
			}
		}
		return nil
	}
	err := w.s.Minutes(ctx, w.next, minute+1, func(m ledger.MinuteSums) error {
		if f := frozen(m.Minute); f != nil {
			m = *f
		}
		compare(&m)
		return nil
	})
	w.next = minute + 1
	return err
}
