package app

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/slackgate"
)

// A store that goes away while jobs run is no crash of their worker: whenever
// it goes and however long it stays, no job is generated twice.
func TestOutageGeneratesNothingTwice(t *testing.T) {
	const jobs = 4
	type span struct{ begin, end time.Duration } // after the jobs were taken
	s := func(beginMS, endMS int64) span { return span{ms(beginMS), ms(endMS)} }
	for _, row := range []struct {
		name    string
		holdMS  int64
		outages []span
	}{
		{"before anybody has swept", 6000, []span{s(0, 4000)}},
		{"before a renewal", 6000, []span{s(600, 4600)}},
		{"two renewals fail and it is too short to be noticed", 6000, []span{s(900, 2300)}},
		{"as the jobs complete", 2500, []span{s(2400, 6400)}},
		{"far beyond a lease", 2500, []span{s(1100, 14_000)}},
		{"back for a moment", 6000, []span{s(700, 3700), s(4000, 8000)}},
		{"back for a moment as the jobs complete", 2500, []span{s(900, 2100), s(2400, 12_000)}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				t.Cleanup(func() { time.Sleep(time.Second) }) // subscriptions that were cut see that they are done
				cfg := config.Default()
				cfg.Pools.Paid.Limit, cfg.Pools.Paid.FirstByteP95MS, cfg.Pools.Free.Limit = jobs, row.holdMS, 0
				cfg.Classes = config.Classes{"summary": {Prefer: config.PaidOnly, DeadlineMS: 60_000}}
				w := start(t, cfg, map[slackgate.Path][]lives{
					slackgate.Paid: {{profile: fmt.Sprintf("fixed:%dms", row.holdMS), tail: "0", slots: jobs}},
				})
				var ids []string
				for range jobs {
					v := w.submit(&client.Job{Text: document})
					if v.Path != slackgate.Paid {
						t.Fatalf("not admitted: %+v", v)
					}
					ids = append(ids, v.JobID)
				}
				time.Sleep(100 * time.Millisecond)
				if n := w.labs["paid-1"].State().InService; n != jobs {
					t.Fatalf("%d jobs in service, want %d", n, jobs)
				}
				begun := time.Now()
				for _, o := range row.outages {
					time.Sleep(time.Until(begun.Add(o.begin)))
					w.redis.SetError("LOADING Redis is loading the dataset in memory")
					time.Sleep(time.Until(begun.Add(o.end)))
					w.redis.SetError("")
				}
				var ends []*broker.View
				for _, id := range ids {
					v := w.wait(id)
					if v.Outcome != broker.OutcomeUsable || v.Attempts != 1 {
						t.Errorf("job %s ended %s (%s) after %d attempts", id, v.Outcome, v.Cause, v.Attempts)
					}
					ends = append(ends, v)
				}
				w.balance(ends, 0)
			})
		})
	}
}
