package redisstore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/broker/ledger"
)

// streams are the ledgers' names in the store.
var streams = map[ledger.Kind]string{ledger.Spend: "spend", ledger.Misses: "miss"}

// pageReads bounds how many rows are looked at for one page, in reads of
// MaxPage, so that a filter that matches little holds nobody up.
const pageReads = 10

// SpendRows reads settled spend rows that a filter wants after a cursor, oldest
// first. Those that cannot be read are told apart; see [broker.Page].
func (s *Store) SpendRows(ctx context.Context, f *ledger.Filter, cursor string, limit int) (*broker.Page[broker.SpendRow], error) {
	return page(ctx, s, ledger.Spend, f, cursor, limit, func(m redis.XMessage) (row broker.SpendRow, wanted bool, err error) {
		raw, _ := m.Values["row"].(string)
		err = readSpend(raw, &row)
		row.ID = m.ID
		return row, f.WantsSpend(&row), err
	})
}

// MissRows is the same for miss rows.
func (s *Store) MissRows(ctx context.Context, f *ledger.Filter, cursor string, limit int) (*broker.Page[broker.MissRow], error) {
	return page(ctx, s, ledger.Misses, f, cursor, limit, func(m redis.XMessage) (broker.MissRow, bool, error) {
		row, err := missRow(m)
		return row, f.WantsMiss(&row), err
	})
}

// readSpend reads a spend row. An archive has no room for a larger number of an
// attempt.
func readSpend(raw string, row *broker.SpendRow) error {
	if err := json.Unmarshal([]byte(raw), row); err != nil {
		return err
	}
	if row.Attempt < 0 || row.Attempt > math.MaxInt32 {
		return fmt.Errorf("attempt: %d is outside 0..%d", row.Attempt, math.MaxInt32)
	}
	return nil
}

func missRow(m redis.XMessage) (broker.MissRow, error) {
	var bad error
	str := func(f string) string { v, _ := m.Values[f].(string); return v }
	num := func(f string) int64 {
		n, err := strconv.ParseInt(cmp.Or(str(f), "0"), 10, 64)
		if err != nil {
			bad = fmt.Errorf("%s: %w", f, err)
		}
		return n
	}
	var adm broker.Admission
	row := broker.MissRow{
		ID: m.ID, JobID: str("job_id"), Class: str("class"), Producer: str("producer"), Backend: str("backend"),
		Outcome: broker.Outcome(str("outcome")), Cause: broker.Cause(str("cause")),
		AtMS: num("at_ms"), DeadlineAtMS: num("deadline_at_ms"),
		QueueWaitMS: num("queue_wait_ms"), FirstByteMS: num("first_byte_ms"), LateByMS: num("late_by_ms"),
	}
	if err := row.Path.UnmarshalText([]byte(str("path"))); err != nil {
		return row, err
	}
	if err := json.Unmarshal([]byte(str("admission")), &adm); err != nil {
		return row, fmt.Errorf("admission: %w", err)
	}
	row.SlackMS, row.QueueAgeMS, row.PredictedWaitMS = adm.SlackMS, adm.QueueAgeMS, adm.PredictedWaitMS
	return row, bad
}

// page reads rows in reads of their own, each within the store's timeout.
func page[T any](ctx context.Context, s *Store, k ledger.Kind, f *ledger.Filter, cursor string, limit int,
	read func(redis.XMessage) (T, bool, error),
) (*broker.Page[T], error) {
	start := "-"
	if f.FromMS > 0 {
		start = strconv.FormatInt(f.FromMS, 10)
	}
	if cursor != "" {
		if !isCursor(cursor) {
			return nil, broker.Fieldf("cursor", "is not one that a page named")
		}
		if ledger.IDTimeMS(cursor) >= f.FromMS {
			start = "(" + cursor
		}
	}
	end := "+"
	if e := f.End(); e != math.MaxInt64 {
		end = "(" + strconv.FormatInt(e, 10) + "-0"
	}
	limit = min(max(limit, 1), broker.MaxPage)
	first, err := s.oldestRow(ctx, k)
	if err != nil {
		return nil, err
	}
	p := &broker.Page[T]{Rows: make([]T, 0, limit), OldestAtMS: ledger.IDTimeMS(first)}
	size := limit
	for range pageReads {
		msgs, err := s.xrange(ctx, k, start, end, size)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			switch row, wanted, err := read(m); {
			case err != nil:
				raw, _ := json.Marshal(m.Values) //nolint:errchkjson // texts by name
				p.Unreadable = append(p.Unreadable, broker.Unreadable{ID: m.ID, Why: err.Error(), Raw: string(raw)})
			case wanted:
				p.Rows = append(p.Rows, row)
			default:
				continue
			}
			if len(p.Rows)+len(p.Unreadable) == limit {
				p.Next = m.ID
				return p, nil
			}
		}
		if len(msgs) < size {
			p.Next = ""
			return p, nil
		}
		p.Next = msgs[len(msgs)-1].ID
		start, size = "("+p.Next, broker.MaxPage
	}
	return p, nil
}

