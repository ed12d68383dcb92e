package redisstore

import (
	"context"
	"errors"
	"strconv"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/slackgate/latency"
)

// Series names a thing whose latency is measured and what of it.
type Series struct {
	// Name is "pool.paid", "pool.free" or "backend.<name>".
	Name string
	// Kind is what is measured.
	Kind LatencyKind
}

// LatencyKind is what is measured of a call.
type LatencyKind string

// The kinds.
const (
	// FirstByte is the time to the first answer text.
	FirstByte LatencyKind = "first_byte"
	// Hold is the time to the last byte: how long the slot stays taken.
	Hold LatencyKind = "hold"
)

func (s Series) key() string { return s.Name + ":" + string(s.Kind) }

// Sample is one measured call.
type Sample struct {
	Series
	MS int64
	// Cut is set when the call was cut before what is measured came: it would
	// have taken longer than MS.
	Cut bool
}

// latencyKeepMS is how long slices are kept: the widest window and one more
// slice.
const latencyKeepMS = 15*60_000 + 2*latency.SliceMS

// Measure counts calls.
func (s *Store) Measure(ctx context.Context, samples ...Sample) error {
	if len(samples) == 0 {
		return nil
	}
	args := []any{latency.SliceMS, latencyKeepMS, latency.SumField}
	for _, m := range samples {
		sum := m.MS
		if m.Cut {
			sum = -1
		}
		args = append(args, m.key(), latency.Field(m.MS, m.Cut), sum)
	}
	_, err := s.run(ctx, scriptMeasure, args...)
	return err
}

// SliceOf is the number of the slice that holds an instant.
func SliceOf(nowMS int64) int64 { return nowMS / latency.SliceMS }

// Slices reads the counts of a series' slices, in the order of the numbers.
// What cannot be read as a count is left out: it was not written by us.
func (s *Store) Slices(ctx context.Context, series []Series, slices []int64) ([][]*latency.Histogram, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	cmds := make([]*redis.MapStringStringCmd, 0, len(series)*len(slices))
	_, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, x := range series {
			for _, n := range slices {
				cmds = append(cmds, p.HGetAll(ctx, s.key("latency", x.key(), strconv.FormatInt(n, 10))))
			}
		}
		return nil
	})
	if err != nil {
		return nil, unavailable(err)
	}
	out := make([][]*latency.Histogram, len(series))
	for i := range series {
		for j := range slices {
			out[i] = append(out[i], histogram(cmds[i*len(slices)+j].Val()))
		}
	}
	return out, nil
}

// histogram reads one slice; nil when it is empty.
func histogram(counts map[string]string) *latency.Histogram {
	if len(counts) == 0 {
		return nil
	}
	h := new(latency.Histogram)
	for field, v := range counts {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || h.AddField(field, n) != nil {
			continue
		}
	}
	return h
}

// SawFirstByte notes that a claimed job's first answer text came: from then on
// it does not count as a call without one.
func (s *Store) SawFirstByte(ctx context.Context, c *broker.Claim) error {
	_, err := s.run(ctx, scriptFirstByte, c.Path.String(), c.ID, c.Fence)
	return err
}

// OpenProbe writes the spend row of a probe, which belongs to no job.
func (s *Store) OpenProbe(ctx context.Context, row *broker.SpendRow, priced bool, maxIn, maxOut int64) error {
	return s.openSpend(ctx, row, "probe", priced, maxIn, maxOut)
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
