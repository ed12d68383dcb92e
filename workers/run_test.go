package workers

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"leeway/workers/attempt"
)

// A promise may rest on what was measured after this worker last looked. A job
// that it would give up is held against what is measured by now, once.
func TestRecheckLooksAgain(t *testing.T) {
	for _, tt := range []struct {
		name                 string
		knownMS, measuredMS  int64
		readErr              error
		wantsPass, wantsRead bool
	}{
		{"what is known will do", 300, 300, nil, true, false},
		{"the pool is faster than this worker knows", 9000, 300, nil, true, true},
		{"the pool is as slow", 9000, 9000, nil, false, true},
		{"the store does not answer", 9000, 300, errors.New("away"), false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := logged()
				r.claim.ClaimedAt = time.Now()
				r.base, r.runner = t.Context(), &attempt.Runner{}
				p95, read := tt.knownMS, false
				r.FirstByteP95 = func() int64 { return p95 }
				r.HoldP95 = func() int64 { return 0 }
				r.Remeasure = func(_ context.Context, since time.Time) error {
					if ago := time.Since(since); ago != measuredFor {
						t.Errorf("asked for what was measured since %v ago, want %v", ago, measuredFor)
					}
					read = true
					if tt.readErr == nil {
						p95 = tt.measuredMS
					}
					return tt.readErr
				}
				if got := r.passesRecheck(); got != tt.wantsPass || read != tt.wantsRead {
					t.Errorf("passes: %t, read again: %t; want %t, %t", got, read, tt.wantsPass, tt.wantsRead)
				}
			})
		})
	}
}
