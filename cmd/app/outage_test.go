package app_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/broker/flag"
	"leeway/broker/wire"
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
				var ends []*broker.Job
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

// A store that comes back without its data has forgotten every promise: jobs
// from before are on no record, and what their workers still bring is turned
// away. What comes afterwards runs as on the first day, and the books balance.
func TestStoreForgetsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		w := start(t, cfg, labs)
		ctx := t.Context()
		_, err := w.client.SetFlag(ctx, flag.Reserve, &wire.FlagChange{Value: "2500", Reason: "drill"})
		must(t, err)
		var before []string
		for range 5 {
			before = append(before, w.submit(&client.Job{Text: document}).JobID)
		}
		time.Sleep(700 * time.Millisecond)
		if n := w.labs["paid-1"].State().InService; n != 2 {
			t.Fatalf("%d jobs in service", n)
		}
		w.redis.FlushAll()
		time.Sleep(3 * time.Second) // heartbeats are written anew
		for _, id := range before {
			var p *wire.Problem
			if _, err := w.client.Get(ctx, id, 0); !errors.As(err, &p) || p.Status != http.StatusNotFound {
				t.Errorf("a job from before: %v", err)
			}
		}
		verdicts, ends := w.offerAt(8, 700*time.Millisecond, func(int) *client.Job { return &client.Job{Text: document} })
		for _, v := range verdicts {
			if v.Path == slackgate.Reject || v.ReserveMS != 2000 {
				t.Errorf("afterwards: %+v", v)
			}
		}
		allUsable(t, ends)
		time.Sleep(10 * time.Second)
		report, err := w.client.CheckLedgers(ctx)
		must(t, err)
		for _, item := range report.Items {
			if !item.OK {
				t.Errorf("ledgers check: %s: %s %v", item.Name, item.Detail, item.Problems)
			}
		}
	})
}
