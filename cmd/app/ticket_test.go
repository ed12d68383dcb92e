package app_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/slackgate"
)

// patient is a class of jobs that can wait.
func patient() (*config.Config, map[slackgate.Path][]lives) {
	cfg, labs := declared(slackgate.Predictive)
	cfg.Classes = config.Classes{
		"summary": {Prefer: config.PaidOnly},
		"batch":   {Prefer: config.PaidOnly, DeadlineMS: 600_000, ReserveMS: new(int64(2000))},
	}
	return cfg, labs
}

func (w *world) cancel(id string) string {
	req, err := http.NewRequest(http.MethodDelete, w.url+"/v1/jobs/"+id, nil)
	must(w.t, err)
	resp, err := w.http.Do(req)
	must(w.t, err)
	defer func() { _ = resp.Body.Close() }()
	return resp.Status
}

// A short deadline goes ahead of a hundred patient jobs that came first.
func TestUrgentJobRunsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := patient()
		cfg.Worker.PollMS = 100 // much time goes by
		w := start(t, cfg, labs)
		var ends []*broker.Job
		var ids []string
		for range 100 {
			v := w.submit(&client.Job{Class: "batch", Text: document})
			if v.Path != slackgate.Paid {
				t.Fatalf("patient job: %s", v.Reason)
			}
			ids = append(ids, v.JobID)
		}
		time.Sleep(500 * time.Millisecond) // both workers are busy with patient jobs
		urgent := w.submit(&client.Job{Text: document})
		if urgent.Path != slackgate.Paid {
			t.Fatalf("urgent job: %s, need %v", urgent.Reason, urgent.NeedMS)
		}
		end := w.wait(urgent.JobID)
		t.Logf("urgent job behind 100 patient ones: waited %d ms, %s", end.QueueWaitMS, end.Outcome)
		if end.Outcome != broker.OutcomeUsable || end.QueueWaitMS > 1300 {
			t.Errorf("urgent job: %s after waiting %d ms; want usable after one service time at most", end.Outcome, end.QueueWaitMS)
		}
		ends = append(ends, end)
		for _, id := range ids {
			ends = append(ends, w.wait(id))
		}
		for _, v := range ends {
			if v.Outcome != broker.OutcomeUsable {
				t.Errorf("job %s: %s", v.ID, v.Outcome)
			}
		}
		w.balance(ends, 0)
	})
}

// Tickets delivered twice, or with nothing waiting, run no job twice.
func TestTicketsTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := patient()
		w := start(t, cfg, labs)
		must(t, w.api.Tickets().Put(context.Background(), slackgate.Paid, 20)) // for nothing
		time.Sleep(time.Second)
		var ends []*broker.Job
		var ids []string
		for range 5 {
			ids = append(ids, w.submit(&client.Job{Class: "batch", Text: document}).JobID)
			must(t, w.api.Tickets().Put(context.Background(), slackgate.Paid, 2)) // twice more
		}
		for _, id := range ids {
			ends = append(ends, w.wait(id))
		}
		for _, v := range ends {
			if v.Outcome != broker.OutcomeUsable || v.Attempts != 1 {
				t.Errorf("job %s: %s after %d attempts", v.ID, v.Outcome, v.Attempts)
			}
		}
		w.balance(ends, 0)
	})
}

// What stands in asynq's queue and is no ticket is passed over: one that asynq
// cannot decode, one without content and one of another kind. The jobs run all
// the same, also when it comes between their tickets.
func TestTicketsThatAreNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := patient()
		w := start(t, cfg, labs)
		queue := fmt.Sprintf("asynq:{%s}:", w.api.Tickets().Name(slackgate.Paid))
		poison := func(id, msg string) {
			_, err := w.redis.Lpush(queue+"pending", id)
			must(t, err)
			if msg != "" {
				w.redis.HSet(queue+"t:"+id, "msg", msg, "state", "pending")
			}
		}
		stranger := asynq.NewClientFromRedisClient(w.api.Redis())
		var ids []string
		for i := range 6 {
			poison(fmt.Sprintf("undecodable-%d", i), "\xff\xfe not a message")
			poison(fmt.Sprintf("gone-%d", i), "")
			_, err := stranger.Enqueue(asynq.NewTask("another:kind", []byte("{")), asynq.Queue(w.api.Tickets().Name(slackgate.Paid)))
			must(t, err)
			ids = append(ids, w.submit(&client.Job{Class: "batch", Text: document}).JobID)
			time.Sleep(300 * time.Millisecond)
		}
		var ends []*broker.Job
		for _, id := range ids {
			ends = append(ends, w.wait(id))
		}
		allUsable(t, ends)
		time.Sleep(20 * time.Second)
		ends = append(ends, w.wait(w.submit(&client.Job{Class: "batch", Text: document}).JobID))
		allUsable(t, ends)
		w.balance(ends, 0)
	})
}

