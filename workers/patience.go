package workers

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// errorPause is how long asynq is kept waiting for an answer that is an error.
const errorPause = 50 * time.Millisecond

// patient is asynq's way to Redis. asynq looks for the next task at once when
// looking for one has failed, so that a Redis which is gone or refuses would
// cost its workers a core each for as long as that lasts.
type patient struct{ redis.UniversalClient }

// EvalSha pauses after an answer that is an error.
func (p patient) EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd {
	cmd := p.UniversalClient.EvalSha(ctx, sha1, keys, args...)
	err := cmd.Err()
	if err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "NOSCRIPT") {
		time.Sleep(errorPause)
	}
	return cmd
}
