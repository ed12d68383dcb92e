//go:build server

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/rehearsal/proctest"
)

// TestRedisTroubles: Redis is dead, stands still, is full and is read-only, one
// after the other, under processes that are not restarted. While it lasts a
// submission is refused at once with a 503 that names the trouble, and the API
// lives and is not ready. A job in flight comes to its end, and afterwards jobs
// are admitted again.
func TestRedisTroubles(t *testing.T) {
	t.Parallel()
	s := slow()
	s.RedisMS = defaultMS
	d := run(t, s, "--appendfsync", "always")
	d.api.outage, d.workers[0].outage = true, true
	rdb := d.redisClient()
	set := func(args ...any) {
		t.Helper()
		if err := rdb.Do(context.Background(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		trouble     broker.Trouble
		begin, heal func()
	}{
		{broker.TroubleNoConnection, d.redis.Kill, d.redis.Run},
		{broker.TroubleNoAnswer, d.redis.Pause, d.redis.Resume},
		{broker.TroubleFull, func() { set("CONFIG", "SET", "maxmemory", "1") }, func() { set("CONFIG", "SET", "maxmemory", "0") }},
		{broker.TroubleReadOnly, func() { set("REPLICAOF", "127.0.0.1", "1") }, func() { set("REPLICAOF", "NO", "ONE") }},
	} {
		// A job that a trouble has kept long makes the pool look slow for a while.
		var inFlight *submission
		proctest.Eventually(t, 20*time.Second, "a job is admitted", func() error {
			if inFlight = d.submit(client.Job{Class: "paid-only", Text: text}); !inFlight.admitted() {
				return errors.New(string(inFlight.reason()))
			}
			return nil
		})
		d.labs["lab-paid"].busy(1)
		tt.begin()
		var slowest time.Duration
		named := func() (missed []string) {
			sub := d.submit(client.Job{Text: text})
			if sub.refusal == nil || sub.refusal.Status != http.StatusServiceUnavailable || !strings.HasPrefix(sub.refusal.Detail, tt.trouble.Sentence()) {
				missed = append(missed, "submission")
				t.Logf("%s: a submission got %+v %+v %v", tt.trouble, sub.verdict, sub.refusal, sub.err)
			}
			ready := call(t, http.MethodGet, d.client.Base+"/readyz", "", "")
			if ready.status != http.StatusServiceUnavailable || !strings.Contains(string(ready.body), tt.trouble.Sentence()) {
				missed = append(missed, "/readyz")
				t.Logf("%s: /readyz %d %s", tt.trouble, ready.status, ready.body)
			}
			live := call(t, http.MethodGet, d.client.Base+"/livez", "", "")
			if live.status != http.StatusOK {
				t.Errorf("%s: /livez %d", tt.trouble, live.status)
			}
			slowest = max(slowest, sub.took, ready.took, live.took)
			return missed
		}
		// The first calls may meet a connection that has just been cut, and a
		// readiness that was looked up before.
		proctest.Eventually(t, 10*time.Second, string(tt.trouble), func() error {
			if missed := named(); len(missed) > 0 {
				return fmt.Errorf("not named by %v", missed)
			}
			return nil
		})
		for range 5 {
			if missed := named(); len(missed) > 0 {
				t.Errorf("%s is not named by %v", tt.trouble, missed)
			}
		}
		tt.heal()
		back := time.Now()
		d.ready()
		t.Logf("%s: slowest answer %v, ready %v after it was over", tt.trouble,
			slowest.Round(time.Millisecond), time.Since(back).Round(time.Millisecond))
		if slowest > bound {
			t.Errorf("%s: an answer took %v", tt.trouble, slowest)
		}
		if v := d.waitFor(inFlight, 40*time.Second); v.Outcome != broker.OutcomeUsable {
			t.Errorf("%s: the job in flight ended %s (%s %s)", tt.trouble, v.Outcome, v.Cause, v.Reason)
		}
	}
	d.settled(40 * time.Second)
	// A 503 may hide an admission whose reply was lost with the connection.
	d.audit(rules{unanswered: 1, uncalled: lost})
}
