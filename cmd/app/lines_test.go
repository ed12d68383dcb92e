package app_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker/client"
	"leeway/slackgate"
)

// A worker writes the line of each job that it ends otherwise than by an answer:
// one without a record, one without a text, and one that its producer took back
// while the worker was giving it back.
func TestLinesOfJobsThatCannotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		cfg.Worker.ShutdownGraceMS = 100
		w := start(t, cfg, labs)
		ids := map[string]string{}
		for _, name := range []string{"first", "second", "no record", "no text"} {
			v := w.submit(&client.Job{Text: document})
			if v.Path != slackgate.Paid {
				t.Fatalf("%s: %+v", name, v)
			}
			ids[name] = v.JobID
			synctest.Wait()
		}
		w.redis.Del("{" + cfg.Redis.Prefix + "}:job:" + ids["no record"])
		w.redis.Del("{" + cfg.Redis.Prefix + "}:text:" + ids["no text"])
		w.wait(ids["first"])
		w.wait(ids["second"])
		time.Sleep(time.Second) // virtual

		taken := w.submit(&client.Job{Text: document})
		time.Sleep(300 * time.Millisecond)
		ids["taken back"] = taken.JobID
		// The notice is lost, as with Redis away: the worker gives the job back.
		w.redis.HSet("{"+cfg.Redis.Prefix+"}:job:"+taken.JobID, "cancel", "1")
		must(t, w.worker.Stop(context.Background()))
		w.stage.Workers = nil

		lines := w.log.jobs(t)
		for name, want := range map[string][2]string{
			"first": {"usable", "paid"}, "second": {"usable", "paid"}, "no record": {"failed", "record_lost"}, "no text": {"failed", "record_lost"},
			"taken back": {"cancelled", "paid"},
		} {
			if got := lines[ids[name]]; len(got) != 1 || got[0]["outcome"] != want[0] || got[0]["reason"] != want[1] || got[0]["class"] != "summary" {
				t.Errorf("%s: lines %v, want one of %v", name, got, want)
			}
		}
	})
}
