package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/slackgate"
)

// scripted answers every command with one reply; nothing is dialled.
type scripted []any

func (scripted) DialHook(next redis.DialHook) redis.DialHook { return next }
func (scripted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (s scripted) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		cmd.(*redis.Cmd).SetVal([]any(s))
		return nil
	}
}

// What a claim and a sweep tell of lost jobs comes in twos and threes. A reply
// in which one is short is an error, and no reading of the clock.
func TestRepliesThatFallShort(t *testing.T) {
	sweep := func(s *Store) error {
		_, err := s.Sweep(t.Context())
		return err
	}
	claim := func(s *Store) error {
		_, _, err := s.Claim(t.Context(), slackgate.Paid, 1, time.Second)
		return err
	}
	for name, c := range map[string]struct {
		call  func(*Store) error
		reply scripted
		whole bool
	}{
		"claim":               {claim, scripted{int64(7), int64(5), "none", int64(0), int64(2), "c", "id"}, true},
		"claim, odd":          {claim, scripted{int64(7), int64(6), "none", int64(0), int64(3), "c", "id", "c"}, false},
		"claim, ends early":   {claim, scripted{int64(7), int64(4), "none", int64(0), int64(2), "c"}, false},
		"claim, no list":      {claim, scripted{int64(7), int64(3), "none", int64(0), "x"}, false},
		"claim, cut":          {claim, scripted{int64(7), int64(5), "none", int64(0)}, false},
		"claim, failed":       {claim, scripted{int64(7), int64(-1), "out of memory"}, false},
		"claim, no length":    {claim, scripted{int64(7), "none"}, false},
		"sweep":               {sweep, scripted{int64(7), int64(0), int64(0), int64(0), int64(1), int64(3), "paid", "c", "id", int64(1), "ended", int64(2), "state", "done"}, true},
		"sweep, half a job":   {sweep, scripted{int64(7), int64(0), int64(0), int64(0), int64(1), int64(0), int64(1), "ended", int64(2), "state"}, false},
		"sweep, no jobs":      {sweep, scripted{int64(7), int64(0), int64(0), int64(0), int64(1), int64(0)}, false},
		"sweep, odd":          {sweep, scripted{int64(7), int64(0), int64(0), int64(0), int64(1), int64(4), "paid", "c", "id", "free"}, false},
		"sweep, no pool":      {sweep, scripted{int64(7), int64(0), int64(0), int64(0), int64(1), int64(3), "x", "c", "id"}, false},
		"sweep, a number":     {sweep, scripted{int64(7), int64(0), int64(0), int64(0), int64(1), int64(0), int64(5)}, false},
		"sweep, only a clock": {sweep, scripted{int64(7)}, false},
	} {
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:0"})
		rdb.AddHook(c.reply)
		s := New(rdb, Options{Prefix: "t"})
		err := c.call(s)
		if (err == nil) != c.whole || err != nil && !errors.Is(err, broker.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if (s.NowMS() >= 7) != c.whole {
			t.Errorf("%s: the clock is %d", name, s.NowMS())
		}
		_ = rdb.Close()
	}
}
