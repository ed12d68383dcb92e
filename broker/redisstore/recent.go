package redisstore

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"leeway/broker"
	"leeway/broker/ledger"
)

// RecentJobs reads the newest jobs before a cursor (empty: from the newest on),
// newest first and without answers, of one producer or of all; at most limit
// ids are looked at, and those off the record left out. next is empty at the
// end.
func (s *Store) RecentJobs(ctx context.Context, producer string, all bool, cursor string, limit int) (jobs []*broker.Job, next string, err error) {
	ids, next, err := s.recent(ctx, broker.NewestJobs, producer, all, cursor, limit)
	if err != nil {
		return nil, "", err
	}
	views, err := s.Jobs(ctx, ids)
	for _, v := range views {
		if v != nil {
			jobs = append(jobs, v)
		}
	}
	return jobs, next, err
}

// RecentBatches is the same for the ids of batches.
func (s *Store) RecentBatches(ctx context.Context, producer string, all bool, cursor string, limit int) (ids []string, next string, err error) {
	return s.recent(ctx, broker.NewestBatches, producer, all, cursor, limit)
}

func (s *Store) recent(ctx context.Context, what broker.NewestList, producer string, all bool, cursor string, limit int) (ids []string, next string, err error) {
	listed, more, err := s.Newest(ctx, what, producer, all, cursor, limit)
	if err != nil {
		return nil, "", err
	}
	for i := range listed {
		ids = append(ids, listed[i].ID)
	}
	if more {
		next = listed[len(listed)-1].After
	}
	return ids, next, nil
}

// Newest reads ids from a list of the newest, of one producer or of all: those
// after a cursor (empty: from the newest on), at most limit. more is set when
// there are others after them. A cursor is an entry of the list and how many of
// that entry's ids were read.
func (s *Store) Newest(ctx context.Context, what broker.NewestList, producer string, all bool, cursor string, limit int) (listed []broker.Listed, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	key, end, skip := s.key(string(what), producer), "+", 0
	if all {
		key = s.key(string(what))
	}
	if cursor != "" {
		entry, n, ok := strings.Cut(cursor, "/")
		skip, err = strconv.Atoi(n)
		if !ok || err != nil || skip < 0 || !isCursor(entry) {
			return nil, false, broker.Fieldf("cursor", "is not one that a page named")
		}
		end = entry
	}
	// The cursor's own entry may have been read whole, and one more than asked
	// for says whether there are others.
	msgs, err := s.rdb.XRevRangeN(ctx, key, end, "-", int64(limit)+2).Result()
	if err != nil {
		return nil, false, unavailable(err)
	}
	for _, m := range msgs {
		raw, _ := m.Values["ids"].(string)
		of := strings.Fields(raw)
		slices.Reverse(of)
		if m.ID != end {
			skip = 0 // of this entry nothing was read
		}
		at := ledger.IDTimeMS(m.ID)
		for n := min(skip, len(of)); n < len(of); n++ {
			if len(listed) == limit {
				return listed, true, nil
			}
			listed = append(listed, broker.Listed{ID: of[n], AtMS: at, After: m.ID + "/" + strconv.Itoa(n+1)})
		}
	}
	return listed, false, nil
}
