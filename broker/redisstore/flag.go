package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/broker/flag"
)

// Flags reads the flags that are set. An entry that cannot be read stays in
// the table with a value nothing accepts, so that it fails closed.
func (s *Store) Flags(ctx context.Context) (*flag.Table, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var version *redis.StringCmd
	var all *redis.MapStringStringCmd
	// The version first: a change in between is then seen as one to come.
	_, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		version = p.Get(ctx, s.key("flags", "version"))
		all = p.HGetAll(ctx, s.key("flags"))
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, unavailable(err)
	}
	n, _ := strconv.ParseInt(version.Val(), 10, 64) // none yet: 0
	entries := make([]flag.Entry, 0, len(all.Val()))
	for key, raw := range all.Val() {
		var e flag.Entry
		if json.Unmarshal([]byte(raw), &e) != nil || e.Key() != key {
			e = flag.Unreadable(key)
		}
		entries = append(entries, e)
	}
	return flag.NewTable(n, entries), nil
}

// SetFlag sets a flag, or clears it with an empty value, and writes the audit
// trail. The last write wins. hold is how long it stays; 0: until it is
// cleared.
func (s *Store) SetFlag(ctx context.Context, n flag.Name, class, value, by, reason string, hold time.Duration) error {
	_, err := s.setFlag(ctx, &flag.Entry{Name: n, Class: class, Value: value, By: by, Reason: reason}, hold, "")
	return err
}

// AlignFlag sets a flag as e says while the flags are those of that version, and
// reports whether they were.
func (s *Store) AlignFlag(ctx context.Context, version int64, e *flag.Entry, hold time.Duration) (bool, error) {
	return s.setFlag(ctx, e, hold, strconv.FormatInt(version, 10))
}

func (s *Store) setFlag(ctx context.Context, e *flag.Entry, hold time.Duration, seen string) (bool, error) {
	sent := time.Now()
	v, err := s.run(ctx, scriptFlag, e.Key(), string(e.Name), e.Class, e.Value, e.By, e.Reason, hold.Milliseconds(), seen)
	if err != nil {
		return false, err
	}
	r := asReply(v)
	s.saw(sent, r.int())
	return r.int() != 0, r.err
}

// Audit reads the newest changes of flags, newest first.
func (s *Store) Audit(ctx context.Context, limit int) ([]flag.Change, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	msgs, err := s.rdb.XRevRangeN(ctx, s.key("audit"), "+", "-", int64(min(max(limit, 1), broker.MaxPage))).Result()
	if err != nil {
		return nil, unavailable(err)
	}
	out := make([]flag.Change, 0, len(msgs))
	for _, m := range msgs {
		str := func(f string) string { v, _ := m.Values[f].(string); return v }
		num := func(f string) int64 { n, _ := strconv.ParseInt(str(f), 10, 64); return n }
		out = append(out, flag.Change{
			ID: m.ID, AtMS: num("at_ms"), Name: flag.Name(str("name")), Class: str("class"), From: str("from"), To: str("to"),
			By: str("by"), Reason: str("reason"), UntilAtMS: num("until_ms"),
		})
	}
	return out, nil
}
