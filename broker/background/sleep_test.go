package background

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			name            string
			d, within, took time.Duration
			want            error
		}{
			{"the whole", time.Minute, time.Hour, time.Minute, nil},
			{"less", time.Hour, time.Minute, time.Minute, context.DeadlineExceeded},
			{"nothing", -time.Second, time.Hour, 0, nil},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), tt.within)
			begun := time.Now()
			if err := Sleep(ctx, tt.d); !errors.Is(err, tt.want) || time.Since(begun) != tt.took {
				t.Errorf("%s: %v after %v", tt.name, err, time.Since(begun))
			}
			cancel()
		}
	})
}
