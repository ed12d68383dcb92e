package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// errorPause is how long asynq is kept waiting for an answer that is an error.
const errorPause = 50 * time.Millisecond

// asynqPause is how long asynq waits by itself after it found no task, give or
// take a half.
const asynqPause = time.Millisecond

// waitingClient is asynq's way to Redis. asynq looks for the next task at once when
// looking for one has failed, so that a Redis which is gone or refuses would
// cost its workers a core each for as long as that lasts. And it looks again and
// again where there is none: it is told so only once a task was put there, or
// after a while.
type waitingClient struct {
	redis.UniversalClient
	pending string          // where asynq looks for tasks
	put     <-chan struct{} // tells when some were put there
	poll    time.Duration   // how long to wait to be told
}

// EvalSha pauses after an answer that is an error, and waits for a task before
// it answers that there is none.
func (p waitingClient) EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd {
	cmd := p.UniversalClient.EvalSha(ctx, sha1, keys, args...)
	if !errors.Is(cmd.Err(), redis.Nil) || len(keys) == 0 || keys[0] != p.pending {
		return pausedAfter(cmd)
	}
	over := time.NewTimer(p.poll)
	defer over.Stop()
	for errors.Is(cmd.Err(), redis.Nil) {
		select {
		case <-p.put:
			cmd = p.UniversalClient.EvalSha(ctx, sha1, keys, args...)
		case <-over.C:
			return cmd
		}
	}
	return pausedAfter(cmd)
}

func pausedAfter(cmd *redis.Cmd) *redis.Cmd {
	err := cmd.Err()
	if err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "NOSCRIPT") {
		time.Sleep(errorPause)
	}
	return cmd
}

// asynqLog passes asynq's log on, as warnings at most and not more than one a
// second: with Redis away asynq complains at every poll, and what matters of it
// shows as warnings of ours.
type asynqLog struct {
	log  *slog.Logger
	last *atomic.Int64 // Unix seconds of the last warning
}

func (l asynqLog) warn(args ...any) {
	now := time.Now().Unix() //nolint:forbidigo // how often to log, in this process
	if l.last.Swap(now) != now {
		l.log.Warn("asynq", "message", fmt.Sprint(args...))
	}
}

// Debug implements asynq.Logger, as do the others.
func (l asynqLog) Debug(args ...any) { l.log.Debug("asynq", "message", fmt.Sprint(args...)) }
func (l asynqLog) Info(args ...any)  { l.log.Debug("asynq", "message", fmt.Sprint(args...)) }
func (l asynqLog) Warn(args ...any)  { l.warn(args...) }
func (l asynqLog) Error(args ...any) { l.warn(args...) }
func (l asynqLog) Fatal(args ...any) { l.warn(args...) }
