package shard

import (
	"context"
	"fmt"
	"slices"
	"time"

	"leeway/broker/flag"
	"leeway/broker/store"
)

// SetFlag sets or clears a flag in every shard, the first one first. After an error of another than the first it is set
// in some of them: whoever calls [Store.Align] sees to the rest.
func (s *Store) SetFlag(ctx context.Context, n flag.Name, class, value, by, reason string, hold time.Duration) error {
	if err := s.shards[0].SetFlag(ctx, n, class, value, by, reason, hold); err != nil {
		return err
	}
	return s.each(func(i int, shard store.Shard) error {
		if i == 0 {
			return nil
		}
		if err := shard.SetFlag(ctx, n, class, value, by, reason, hold); err != nil {
			return fmt.Errorf("shard %d has not heard of it yet: %w", i, err)
		}
		return nil
	})
}

// untilWithin is how far apart the ends of one flag may be in two shards: it is
// set there one after the other, on two clocks.
const untilWithin = 2 * time.Second

// Align sets in the other shards what the first one says of the flags, and
// returns how many it set. A flag that some shard has not heard of is put there so.
//
// The first shard hears of a change before the others do, and is read after them
// here; and a shard that has heard of another since it was read is left until the
// next time. So no change is ever undone.
func (s *Store) Align(ctx context.Context) (set int, err error) {
	others, err := gather(s, func(i int, shard store.Shard) (*flag.Table, error) {
		if i == 0 {
			return nil, nil //nolint:nilnil // it is read below
		}
		return shard.Flags(ctx)
	})
	if err != nil {
		return 0, err
	}
	first, err := s.shards[0].Flags(ctx)
	if err != nil {
		return 0, err
	}
	now := s.NowMS()
	want := first.Live(now)
	for i, t := range others[1:] {
		shard, have, version := s.shards[i+1], t.Live(now), t.Version
		align := func(e *flag.Entry, hold time.Duration) error {
			ok, err := shard.AlignFlag(ctx, version, e, hold)
			if ok {
				version++
				set++
			}
			return err
		}
		for _, e := range want {
			if e.Value == flag.Unreadable("").Value || slices.ContainsFunc(have, func(h flag.Entry) bool { return same(e, h) }) {
				continue
			}
			hold := time.Duration(0)
			if e.UntilAtMS > 0 {
				hold = time.Duration(e.UntilAtMS-now) * time.Millisecond
			}
			if err := align(&e, hold); err != nil {
				return set, err
			}
		}
		for _, h := range have {
			if slices.ContainsFunc(want, func(e flag.Entry) bool { return e.Key() == h.Key() }) {
				continue
			}
			if h.UntilAtMS > 0 && h.UntilAtMS-now < untilWithin.Milliseconds() {
				continue // it is about to end by itself, as it has in the first
			}
			if err := align(&flag.Entry{Name: h.Name, Class: h.Class, By: h.By, Reason: "cleared in the first shard"}, 0); err != nil {
				return set, err
			}
		}
	}
	return set, nil
}

// same reports whether two entries say the same.
func same(a, b flag.Entry) bool {
	if a.Key() != b.Key() || a.Value != b.Value || a.By != b.By || a.Reason != b.Reason || (a.UntilAtMS == 0) != (b.UntilAtMS == 0) {
		return false
	}
	apart := a.UntilAtMS - b.UntilAtMS
	return max(apart, -apart) <= untilWithin.Milliseconds()
}
