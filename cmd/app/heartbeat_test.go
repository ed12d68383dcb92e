package app_test

import (
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker/client"
	"leeway/slackgate"
)

// A store that is away for two heartbeats has nobody forgotten: one that could
// not be written is tried again at once, not with the next.
func TestHeartbeatIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		w := start(t, cfg, labs)
		time.Sleep(1500 * time.Millisecond) // between two heartbeats
		w.redis.SetError("LOADING away")
		time.Sleep(1800 * time.Millisecond)
		w.redis.SetError("")
		// The last that was written lapses 2.5 s after it.
		for range 20 {
			time.Sleep(100 * time.Millisecond)
			p, err := w.client.Pools(t.Context())
			must(t, err)
			if n := p.Pools["paid"].Capacity; n != 2 {
				t.Fatalf("%d slots live", n)
			}
		}
		v := w.submit(&client.Job{Text: document})
		if v.Path != slackgate.Paid {
			t.Errorf("%+v", v)
		}
		w.wait(v.JobID)
	})
}
