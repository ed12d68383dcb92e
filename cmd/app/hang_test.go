package app_test

import (
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/rehearsal/lab"
	"leeway/slackgate"
)

// A job that had long to wait for a primary that hangs, and then the fallback's
// answer, does not close the pool to jobs that have less time and so leave the
// primary sooner; nor do probes that find the primary still silent.
func TestHungPrimaryClosesNoPool(t *testing.T) {
	const every, lasts = 3 * time.Second, 90 * time.Second
	for _, tt := range []struct {
		name        string
		hangs, jobs int // calls that hang, 0: all; jobs of a minute that meet them
	}{
		{"one call", 1, 1},
		{"for good", 0, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg, labs := declared(slackgate.Predictive)
				cfg.Pools.Free.Limit, cfg.Pools.Paid.Limit = 0, 4
				cfg.Classes = config.Classes{"summary": {Prefer: config.PaidOnly, DeadlineMS: 60_000, ReserveMS: new(int64(2000))}}
				delete(labs, slackgate.Free)
				labs[slackgate.Paid] = []lives{{profile: "fixed:400ms", tail: "0"}, {profile: "fixed:400ms", tail: "0"}}
				cfg.Worker.PollMS = 500
				w := start(t, cfg, labs)
				// served reports whether a job with 15 s was taken. None that is may be lost.
				served := func() bool {
					v := w.submit(&client.Job{Text: document, DeadlineMS: 15_000})
					if v.Path == slackgate.Reject {
						return false
					}
					if end := w.wait(v.JobID); end.Outcome != broker.OutcomeUsable {
						t.Errorf("a job with 15 s: %s", end.Outcome)
					}
					return true
				}
				for range 5 {
					if !served() {
						t.Fatal("a good pool refuses")
					}
				}
				must(t, w.labs["paid-1"].SetFault(lab.Fault{Name: "silent", Count: tt.hangs}))
				_, ends := w.offerAt(tt.jobs, 100*time.Millisecond, func(int) *client.Job {
					return &client.Job{Text: document, DeadlineMS: 60_000}
				})
				for _, end := range ends {
					if end.Outcome != broker.OutcomeUsable || end.Backend != "paid-2" {
						t.Errorf("a job with a minute: %s by %s", end.Outcome, end.Backend)
					}
				}
				refused := time.Duration(0)
				for began := time.Now(); time.Since(began) < lasts; time.Sleep(every) {
					if !served() {
						refused += every
					}
				}
				t.Logf("closed to jobs with 15 s for %v of %v", refused, lasts)
				if refused > 24*time.Second {
					t.Error("want seconds")
				}
			})
		})
	}
}
