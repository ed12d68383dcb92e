package app

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"
)

// redisLog passes go-redis's own lines on; it would write them to standard
// error as plain text. What they report shows as warnings of ours, so they are
// for debugging.
type redisLog struct{ log *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, args ...any) {
	l.log.LogAttrs(ctx, slog.LevelDebug, "redis", slog.String("message", fmt.Sprintf(format, args...)))
}

// LogRedis sends go-redis's lines to log. The setting is the whole process's:
// commands call it once, before anything starts.
func LogRedis(log *slog.Logger) { redis.SetLogger(redisLog{log}) }
