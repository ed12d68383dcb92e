package admission

import (
	"fmt"
	"testing"
	"time"

	"leeway/broker"
	"leeway/slackgate"
)

// Behind a busy worker a job waits for that worker's calls to the store too,
// where they take longer than an idle worker's look for tickets: for what each of
// the last calls took at least.
func TestSlowStoreIsPartOfTheWait(t *testing.T) {
	inBubble(t, slackgate.Predictive, func(b *bench) {
		// The job behind as many as there are slots waits for the hold of one.
		const slots, hold = 8, 1000
		jobs := 0
		wait := func(delay time.Duration, readings int) int64 {
			t.Helper()
			b.watched.mu.Lock()
			b.watched.delay = delay
			b.watched.mu.Unlock()
			for range readings {
				if _, err := b.refresh(b.ctx); err != nil {
					t.Fatal(err)
				}
			}
			var last broker.Verdict
			for range slots + 1 {
				jobs++
				v, err := b.Submit(b.ctx, b.job(fmt.Sprintf("j%d", jobs), 60_000))
				if err != nil || v.Path != slackgate.Paid {
					t.Fatalf("%+v, %v", v, err)
				}
				last = v
			}
			for range slots + 1 {
				c, _, err := b.store.Claim(b.ctx, slackgate.Paid, slots, time.Minute)
				if err != nil || c == nil {
					t.Fatal(c, err)
				}
				if _, err := b.store.Finish(b.ctx, c, &broker.Finish{Outcome: broker.OutcomeUsable, Answer: "x"}); err != nil {
					t.Fatal(err)
				}
			}
			return last.PredictedWaitMS
		}
		for _, c := range []struct {
			delay    time.Duration
			readings int
			want     int64
		}{
			{0, 1, hold},
			{100 * time.Millisecond, tripsKept - 1, hold}, // one was faster
			{100 * time.Millisecond, 1, hold + 4*100},
			{150 * time.Millisecond, tripsKept - 1, hold + 4*100},
			{150 * time.Millisecond, 1, hold + 4*150},
			{4 * time.Millisecond, 1, hold + 4*4},
		} {
			if got := wait(c.delay, c.readings); got != c.want {
				t.Errorf("%d readings of %v: a wait of %d ms, want %d", c.readings, c.delay, got, c.want)
			}
		}
		if got := b.dispatchMS(20); got != 20 {
			t.Errorf("an idle worker takes 20 ms, a busy one 16: counted are %d", got)
		}
		if got := new(Admitter).dispatchMS(20); got != 20 {
			t.Errorf("nothing read yet: counted are %d", got)
		}
	})
}
