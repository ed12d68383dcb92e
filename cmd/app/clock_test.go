package app_test

import (
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/slackgate"
)

// clock drives the store's clock apart from that of the hosts: it goes on as
// theirs does, by how much off can change at any time.
type clock struct {
	set chan time.Duration
}

func (w *world) clock(off time.Duration) *clock {
	c := &clock{set: make(chan time.Duration)}
	done := make(chan struct{})
	w.redis.SetTime(time.Now().Add(off))
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case off = <-c.set:
			case <-tick.C:
			}
			w.redis.SetTime(time.Now().Add(off))
		}
	}()
	w.t.Cleanup(func() { close(done) })
	return c
}

// The store's clock alone is compared across hosts: hosts that are five minutes
// off it, either way, change nothing.
func TestHostsOffByFiveMinutes(t *testing.T) {
	for name, off := range map[string]time.Duration{"ahead": -5 * time.Minute, "behind": 5 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg, labs := declared(slackgate.Predictive)
				w := start(t, cfg, labs)
				w.clock(off)
				time.Sleep(2 * time.Second) // a heartbeat by the new clock
				verdicts, ends := w.offerAt(16, 500*time.Millisecond, func(int) *client.Job { return &client.Job{Text: document} })
				refused := 0
				for _, v := range verdicts {
					if v.Path == slackgate.Reject {
						refused++
					}
				}
				if refused != 0 {
					t.Errorf("%d of 16 refused with workers idle half the time", refused)
				}
				allUsable(t, ends)
				w.balance(ends, 0)
			})
		})
	}
}

// The store's clock steps back while jobs wait and run: none is expired, none
// runs twice, and none is given more time than it came with.
func TestClockStepsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		w := start(t, cfg, labs)
		c := w.clock(0)
		time.Sleep(2 * time.Second)
		go func() {
			time.Sleep(2500 * time.Millisecond)
			c.set <- -10 * time.Second
		}()
		begun := time.Now()
		_, ends := w.offerAt(12, 10*time.Millisecond, func(int) *client.Job { return &client.Job{Text: document} })
		if len(ends) != 12 {
			t.Errorf("%d of 12 admitted", len(ends))
		}
		if took := time.Since(begun); took > 15*time.Second {
			t.Errorf("the last answer came after %v, promised were 15 s", took)
		}
		allUsable(t, ends)
		w.balance(ends, 0)
		// A claim made before its own admission, as that clock reads, leaves the
		// job its whole time and no more.
		late := w.submit(&client.Job{Text: document})
		c.set <- -5 * time.Minute
		if end := w.wait(late.JobID); end.Outcome != broker.OutcomeUsable || end.QueueWaitMS < 0 {
			t.Errorf("%+v", end)
		}
	})
}

func allUsable(t *testing.T, ends []*broker.Job) {
	t.Helper()
	for _, v := range ends {
		if v.Outcome != broker.OutcomeUsable || v.Attempts != 1 {
			t.Errorf("job %s: %s (%s) after %d attempts", v.ID, v.Outcome, v.Cause, v.Attempts)
		}
	}
}
