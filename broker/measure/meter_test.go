package measure

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/slackgate"
	"leeway/slackgate/latency"
)

// slowStore takes 10 ms to say that nothing was measured.
type slowStore struct {
	reads int
	err   error
}

func (s *slowStore) State(context.Context, [slackgate.NumPaths]broker.PoolPolicy) (*broker.GateState, error) {
	s.reads++
	time.Sleep(10 * time.Millisecond)
	return &broker.GateState{NowMS: time.Now().UnixMilli()}, s.err
}

func (s *slowStore) Slices(_ context.Context, series []latency.Series, from, to int64) ([][]*latency.Histogram, error) {
	out := make([][]*latency.Histogram, len(series))
	for i := range out {
		out[i] = make([]*latency.Histogram, to-from+1)
	}
	return out, nil
}

// Whoever wants what was measured since an instant shares a reading that began
// after it with all others, also one that failed.
func TestSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{}
		m := New(s, func() (none [slackgate.NumPaths]broker.PoolPolicy) { return none }, slog.New(slog.DiscardHandler), []Subject{
			{Name: PoolName(slackgate.Paid), Path: slackgate.Paid, Declared: slackgate.FixedBelief(100, 100)},
		})
		since := func(at time.Time, want int, wantErr error) {
			t.Helper()
			if err := m.Since(t.Context(), at); !errors.Is(err, wantErr) || s.reads != want {
				t.Errorf("%d readings, %v; want %d, %v", s.reads, err, want, wantErr)
			}
		}
		began := time.Now()
		time.Sleep(time.Millisecond)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if err := m.Since(t.Context(), began); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		since(began, 1, nil)
		since(time.Now(), 2, nil)
		s.err = errors.New("away")
		since(time.Now(), 3, s.err)
		since(time.Now().Add(-time.Second), 3, s.err)
		away := s.err
		s.err = nil
		since(time.Now().Add(-time.Second), 3, away)
		since(time.Now(), 4, nil)

		// Nobody waits for longer than he likes for the turn to read.
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		wg.Go(func() { _ = m.Once(t.Context()) })
		synctest.Wait()
		if err := m.Since(ctx, time.Now()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who gave up was told %v", err)
		}
		wg.Wait()
	})
}
