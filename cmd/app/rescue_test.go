package app_test

import (
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/broker/wire"
	"leeway/rehearsal/lab"
	"leeway/slackgate"
)

// A free pool that has become slower than declared leaves the second job too
// little time: it is offered to the gate once more, and paid takes it if its
// class allows. Without that it is dropped before a backend is called.
func TestRescue(t *testing.T) {
	for _, tt := range []struct {
		rescue  bool
		path    slackgate.Path
		outcome broker.Outcome
	}{
		{true, slackgate.Paid, broker.OutcomeUsable},
		{false, slackgate.Free, broker.OutcomeExpired},
	} {
		synctest.Test(t, func(t *testing.T) {
			cfg, labs := declared(slackgate.Predictive)
			labs[slackgate.Free][0].profile = "fixed:9500ms"
			cfg.Classes = config.Classes{"summary": {Prefer: config.FreeFirst, Rescue: tt.rescue}}
			w := start(t, cfg, labs)
			first := w.submit(&client.Job{Text: document})
			time.Sleep(100 * time.Millisecond)
			second := w.submit(&client.Job{Text: document})
			if first.Path != slackgate.Free || second.Path != slackgate.Free {
				t.Fatalf("admitted to %s and %s; want both to free", first.Path, second.Path)
			}
			ends := []*broker.Job{w.wait(first.JobID), w.wait(second.JobID)}
			if ends[0].Outcome != broker.OutcomeUsable {
				t.Errorf("first job: %s", ends[0].Outcome)
			}
			if ends[1].Outcome != tt.outcome || ends[1].Path != tt.path {
				t.Errorf("rescue %v: second job %s on %s; want %s on %s", tt.rescue, ends[1].Outcome, ends[1].Path, tt.outcome, tt.path)
			}
			w.balance(ends, 0)
		})
	}
}

// A pool that hangs is closed, by its measurement or because its worker has no
// backend left to call; booked probes find out that it is well again, while
// nothing is admitted to it, and reopen it.
func TestProbeReopens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		cfg.Pools.Free.Limit = 0
		cfg.Classes = config.Classes{"summary": {Prefer: config.PaidOnly}}
		delete(labs, slackgate.Free)
		labs[slackgate.Paid][0].profile = "fixed:40s"
		cfg.Worker.PollMS = 100
		w := start(t, cfg, labs)
		var ends []*broker.Job
		closedBy := slackgate.Reason("")
		for range 20 { // bounded: each round takes at most a deadline
			v := w.submit(&client.Job{Text: document})
			if v.Path == slackgate.Reject {
				closedBy = v.Reason
				break
			}
			ends = append(ends, w.wait(v.JobID))
			time.Sleep(time.Second)
		}
		if closedBy != slackgate.ReasonNoSlack && closedBy != slackgate.ReasonPoolDown {
			t.Fatalf("a pool whose every call hangs past the deadline: %q", closedBy)
		}
		t.Logf("closed by %s after %d jobs", closedBy, len(ends))
		must(t, w.labs["paid-1"].SetPace(lab.Pace{Profile: "fixed:300ms"}))
		began := time.Now()
		for time.Since(began) < 10*time.Minute {
			v := w.submit(&client.Job{Text: document})
			if v.Path == slackgate.Paid {
				end := w.wait(v.JobID)
				t.Logf("reopened after %v", time.Since(began))
				if end.Outcome != broker.OutcomeUsable {
					t.Errorf("first job after reopening: %s", end.Outcome)
				}
				probed := 0
				settled, _, err := w.client.Spend(t.Context())
				must(t, err)
				for i := range settled {
					if settled[i].Class == "probe" {
						probed++
					}
				}
				if probed == 0 {
					t.Error("no probe stands in the spend ledger")
				}
				t.Logf("probes booked: %d; jobs lost to the hang: %d", probed, len(ends))
				return
			}
			time.Sleep(5 * time.Second)
		}
		t.Error("the pool did not reopen within ten minutes of its backend's recovery")
	})
}

// A pool whose calls have hung twice is closed, whichever of its p95s says so and
// however short the jobs are that find it closed: a refusal says when to come again,
// and by then, or soon after, probes have reopened it.
func TestHungTwiceReopensInSeconds(t *testing.T) {
	for _, tt := range []struct {
		name, fault     string
		classDeadlineMS int64
	}{
		{"no first byte", "silent", 6000},
		{"no last byte", "stall", 6000},
		{"no first byte, and the class's other jobs have more time", "silent", 60_000},
		{"no last byte, and the class's other jobs have more time", "stall", 60_000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg, labs := declared(slackgate.Predictive)
				cfg.Pools.Free.Limit, cfg.Pools.Paid.Limit = 0, 1
				cfg.Classes = config.Classes{"summary": {Prefer: config.PaidOnly, DeadlineMS: tt.classDeadlineMS, ReserveMS: new(int64(2000))}}
				delete(labs, slackgate.Free)
				labs[slackgate.Paid][0].profile = "fixed:300ms"
				cfg.Worker.PollMS = 100
				w := start(t, cfg, labs)
				offer := func() *wire.Verdict { return w.submit(&client.Job{Text: document, DeadlineMS: 6000}) }
				for range 5 {
					if end := w.wait(offer().JobID); end.Outcome != broker.OutcomeUsable {
						t.Fatalf("a good call: %s", end.Outcome)
					}
				}
				must(t, w.labs["paid-1"].SetFault(lab.Fault{Name: tt.fault, Count: 2}))
				for range 2 {
					time.Sleep(2 * time.Second) // what is measured is read
					v := offer()
					if v.Path != slackgate.Paid {
						t.Fatalf("after one hung call at most: %s", v.Reason)
					}
					w.wait(v.JobID)
				}
				time.Sleep(1500 * time.Millisecond)
				v, began := offer(), time.Now()
				if v.Reason != slackgate.ReasonNoSlack || v.RetryAfterMS < 1000 || v.RetryAfterMS > 12_000 {
					t.Fatalf("after two hung calls: %s, to come again in %d ms", v.Reason, v.RetryAfterMS)
				}
				for v.Path == slackgate.Reject && time.Since(began) < time.Minute {
					time.Sleep(time.Second)
					v = offer()
				}
				t.Logf("reopened after %v", time.Since(began))
				if took := time.Since(began); took > 20*time.Second {
					t.Errorf("reopened after %v", took)
				} else if end := w.wait(v.JobID); end.Outcome != broker.OutcomeUsable {
					t.Errorf("the first job after that: %s", end.Outcome)
				}
			})
		})
	}
}
