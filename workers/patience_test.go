package workers

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"leeway/broker/redisstore"
)

// Only an answer that is an error makes asynq wait: no task, a script that
// Redis does not know yet, and a value are answers like any other.
func TestPatientPausesAfterErrorsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		rdb := redisstore.DialClient(func(context.Context, string, string) (net.Conn, error) { return m.Dial() })
		defer func() {
			_ = rdb.Close()
			m.Close()
			synctest.Wait()
		}()
		p := patient{rdb}
		for _, row := range []struct {
			name, script, refusal string
			want                  time.Duration
		}{
			{"a value", `return 1`, "", 0},
			{"nothing", `return nil`, "", 0},
			{"refused", `return 2`, "READONLY You can't write against a read only replica.", 2 * errorPause},
			{"an error of the script's own", `return redis.error_reply("NOT FOUND")`, "", errorPause},
		} {
			begun := time.Now()
			m.SetError(row.refusal)
			for range 2 {
				// The first run of a script is answered NOSCRIPT.
				err := redis.NewScript(row.script).Run(context.Background(), p, nil).Err()
				if (err == nil) != (row.name == "a value") {
					t.Errorf("%s: %v", row.name, err)
				}
			}
			if took := time.Since(begun); took != row.want {
				t.Errorf("%s: paused for %v, want %v", row.name, took, row.want)
			}
		}
	})
}