func (s *Store) xrange(ctx context.Context, k ledger.Kind, start, end string, count int) ([]redis.XMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	msgs, err := s.rdb.XRangeN(ctx, s.key("ledger", streams[k]), start, end, int64(count)).Result()
	if err != nil {
		return nil, unavailable(err)
	}
	return msgs, nil
}

// oldestRow is the id of the oldest row that is kept; empty for none.
func (s *Store) oldestRow(ctx context.Context, k ledger.Kind) (string, error) {
	msgs, err := s.xrange(ctx, k, "-", "+", 1)
	if err != nil || len(msgs) == 0 {
		return "", err
	}
	return msgs[0].ID, nil
}

// isCursor reports whether c is the place of a row: "<ms>-<n>", both below
// 2^63, so that Redis takes it too.
func isCursor(c string) bool {
	ms, n, ok := strings.Cut(c, "-")
	for _, part := range []string{ms, n} {
		if _, err := strconv.ParseUint(part, 10, 63); err != nil {
			return false
		}
	}
	return ok
}

// OpenSpendRows reads the attempts that are not settled, as one page.
func (s *Store) OpenSpendRows(ctx context.Context) (*broker.Page[broker.SpendRow], error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	m, err := s.rdb.HGetAll(ctx, s.key("spend", "open")).Result()
	if err != nil {
		return nil, unavailable(err)
	}
	p := &broker.Page[broker.SpendRow]{Rows: make([]broker.SpendRow, 0, len(m))}
	for k, raw := range m {
		var row broker.SpendRow
		if err := readSpend(raw, &row); err != nil {
			p.Unreadable = append(p.Unreadable, broker.Unreadable{ID: k, Why: err.Error(), Raw: raw})
			continue
		}
		row.MaxInputTokens, row.MaxOutputTokens = 0, 0
		p.Rows = append(p.Rows, row)
	}
	return p, nil
}

// minutesRead bounds the minutes of one round trip, whose commands must fit
// into what a connection takes before it wants its replies read.
const minutesRead = 20

// Minutes reads the sums of minutes from the first up to and without the last,
// in round trips of a few, and hands them on in order. Empty minutes are
// handed on too.
func (s *Store) Minutes(ctx context.Context, first, last int64, each func(ledger.MinuteSums) error) error {
	for at := first; at < last; at += minutesRead {
		n := min(minutesRead, last-at)
		got, err := s.minutes(ctx, at, n)
		if err != nil {
			return err
		}
		for _, m := range got {
			if err := each(m); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Store) minutes(ctx context.Context, first, n int64) ([]ledger.MinuteSums, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	sums := make([]*redis.MapStringStringCmd, n)
	names := make([]*redis.StringSliceCmd, n)
	_, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range n {
			key := s.rollupKey(first + i)
			sums[i], names[i] = p.HGetAll(ctx, key), p.SMembers(ctx, key+":producers")
		}
		return nil
	})
	if err != nil {
		return nil, unavailable(err)
	}
	out := make([]ledger.MinuteSums, n)
	for i := range out {
		out[i] = ledger.MinuteSums{Minute: first + int64(i), Sums: sums[i].Val(), Producers: set(names[i].Val())}
	}
	return out, nil
}

func (s *Store) rollupKey(minute int64) string { return s.key("rollup", strconv.FormatInt(minute, 10)) }

func set(names []string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}

// OldestRollupAtMS is the first instant whose minute still has its sums.
func (s *Store) OldestRollupAtMS() int64 {
	return max(0, ledger.MinuteMS(ledger.MinuteOf(s.NowMS()-s.rollups.Milliseconds())+1))
}
