package shard

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/broker/store"
)

// between stands between the shards' cursors in one over all. No cursor of a
// store has it, and it needs no escape in a URL.
const between = "_"

// split takes a cursor over all apart; an empty one is empty for every shard.
func (s *Store) split(cursor string) ([]string, error) {
	n := len(s.shards)
	if cursor == "" {
		return make([]string, n), nil
	}
	parts := strings.Split(cursor, between)
	if len(parts) != n {
		return nil, broker.Fieldf("cursor", "is not one that a page named")
	}
	return parts, nil
}

// SpendRows reads settled spend rows that a filter wants, oldest first. A row's id names its shard.
func (s *Store) SpendRows(ctx context.Context, f *ledger.Filter, cursor string, limit int) (*broker.Page[broker.SpendRow], error) {
	return pages(s, cursor, limit, func(r *broker.SpendRow) *string { return &r.ID },
		func(shard store.Shard, cursor string, limit int) (*broker.Page[broker.SpendRow], error) {
			return shard.SpendRows(ctx, f, cursor, limit)
		})
}

// MissRows is the same for miss rows.
func (s *Store) MissRows(ctx context.Context, f *ledger.Filter, cursor string, limit int) (*broker.Page[broker.MissRow], error) {
	return pages(s, cursor, limit, func(r *broker.MissRow) *string { return &r.ID },
		func(shard store.Shard, cursor string, limit int) (*broker.Page[broker.MissRow], error) {
			return shard.MissRows(ctx, f, cursor, limit)
		})
}

// pages reads a page of each shard's ledger and merges them into one. Rows come
// in the order of their instants, as far as the shards' clocks agree; each shard
// has its own cursor, so that none is missed or read twice.
func pages[T any](s *Store, cursor string, limit int, id func(*T) *string,
	read func(shard store.Shard, cursor string, limit int) (*broker.Page[T], error),
) (*broker.Page[T], error) {
	cursors, err := s.split(cursor)
	if err != nil {
		return nil, err
	}
	limit = min(max(limit, 1), broker.MaxPage)
	got, err := gather(s, func(i int, shard store.Shard) (*broker.Page[T], error) {
		return read(shard, cursors[i], limit)
	})
	if err != nil {
		return nil, err
	}
	type place struct {
		shard int
		id    string
		row   *T // nil: unreadable
		bad   broker.Unreadable
	}
	var all []place
	// What lies behind the end of a page that has a next one is not known:
	// nothing younger can be handed out before it was read.
	horizon := ""
	out := &broker.Page[T]{}
	for i, p := range got {
		for j := range p.Rows {
			all = append(all, place{shard: i, id: *id(&p.Rows[j]), row: &p.Rows[j]})
		}
		for _, u := range p.Unreadable {
			all = append(all, place{shard: i, id: u.ID, bad: u})
		}
		if p.Next != "" && (horizon == "" || ledger.CompareIDs(p.Next, horizon) < 0) {
			horizon = p.Next
		}
		if back := p.OldestAtMS; back > 0 && (out.OldestAtMS == 0 || back < out.OldestAtMS) {
			out.OldestAtMS = back
		}
	}
	slices.SortStableFunc(all, func(a, b place) int {
		return cmp.Or(ledger.CompareIDs(a.id, b.id), cmp.Compare(a.shard, b.shard))
	})
	taken := make([]int, len(got))
	out.Rows = make([]T, 0, min(limit, len(all)))
	for _, p := range all {
		if len(out.Rows)+len(out.Unreadable) == limit || (horizon != "" && ledger.CompareIDs(p.id, horizon) > 0) {
			break
		}
		cursors[p.shard] = p.id
		taken[p.shard]++
		marked := Mark(p.id, p.shard, len(s.shards))
		if p.row == nil {
			p.bad.ID = marked
			out.Unreadable = append(out.Unreadable, p.bad)
			continue
		}
		*id(p.row) = marked
		out.Rows = append(out.Rows, *p.row)
	}
	more := false
	for i, p := range got {
		if taken[i] < len(p.Rows)+len(p.Unreadable) {
			more = true
			continue
		}
		if p.Next != "" {
			more, cursors[i] = true, p.Next
		}
	}
	if more {
		out.Next = strings.Join(cursors, between)
	}
	return out, nil
}

