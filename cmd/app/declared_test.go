package app_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/slackgate"
)

// The declared workload of the article, 8/s for 90 s, over the whole of
// Leeway: each job has one outcome, the books balance, and no backend is
// called with less slack than the pool's p95.
func TestDeclaredWorkloadSeed(t *testing.T) { testDeclared(t, slackgate.Seed, 1, 720) }

// The same under the default policy: no promise is missed.
func TestDeclaredWorkloadPredictive(t *testing.T) { testDeclared(t, slackgate.Predictive, 1, 720) }

// Two workers offer twice the slots that the pools' limits allow: each spends
// tickets while the other runs the jobs, and still none is stranded. Half a minute
// of arrivals, as idle workers that look for tickets cost most of it.
func TestDeclaredWorkloadTwoWorkers(t *testing.T) { testDeclared(t, slackgate.Predictive, 2, 240) }

func testDeclared(t *testing.T, rule slackgate.Rule, workers, jobs int) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(rule)
		w := start(t, cfg, labs)
		for range workers - 1 {
			must(t, w.stage.AnotherWorker())
		}
		verdicts, ends := w.offerAt(jobs, 125*time.Millisecond, func(int) *client.Job { return &client.Job{Text: document} })
		byOutcome := map[broker.Outcome]int{}
		due, wait := map[string]int64{}, map[string]int64{}
		for _, v := range ends {
			byOutcome[v.Outcome]++
			wait[v.ID] = v.Admission.PredictedWaitMS
			due[v.ID] = v.DeadlineAtMS - v.ReserveMS
		}
		for _, v := range verdicts {
			if onRecord, ok := wait[v.JobID]; ok && onRecord != v.PredictedWaitMS {
				t.Errorf("job %s was told of a wait of %d ms, on record are %d", v.JobID, v.PredictedWaitMS, onRecord)
			}
		}
		for name, l := range w.labs {
			path := slackgate.Paid
			if strings.HasPrefix(name, "free") {
				path = slackgate.Free
			}
			attempts, _ := l.Attempts(0)
			for _, a := range attempts {
				id := jobOf(due, a.RequestID)
				if id == "" {
					t.Errorf("%s: call %q belongs to no job", path, a.RequestID)
					continue
				}
				if left := due[id] - a.ReceivedAtMS; left < cfg.Pool(path).FirstByteP95MS {
					t.Errorf("%s: called with %d ms of slack left; its p95 is %d", path, left, cfg.Pool(path).FirstByteP95MS)
				}
			}
		}
		for id, lines := range w.log.jobs(t) {
			if len(lines) != 1 {
				t.Errorf("job %s has %d log lines", id, len(lines))
			}
		}
		w.balance(ends, 0)
		rejected := len(verdicts) - len(ends)
		t.Logf("%s: offered %d, admitted %d, rejected %d, usable %d, late %d, dropped %d",
			rule, len(verdicts), len(ends), rejected, byOutcome[broker.OutcomeUsable], byOutcome[broker.OutcomeLate], byOutcome[broker.OutcomeExpired])
		if rule == slackgate.Predictive {
			if n := byOutcome[broker.OutcomeUsable]; n < jobs*186/720 || n != len(ends) {
				t.Errorf("usable %d of %d admitted; want at least %d and all of them", n, len(ends), jobs*186/720)
			}
		}
	})
}

// Latencies are read at each full second. Where calls end then too, one of the
// usual length is found about to end again and again, while there are few to
// compare it with: no job that was promised a call of that length is dropped for
// it. The third in the queue has half a second to spare.
func TestCallsThatEndAsLatenciesAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		cfg.Classes = config.Classes{"summary": {Prefer: config.FreeOnly, DeadlineMS: 14_500}}
		w := start(t, cfg, labs)
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // virtual
		_, ends := w.offerAt(40, time.Second, func(int) *client.Job { return &client.Job{Text: document} })
		tight := 0
		for _, v := range ends {
			if v.Outcome != broker.OutcomeUsable {
				t.Errorf("job %s is %s after a wait of %d ms", v.ID, v.Outcome, v.QueueWaitMS)
			}
			if left := v.Admission.SlackMS - v.QueueWaitMS; left < 4000*12/10 {
				tight++
			}
		}
		if tight < 6 {
			t.Errorf("%d of %d jobs had little to spare; the test wants most of them to", tight, len(ends))
		}
	})
}

// jobOf finds the job that a request id belongs to.
func jobOf(jobs map[string]int64, requestID string) string {
	for id := range jobs {
		if strings.Contains(requestID, id) {
			return id
		}
	}
	return ""
}
