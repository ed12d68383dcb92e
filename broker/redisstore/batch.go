package redisstore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
)

// What is kept of lists and batches.
const (
	// recentBatches is about how many of the newest are listed, of all producers
	// and of each.
	recentBatches = 1000
	// batchKeep is how long a batch stays after its last line; one that has
	// jobs stays as long as the last of them may be read.
	batchKeep = time.Hour
	// emptyKeep is how long one of which no line is on record stays.
	emptyKeep = 10 * time.Minute
)

// OpenBatch begins a run of lines: under a new batch, or one on record. With
// again set it must be on record. most is how many lines it may have by now. It
// returns the run's number, for [broker.LineAt].
func (s *Store) OpenBatch(ctx context.Context, id, producer string, again bool, most int) (run int64, err error) {
	mode := "new"
	if again {
		mode = "again"
	}
	return s.openBatch(ctx, id, producer, mode, most)
}

func (s *Store) openBatch(ctx context.Context, id, producer, mode string, most int) (run int64, err error) {
	sent := time.Now()
	v, err := s.run(ctx, scriptOpenBatch, id, producer, mode, batchKeep.Milliseconds(), most, broker.BatchReceiving.Milliseconds(), recentBatches, emptyKeep.Milliseconds())
	if err != nil {
		return 0, err
	}
	r := asReply(v)
	now, what := r.int(), r.string()
	if r.err != nil {
		return 0, r.err
	}
	s.saw(sent, now)
	switch what {
	case "missing":
		return 0, broker.ErrBatchNotFound
	case "full":
		return 0, broker.ErrBatchFull
	case "cancelled":
		return 0, broker.ErrBatchCancelled
	case "closed":
		return 0, nil
	}
	return r.int(), r.err
}

// SetLines puts down what was said to lines that became no jobs; last is set
// when the run has no more. Lines with jobs were put down when those were
// admitted.
func (s *Store) SetLines(ctx context.Context, batch string, last bool, lines ...broker.BatchLine) error {
	receiving, keep := broker.BatchReceiving.Milliseconds(), batchKeep
	if last {
		receiving = 0
	}
	if len(lines) == 0 {
		keep = emptyKeep
	}
	args := make([]any, 0, 3+4*len(lines))
	args = append(args, batch, keep.Milliseconds(), receiving)
	for i := range lines {
		l := &lines[i]
		args = append(args, l.Name, l.At, l.Reason, l.Said)
	}
	_, err := s.run(ctx, scriptLines, args...)
	return err
}

// Batch reads a batch as a whole.
func (s *Store) Batch(ctx context.Context, id string) (*broker.Batch, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var m *redis.MapStringStringCmd
	var lines *redis.IntCmd
	var ttl *redis.DurationCmd
	key := s.key("batch", id)
	_, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		m, lines, ttl = p.HGetAll(ctx, key), p.ZCard(ctx, key+":order"), p.PTTL(ctx, key)
		return nil
	})
	if err != nil {
		return nil, unavailable(err)
	}
	if m.Val()["created"] == "" {
		return nil, broker.ErrBatchNotFound
	}
	b := &broker.Batch{
		ID: id, Producer: m.Val()["producer"], Lines: lines.Val(), ExpiresAtMS: s.NowMS() + ttl.Val().Milliseconds(),
		Said: map[string]int64{}, Ended: map[broker.Outcome]int64{},
	}
	for k, v := range m.Val() {
		n, _ := strconv.ParseInt(v, 10, 64) // the producer: not used
		switch kind, of, _ := strings.Cut(k, ":"); {
		case k == "created":
			b.CreatedAtMS = n
		case k == "cancelled":
			b.CancelledAtMS = n
		case k == "due":
			b.DueAtMS = n
		case k == "receiving":
			b.ReceivingEndsAtMS = n
		case kind == "said" && n != 0:
			b.Said[of] = n
		case kind == "ended" && n != 0:
			b.Ended[broker.Outcome(of)] = n
		}
	}
	return b, nil
}

// CloseBatch refuses all further lines of a batch. The caller cancels the jobs
// it has.
func (s *Store) CloseBatch(ctx context.Context, id string) error {
	_, err := s.openBatch(ctx, id, "", "close", 0)
	return err
}