// Jobs that wait behind a busy pool have no tickets: each slot takes one after
// the other, and between two there is no idle time to speak of.
func TestSlotsGoOnWithoutTickets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := patient()
		w := start(t, cfg, labs)
		var ids []string
		for range 10 {
			ids = append(ids, w.submit(&client.Job{Class: "batch", Text: document}).JobID)
		}
		n, err := w.api.Tickets().Pending(t.Context(), slackgate.Paid)
		if err != nil || n > 2 {
			t.Errorf("%d tickets for two slots, %v", n, err)
		}
		time.Sleep(500 * time.Millisecond)
		if n, err = w.api.Tickets().Pending(t.Context(), slackgate.Paid); n != 0 || err != nil {
			t.Errorf("%d tickets with every slot taken, %v", n, err)
		}
		var ends []*broker.Job
		var last int64
		for _, id := range ids {
			v := w.wait(id)
			ends, last = append(ends, v), max(last, v.AcceptedAtMS+v.ElapsedMS)
		}
		// Five rounds of the lab's 1200 ms, and a poll for the first.
		if took := last - ends[0].AcceptedAtMS; took > 5*1200+100 {
			t.Errorf("ten jobs on two slots took %d ms", took)
		}
		w.balance(ends, 0)
	})
}

// Tickets removed by hand strand no job: whoever notices adds new ones.
func TestTicketsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := patient()
		w := start(t, cfg, labs)
		queue := fmt.Sprintf("asynq:{%s}:", w.api.Tickets().Name(slackgate.Paid))
		if err := w.redis.Set(queue+"paused", "1"); err != nil { // so that no worker is faster
			t.Fatal(err)
		}
		var ids []string
		for range 10 {
			ids = append(ids, w.submit(&client.Job{Class: "batch", Text: document}).JobID)
		}
		if !w.redis.Del(queue + "pending") {
			t.Fatal("no ticket is pending: the test removes nothing")
		}
		w.redis.Del(queue + "paused")
		var ends []*broker.Job
		for _, id := range ids {
			ends = append(ends, w.wait(id))
		}
		for _, v := range ends {
			if v.Outcome != broker.OutcomeUsable || v.Attempts != 1 {
				t.Errorf("job %s: %s after %d attempts", v.ID, v.Outcome, v.Attempts)
			}
		}
		w.balance(ends, 0)
	})
}

// A cancelled waiting job costs nothing and its ticket claims somebody else or
// nothing; a cancelled running job is cut and its spend stays booked.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := patient()
		w := start(t, cfg, labs)
		var ids []string
		for range 4 {
			ids = append(ids, w.submit(&client.Job{Class: "batch", Text: document}).JobID)
		}
		time.Sleep(500 * time.Millisecond) // two run, two wait
		t.Log("waiting:", w.cancel(ids[3]), "running:", w.cancel(ids[0]))
		var ends []*broker.Job
		for _, id := range ids {
			ends = append(ends, w.wait(id))
		}
		want := []struct {
			outcome  broker.Outcome
			attempts int
		}{
			{broker.OutcomeCancelled, 1}, {broker.OutcomeUsable, 1}, {broker.OutcomeUsable, 1}, {broker.OutcomeCancelled, 0},
		}
		for i, v := range ends {
			if v.Outcome != want[i].outcome || v.Attempts != want[i].attempts {
				t.Errorf("job %d: %s after %d attempts; want %s after %d", i, v.Outcome, v.Attempts, want[i].outcome, want[i].attempts)
			}
		}
		if n := ends[0].ElapsedMS; n > 700 {
			t.Errorf("the running job ended %d ms after admission, cancelled at 500", n)
		}
		w.balance(ends, 0)
	})
}
