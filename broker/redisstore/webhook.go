package redisstore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
)

// DueWebhooks leaves of due what has something due. It costs less than taking.
func (s *Store) DueWebhooks(ctx context.Context, due ...broker.WebhookDue) ([]broker.WebhookDue, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var clock *redis.TimeCmd
	next := make([]*redis.ZSliceCmd, len(due))
	node, err := s.node(ctx)
	if err != nil {
		return nil, err
	}
	sent := time.Now()
	_, err = node.Pipelined(ctx, func(p redis.Pipeliner) error {
		clock = p.Time(ctx)
		for i := range due {
			next[i] = p.ZRangeWithScores(ctx, s.key("webhooks", due[i].Producer), 0, 0)
		}
		return nil
	})
	if err != nil {
		return nil, unavailable(err)
	}
	s.saw(sent, clock.Val().UnixMilli()) //nolint:forbidigo // Redis TIME itself
	var out []broker.WebhookDue
	for i := range due {
		if first := next[i].Val(); len(first) > 0 && int64(first[0].Score) <= s.NowMS() {
			out = append(out, due[i])
		}
	}
	return out, nil
}

// TakeWebhooks takes ends that are due. Nobody else gets them before lease is
// over.
func (s *Store) TakeWebhooks(ctx context.Context, lease time.Duration, due ...broker.WebhookDue) ([]broker.Untold, error) {
	args := []any{lease.Milliseconds()}
	for _, d := range due {
		args = append(args, d.Producer, d.Most)
	}
	sent := time.Now()
	v, err := s.run(ctx, scriptDue, args...)
	if err != nil {
		return nil, err
	}
	r := asReply(v)
	s.saw(sent, r.int())
	var out []broker.Untold
	for r.more() {
		u := broker.Untold{Producer: r.string(), JobID: r.string(), Attempt: r.int()}
		u.Job, u.Err = readJob(u.JobID, pairs(r.texts()), "")
		out = append(out, u)
	}
	return out, r.err
}

// SettleWebhook puts down how an attempt ended; next is the time until the
// next one after a failure. It returns what was put down: an end whose time is
// over by then is given up, and nothing ("") becomes of an attempt that another
// has followed.
func (s *Store) SettleWebhook(ctx context.Context, u *broker.Untold, result broker.WebhookResult, next time.Duration) (broker.WebhookResult, error) {
	v, err := s.run(ctx, scriptTold, u.Producer, u.JobID, u.Attempt, string(result), next.Milliseconds())
	if err != nil {
		return "", err
	}
	got, _ := v.(string)
	return broker.WebhookResult(got), nil
}

// WebhooksWaiting is how many ends each producer's webhook is yet to be told
// of.
func (s *Store) WebhooksWaiting(ctx context.Context, producers []string) (map[string]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	counts := make([]*redis.IntCmd, len(producers))
	_, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, name := range producers {
			counts[i] = p.ZCard(ctx, s.key("webhooks", name))
		}
		return nil
	})
	if err != nil {
		return nil, unavailable(err)
	}
	out := make(map[string]int64, len(producers))
	for i, name := range producers {
		out[name] = counts[i].Val()
	}
	return out, nil
}