// Lines reads lines of a batch in their order, those after a place first; at
// most [broker.MaxLines]. With jobs set their records are read too, without answers.
func (s *Store) Lines(ctx context.Context, id string, after int64, limit int, jobs bool) ([]broker.BatchLine, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	key := s.key("batch", id)
	names, err := s.rdb.ZRangeByScoreWithScores(ctx, key+":order", &redis.ZRangeBy{
		Min: "(" + strconv.FormatInt(after, 10), Max: "+inf", Count: int64(min(limit, broker.MaxLines)),
	}).Result()
	if err != nil {
		return nil, unavailable(err)
	}
	lines := make([]broker.BatchLine, len(names))
	for i, n := range names {
		lines[i].Name, _ = n.Member.(string)
		lines[i].At = int64(n.Score)
	}
	return lines, s.fillLines(ctx, key, lines, jobs, false)
}

// EndedLines reads lines of a batch in the order in which their jobs ended,
// from the nth on, with the jobs and their answers; at most [broker.MaxLines].
func (s *Store) EndedLines(ctx context.Context, id string, n int64, limit int) ([]broker.BatchLine, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	key := s.key("batch", id)
	names, err := s.rdb.LRange(ctx, key+":ended", n, n+int64(min(limit, broker.MaxLines))-1).Result()
	if err != nil || len(names) == 0 {
		return nil, orUnavailable(err)
	}
	lines := make([]broker.BatchLine, len(names))
	cmds := make([]*redis.FloatCmd, len(names))
	_, err = s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, name := range names {
			lines[i].Name, cmds[i] = name, p.ZScore(ctx, key+":order", name)
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, unavailable(err)
	}
	for i := range lines {
		lines[i].At = int64(cmds[i].Val())
	}
	return lines, s.fillLines(ctx, key, lines, true, true)
}

func orUnavailable(err error) error {
	if err == nil {
		return nil
	}
	return unavailable(err)
}

func (s *Store) fillLines(ctx context.Context, key string, lines []broker.BatchLine, jobs, answers bool) error {
	if len(lines) == 0 {
		return nil
	}
	names := make([]string, len(lines))
	for i := range lines {
		names[i] = lines[i].Name
	}
	values, err := s.rdb.HMGet(ctx, key+":lines", names...).Result()
	if err != nil {
		return unavailable(err)
	}
	ids := make([]string, len(lines))
	for i := range lines {
		v, _ := values[i].(string)
		if v == "" {
			continue // it lapsed just now
		}
		kind, rest := v[0], v[1:]
		what, of, _ := strings.Cut(rest, "|")
		if kind != 'J' {
			lines[i].Reason, lines[i].Said = what, []byte(of)
			continue
		}
		if lines[i].Path.UnmarshalText([]byte(what)) != nil {
			continue // one that cannot be read hides none of the others
		}
		lines[i].JobID, ids[i] = of, of
	}
	if !jobs {
		return nil
	}
	views, err := s.views(ctx, ids, answers)
	if err != nil {
		return err
	}
	for i := range lines {
		lines[i].Job = views[i]
	}
	return nil
}

// Jobs reads the records of jobs without their answers; nil for those that are
// not on record. They should be no more than [broker.MaxLines].
func (s *Store) Jobs(ctx context.Context, ids []string) ([]*broker.Job, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.views(ctx, ids, false)
}

// views reads the records of jobs; nil for an empty id and for one that is not
// on record or cannot be read.
func (s *Store) views(ctx context.Context, ids []string, answers bool) ([]*broker.Job, error) {
	out := make([]*broker.Job, len(ids))
	recs := make([]*redis.MapStringStringCmd, len(ids))
	texts := make([]*redis.StringCmd, len(ids))
	_, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, id := range ids {
			if id == "" {
				continue
			}
			recs[i] = p.HGetAll(ctx, s.key("job", id))
			if answers {
				texts[i] = p.Get(ctx, s.key("answer", id))
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, unavailable(err)
	}
	for i, id := range ids {
		if recs[i] == nil || len(recs[i].Val()) == 0 {
			continue
		}
		answer := ""
		if texts[i] != nil {
			answer = texts[i].Val()
		}
		// One that cannot be read is no reason not to show the others; asking
		// for it alone says what is wrong.
		out[i], _ = readJob(id, recs[i].Val(), answer)
	}
	return out, nil
}