// OpenSpendRows reads the attempts that are not settled.
func (s *Store) OpenSpendRows(ctx context.Context) (*broker.Page[broker.SpendRow], error) {
	all, err := gather(s, func(_ int, shard store.Shard) (*broker.Page[broker.SpendRow], error) { return shard.OpenSpendRows(ctx) })
	if err != nil {
		return nil, err
	}
	out := all[0]
	for _, p := range all[1:] {
		out.Rows, out.Unreadable = append(out.Rows, p.Rows...), append(out.Unreadable, p.Unreadable...)
	}
	return out, nil
}

// RecentJobs reads the newest jobs.
func (s *Store) RecentJobs(ctx context.Context, producer string, all bool, cursor string, limit int) (jobs []*broker.Job, next string, err error) {
	ids, next, err := s.newest(ctx, broker.NewestJobs, producer, all, cursor, limit)
	if err != nil {
		return nil, "", err
	}
	views, err := s.Jobs(ctx, ids)
	return slices.DeleteFunc(views, func(v *broker.Job) bool { return v == nil }), next, err
}

// RecentBatches is the same for the ids of batches.
func (s *Store) RecentBatches(ctx context.Context, producer string, all bool, cursor string, limit int) (ids []string, next string, err error) {
	return s.newest(ctx, broker.NewestBatches, producer, all, cursor, limit)
}

// newest merges the shards' lists of the newest. A shard whose list has ended
// has the cursor ended.
func (s *Store) newest(ctx context.Context, what broker.NewestList, producer string, all bool, cursor string, limit int) ([]string, string, error) {
	const ended = "-"
	cursors, err := s.split(cursor)
	if err != nil {
		return nil, "", err
	}
	type list struct {
		of   []broker.Listed
		more bool
	}
	got, err := gather(s, func(i int, shard store.Shard) (l list, err error) {
		if cursors[i] != ended {
			l.of, l.more, err = shard.Newest(ctx, what, producer, all, cursors[i], limit)
		}
		return l, err
	})
	if err != nil {
		return nil, "", err
	}
	var ids []string
	taken := make([]int, len(got))
	for len(ids) < limit {
		at := -1
		for i, l := range got {
			if taken[i] < len(l.of) && (at < 0 || l.of[taken[i]].AtMS > got[at].of[taken[at]].AtMS) {
				at = i
			}
		}
		if at < 0 {
			break
		}
		l := &got[at].of[taken[at]]
		ids, cursors[at] = append(ids, l.ID), l.After
		taken[at]++
	}
	more := false
	for i, l := range got {
		if taken[i] < len(l.of) || l.more {
			more = true
		} else {
			cursors[i] = ended
		}
	}
	if !more {
		return ids, "", nil
	}
	return ids, strings.Join(cursors, between), nil
}

// Minutes reads the sums of minutes.
func (s *Store) Minutes(ctx context.Context, first, last int64, each func(ledger.MinuteSums) error) error {
	const atOnce = 60
	for at := first; at < last; at += atOnce {
		upTo := min(last, at+atOnce)
		got, err := gather(s, func(_ int, shard store.Shard) (of []ledger.MinuteSums, err error) {
			err = shard.Minutes(ctx, at, upTo, func(m ledger.MinuteSums) error {
				of = append(of, m)
				return nil
			})
			return of, err
		})
		if err != nil {
			return err
		}
		for i := range got[0] {
			m := ledger.MinuteSums{Minute: got[0][i].Minute, Sums: map[string]string{}, Producers: map[string]bool{}}
			for _, of := range got {
				addSums(m.Sums, of[i].Sums)
				for name := range of[i].Producers {
					m.Producers[name] = true
				}
			}
			if err := each(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// addSums adds numbers by name. What is no number stays as it is, for the reader
// to stumble over.
func addSums(to, more map[string]string) {
	for name, v := range more {
		a, err1 := strconv.ParseInt(to[name], 10, 64)
		b, err2 := strconv.ParseInt(v, 10, 64)
		if to[name] == "" || err1 != nil || err2 != nil {
			to[name] = v
			continue
		}
		to[name] = strconv.FormatInt(a+b, 10)
	}
}
