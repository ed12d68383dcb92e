package background

import (
	"context"
	"time"
)

// Sleep waits for d, and less when ctx ends first; the error is then that of
// ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
