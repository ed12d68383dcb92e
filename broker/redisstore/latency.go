package redisstore

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"leeway/slackgate/latency"
)

// latencyKeepMS is how long slices are kept: the widest window and one more
// slice.
const latencyKeepMS = 15*60_000 + 2*latency.SliceMS

// Slices reads the counts of the slices from..to of each series; an empty
// slice is nil. What cannot be read as a count is left out: it was not written
// by us.
func (s *Store) Slices(ctx context.Context, series []latency.Series, from, to int64) ([][]*latency.Histogram, error) {
	args := []any{from, to}
	out := make([][]*latency.Histogram, len(series))
	for i, x := range series {
		args = append(args, x.Key())
		out[i] = make([]*latency.Histogram, to-from+1)
	}
	v, err := s.run(ctx, scriptSlices, args...)
	if err != nil {
		return nil, err
	}
	r := asReply(v)
	for r.more() {
		i, n := r.int(), r.int()
		counts, _ := r.next().([]any)
		if i < 0 || i >= int64(len(series)) || n < from || n > to {
			continue
		}
		out[i][n-from] = histogram(counts)
	}
	return out, r.err
}

// histogram reads one slice's fields and counts.
func histogram(counts []any) *latency.Histogram {
	h := new(latency.Histogram)
	r := &reply{v: counts}
	for r.more() {
		field, n := r.string(), r.int()
		if r.err == nil {
			_ = h.AddField(field, n) // not ours: left out
		}
	}
	return h
}

// TurnToProbe reports whether this process may probe a pool now; no other one
// may for the next everyMS.
func (s *Store) TurnToProbe(ctx context.Context, pool string, everyMS int64) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := s.rdb.Do(ctx, "SET", s.key("probe", pool), "1", "NX", "PX", everyMS).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	if err != nil {
		return false, unavailable(err)
	}
	return true, nil
}
