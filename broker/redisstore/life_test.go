package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"leeway/broker"
	"leeway/slackgate"
	"leeway/slackgate/latency"
)

var lifeBehaviours = []behaviour{
	{"claim, renew, finish", wholeLife},
	{"a second finish is harmless", finishTwice},
	{"a wrong fence is refused and its spend settles", wrongFence},
	{"every outcome has its row", outcomes},
	{"cancel waiting, running, late, done, missing", cancelAll},
	{"a cancelled job that is handed back ends", cancelledHandback},
	{"purge deletes text and answer only", purge},
	{"ends and cancels are announced", announced},
	{"an unreadable record fails its job", unreadable},
	{"steps of several slots share a call, and each stands for itself", sharedSteps},
	{"a claim whose reply was lost is given again", claimAgain},
	{"a call gives out so many bytes of texts", claimLater},
}

func claimAgain(t *testing.T, h *harness) {
	h.live(2, 0)
	for _, id := range []string{"a", "b", "c", "d"} {
		h.put(slackgate.Paid, testJob(id, 60_000))
	}
	a := h.claim(slackgate.Paid)
	next := func(job *broker.Claim, again bool) *broker.Claim {
		t.Helper()
		step := &broker.Step{Job: job, Finish: usable("x"), Claim: true, Again: again}
		h.must(h.Steps(bg, slackgate.Paid, 1000, time.Minute, step))
		if step.Err != nil || step.Claimed == nil || step.Ended == nil || step.Ended.Outcome != broker.OutcomeUsable {
			t.Fatalf("%+v, %v, %v", step.Ended, step.Err, step.Found.Err)
		}
		return step.Claimed
	}
	b := next(a, false)
	again := next(a, true)
	again.ClaimedAt, again.NowMS, again.Admission = b.ClaimedAt, b.NowMS, b.Admission
	if diff := cmp.Diff(b, again); b.ID != "b" || diff != "" {
		t.Errorf("asked again, the slot of %s has another claim: %s", b.ID, diff)
	}
	if n := len(h.state().RunningAges[slackgate.Paid]); n != 1 {
		t.Errorf("%d jobs run, want 1", n)
	}
	// Of a call that was never made nothing is to be had again; nor of a job that
	// went to somebody else.
	if c := next(b, true); c.ID != "c" {
		t.Errorf("claimed %s, want c", c.ID)
	}
	h.must(h.rdb.HSet(bg, h.key("job", "c"), "fence", 7).Err())
	if d := next(b, true); d.ID != "d" {
		t.Errorf("claimed %s, want d", d.ID)
	}

	gone := &broker.Claim{Spec: broker.Spec{ID: "gone"}, Path: slackgate.Paid, Fence: 5}
	step := &broker.Step{Job: gone, Finish: usable("x"), Claim: true}
	h.put(slackgate.Paid, testJob("e", 60_000))
	h.live(10, 0)
	h.must(h.Steps(bg, slackgate.Paid, 1000, time.Minute, step))
	if !errors.Is(step.Err, broker.ErrFenced) || step.Claimed == nil || step.Claimed.ID != "e" {
		t.Errorf("%v, claimed %+v", step.Err, step.Claimed)
	}
	if h.rdb.Exists(bg, h.key("job", "gone")).Val() != 0 {
		t.Error("a job that is gone has a record again")
	}
}

func claimLater(t *testing.T, h *harness) {
	h.live(10, 0)
	for _, id := range []string{"a", "b", "c"} {
		job := testJob(id, 60_000)
		job.Text = strings.Repeat("x", mostTextBytes*2/3)
		h.put(slackgate.Paid, job)
	}
	steps := []*broker.Step{{Claim: true}, {Claim: true}, {Claim: true}}
	h.must(h.Steps(bg, slackgate.Paid, 1000, time.Minute, steps...))
	for i, s := range steps {
		if got := s.Claimed != nil; got != (i < 2) || s.Found.Later != (i == 2) {
			t.Errorf("claim %d: %t, later: %t", i, got, s.Found.Later)
		}
	}
	if c := h.claim(slackgate.Paid); c.ID != "c" {
		t.Errorf("the next call claims %s, want c", c.ID)
	}
}

func sharedSteps(t *testing.T, h *harness) {
	h.live(4, 0)
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		h.put(slackgate.Paid, testJob(id, 60_000))
	}
	share := func(steps ...*broker.Step) {
		t.Helper()
		h.must(h.Steps(bg, slackgate.Paid, 1000, time.Minute, steps...))
	}
	var steps []*broker.Step
	for range 5 {
		steps = append(steps, &broker.Step{Claim: true})
	}
	share(steps...)
	var jobs []*broker.Claim
	for i, id := range []string{"a", "b", "c", "d"} {
		c := steps[i].Claimed
		if c == nil || c.ID != id || steps[i].Found.Err != nil {
			t.Fatalf("step %d claimed %+v, %v; want %s", i, c, steps[i].Found.Err, id)
		}
		jobs = append(jobs, c)
	}
	if steps[4].Claimed != nil || !steps[4].Found.Full {
		t.Errorf("a fifth slot of four claimed %+v", steps[4].Claimed)
	}

	gone := *jobs[2]
	gone.Fence++
	steps = steps[:0]
	for i := range jobs {
		c := jobs[i]
		if i == 2 {
			c = &gone
		}
		row := h.attempt(c, 1, 5, 0)
		steps = append(steps, &broker.Step{Job: c, Answers: true, Open: &row})
	}
	share(steps...)
	for i, s := range steps {
		if fenced := errors.Is(s.Err, broker.ErrFenced); fenced != (i == 2) || s.Err != nil && !fenced {
			t.Errorf("row of %s: %v", s.Job.ID, s.Err)
		}
	}

	// A record that makes a script fail: whatever stands beside it is booked.
	h.must(h.rdb.Rename(bg, h.key("job", "d"), h.key("job", "aside")).Err())
	h.must(h.rdb.Set(bg, h.key("job", "d"), "x", 0).Err())
	end := func(c *broker.Claim, f *broker.Finish) *broker.Step {
		row := h.attempt(c, 1, 5, 0)
		return &broker.Step{Job: c, Finish: f, Settled: []broker.SpendRow{row}, Samples: []latency.Sample{
			{Series: latency.Series{Name: "b", Kind: latency.Hold}, MS: 700},
		}}
	}
	short := &broker.Finish{Outcome: broker.OutcomeTruncated, Cause: broker.CauseTruncated, FirstByteMS: 3}
	steps = []*broker.Step{end(jobs[3], usable("x")), end(jobs[0], usable("x")), end(&gone, usable("x")), end(jobs[1], short)}
	steps[0].Claim, steps[3].Claim = true, true
	h.must(h.rdb.Set(bg, h.key("latency", "b", "hold", strconv.FormatInt(h.NowMS()/latency.SliceMS, 10)), "no hash", time.Minute).Err())
	share(steps...)
	if steps[0].Claimed != nil || !steps[0].Found.Later {
		t.Errorf("a slot whose job did not end has claimed %+v", steps[0].Claimed)
	}
	if err := steps[0].Err; err == nil || errors.Is(err, broker.ErrFenced) {
		t.Errorf("a job whose record is broken ended: %v", err)
	}
	if !errors.Is(steps[2].Err, broker.ErrFenced) || steps[2].Ended != nil {
		t.Errorf("a fenced job ended: %v", steps[2].Err)
	}
	for i, want := range map[int]broker.Outcome{1: broker.OutcomeUsable, 3: broker.OutcomeTruncated} {
		if steps[i].Err != nil || steps[i].Ended == nil || steps[i].Ended.Outcome != want {
			t.Errorf("%s: %+v, %v; want %s", steps[i].Job.ID, steps[i].Ended, steps[i].Err, want)
		}
	}
	e := steps[3].Claimed
	if e == nil || e.ID != "e" {
		t.Fatalf("the slot that became free took %+v, %v", e, steps[3].Found.Err)
	}
	h.must(h.rdb.Del(bg, h.key("job", "d")).Err())
	h.must(h.rdb.Rename(bg, h.key("job", "aside"), h.key("job", "d")).Err())

	steps = []*broker.Step{end(jobs[3], usable("x")), end(jobs[2], usable("x")), {Job: e, Finish: usable("x")}}
	share(steps...)
	for _, s := range steps {
		if s.Err != nil {
			t.Errorf("%s: %v", s.Job.ID, s.Err)
		}
	}
	tot := h.totals()
	for name, want := range map[string]int64{
		"outcome:paid:usable": 4, "outcome:paid:truncated": 1, "attempts:paid": 3, "cost_micro:paid:USD": 15, "miss:paid": 1,
	} {
		if tot[name] != want {
			t.Errorf("%s is %d, want %d", name, tot[name], want)
		}
	}
	h.balanced()
}

func wholeLife(t *testing.T, h *harness) {
	c := h.started("j")
	if c.Text != "text of j" || c.Path != slackgate.Paid || c.Fence < c.NowMS || c.Offers != 0 || c.Attempts != 0 ||
		c.MaxOutputTokens != 100 || c.Metadata["k"] != "j" || c.DeadlineAtMS-c.AcceptedAtMS != 60_000 || c.Admission.SlackMS != 58_000 {
		t.Errorf("claim %+v", c)
	}
	v := h.view("j")
	if v.State != broker.StateRunning || v.Outcome != "" {
		t.Errorf("view %+v", v)
	}
	o, err := h.finish(c, usable("the answer"))
	if o != broker.OutcomeUsable || err != nil {
		t.Fatalf("finish: %s, %v", o, err)
	}
	v = h.view("j")
	if v.State != broker.StateDone || v.Outcome != broker.OutcomeUsable || v.Answer != "the answer" || v.Backend != "lab" ||
		v.FirstByteMS == nil || *v.FirstByteMS != 700 || v.FirstRoute != "lab" || v.FirstOutcome != "whole" || v.Cause != "" {
		t.Errorf("view %+v", v)
	}
	if n, _ := h.rdb.Exists(bg, h.key("text", "j")).Result(); n != 0 {
		t.Error("the text outlived the outcome")
	}
	for _, key := range []string{"job", "answer"} {
		between(t, key+"'s TTL", h.ttl(key, "j").Milliseconds(), 3500_000, 3600_000)
	}
	p := h.state().Pools[slackgate.Paid]
	if p.InFlight() != 0 || len(h.misses()) != 0 {
		t.Errorf("%+v, misses %+v", p, h.misses())
	}
	if l, err := h.Renew(bg, c, time.Minute); l != broker.LeaseLost || err != nil {
		t.Errorf("an ended job's lease was renewed: %v, %v", l, err)
	}
	if n, _ := h.rdb.ZCard(bg, h.key("running", "paid")).Result(); n != 0 {
		t.Error("a renewal after the end put the job back")
	}
	h.balanced()
}

func finishTwice(t *testing.T, h *harness) {
	c := h.started("j")
	h.openAttempt(c, 1)
	row := h.attempt(c, 1, 100, 20)
	for i := range 2 {
		if o, err := h.finish(c, usable("x"), row); o != broker.OutcomeUsable || err != nil {
			t.Errorf("finish %d: %s, %v", i, o, err)
		}
	}
	// What a repetition says is what is on record, not what it wished for.
	late := &broker.Finish{Outcome: broker.OutcomeLate, Cause: broker.CauseLateFinish, FirstByteMS: -1}
	if o, err := h.finish(c, late); o != broker.OutcomeUsable || err != nil {
		t.Errorf("a repetition with another outcome gives %s, %v", o, err)
	}
	if len(h.spent()) != 1 || len(h.misses()) != 0 || h.totals()["outcome:paid:usable"] != 1 || h.view("j").Outcome != broker.OutcomeUsable {
		t.Errorf("rows %+v, misses %+v, totals %+v", h.spent(), h.misses(), h.totals())
	}
	if h.state().Released[slackgate.Paid] != 1 {
		t.Errorf("released %d times", h.state().Released[slackgate.Paid])
	}
	h.balanced()
}

func wrongFence(t *testing.T, h *harness) {
	c := h.started("j")
	h.openAttempt(c, 1)
	c2 := *c
	c2.Fence++
	if _, err := h.Finish(bg, &c2, usable("stolen"), h.attempt(c, 1, 100, 20)); !errors.Is(err, broker.ErrFenced) {
		t.Fatalf("a wrong fence gives %v", err)
	}
	if len(h.spent()) != 1 || len(h.openRows()) != 0 {
		t.Errorf("its spend did not settle: %+v, open %+v", h.spent(), h.openRows())
	}
	if v := h.view("j"); v.State != broker.StateRunning || v.Answer != "" {
		t.Errorf("view %+v", v)
	}
	for what, err := range map[string]error{
		"hand-back":  h.Handback(bg, &c2),
		"spend row":  h.OpenSpend(bg, &c2, &broker.SpendRow{JobID: "j", Attempt: 2, Path: slackgate.Paid, Currency: "USD"}),
		"unknown id": h.Handback(bg, &broker.Claim{Spec: broker.Spec{ID: "nobody"}, Path: slackgate.Paid, Fence: 1}),
	} {
		if !errors.Is(err, broker.ErrFenced) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := h.Finish(bg, &broker.Claim{Spec: broker.Spec{ID: "nobody"}, Path: slackgate.Paid, Fence: 1}, usable("x")); !errors.Is(err, broker.ErrFenced) {
		t.Errorf("finish of an unknown job: %v", err)
	}
	if len(h.openRows()) != 0 {
		t.Errorf("a fenced claim opened a spend row: %+v", h.openRows())
	}
	if _, err := h.Finish(bg, c, usable("mine")); err != nil || h.view("j").Answer != "mine" {
		t.Errorf("the right fence: %v", err)
	}
	h.balanced()
}

func outcomes(t *testing.T, h *harness) {
	h.live(10, 10)
	causes := map[broker.Outcome]broker.Cause{
		broker.OutcomeLate: broker.CauseLateFirstByte, broker.OutcomeExpired: broker.CauseExpiredInQueue,
		broker.OutcomeEmpty: broker.CauseEmpty, broker.OutcomeTruncated: broker.CauseTruncated, broker.OutcomeFailed: broker.CauseFailed,
		broker.OutcomeRevoked: broker.CauseCapacityLost,
	}
	for _, o := range broker.Outcomes {
		id := "j-" + string(o)
		h.put(slackgate.Free, testJob(id, 60_000))
		c := h.claim(slackgate.Free)
		// 5 s past the instant at which the first byte was due.
		h.advance(63 * time.Second)
		f := &broker.Finish{Outcome: o, Cause: causes[o], FirstByteMS: 900, Reason: "why"}
		if got, err := h.finish(c, f); got != o || err != nil {
			t.Fatalf("%s: %s, %v", o, got, err)
		}
		if v := h.view(id); v.Outcome != o || v.Cause != causes[o] || v.Reason != "why" || v.ElapsedMS < 63_000 {
			t.Errorf("%s: view %+v", o, v)
		}
	}
	rows := h.misses()
	if len(rows) != len(causes) {
		t.Fatalf("%d miss rows, want %d: %+v", len(rows), len(causes), rows)
	}
	for _, r := range rows {
		if r.Cause != causes[r.Outcome] || r.Path != slackgate.Free || r.Class != "summary" || r.Producer != "p" || r.SlackMS != 58_000 {
			t.Errorf("row %+v", r)
		}
		// Late by what was missed: the first byte's due time, or the deadline.
		want := int64(3000)
		if r.Cause == broker.CauseLateFirstByte || r.Cause == broker.CauseExpiredInQueue {
			want = 5000
		}
		between(t, string(r.Outcome)+" late by", r.LateByMS, want, want+30_000)
	}
	h.balanced()
}

func cancelAll(t *testing.T, h *harness) {
	h.live(10, 10)
	cancel := func(id string, want broker.CancelResult) {
		t.Helper()
		if got, err := h.Cancel(bg, id); got.Result != want || err != nil || got.Ended != nil && !reflect.DeepEqual(got.Ended, h.view(id)) {
			t.Errorf("cancel of %s: %q, %v; want %q", id, got.Result, err, want)
		}
	}
	cancel("nobody", broker.CancelMissing)

	h.put(slackgate.Paid, testJob("waiting", 60_000))
	cancel("waiting", broker.CancelWaiting)
	cancel("waiting", broker.CancelDone)
	if v := h.view("waiting"); v.Outcome != broker.OutcomeCancelled || v.State != broker.StateDone {
		t.Errorf("%+v", v)
	}
	if c, met, err := h.Claim(bg, slackgate.Paid, 10, time.Minute); c != nil || met.Full || err != nil {
		t.Errorf("the ticket of a cancelled job claims %+v (met %+v, %v)", c, met, err)
	}

	// Running: its worker is told, and whatever it comes to is cancelled ...
	h.put(slackgate.Paid, testJob("running", 60_000))
	c := h.claim(slackgate.Paid)
	cancel("running", broker.CancelRunning)
	cancel("running", broker.CancelRunning)
	if l, err := h.Renew(bg, c, time.Minute); l != broker.LeaseCancelled || err != nil {
		t.Errorf("renewal of a cancelled job: %v, %v", l, err)
	}
	f := &broker.Finish{Outcome: broker.OutcomeFailed, Cause: broker.CauseFailed, FirstByteMS: -1}
	for range 2 {
		if o, err := h.finish(c, f); o != broker.OutcomeCancelled || err != nil {
			t.Errorf("finish of a cancelled job: %s, %v", o, err)
		}
	}
	// ... unless it was usable by then.
	h.put(slackgate.Paid, testJob("quick", 60_000))
	c = h.claim(slackgate.Paid)
	cancel("quick", broker.CancelRunning)
	if o, err := h.finish(c, usable("x")); o != broker.OutcomeUsable || err != nil {
		t.Errorf("a usable answer to a cancelled job: %s, %v", o, err)
	}

	// After the deadline a cancel changes nothing: a miss stays a miss.
	h.put(slackgate.Paid, testJob("late", 60_000))
	h.put(slackgate.Paid, testJob("late2", 60_000))
	c = h.claim(slackgate.Paid)
	h.advance(time.Minute)
	cancel("late", broker.CancelLate)
	cancel("late2", broker.CancelLate)
	if o, err := h.finish(c, &broker.Finish{Outcome: broker.OutcomeLate, Cause: broker.CauseCutAtDeadline, FirstByteMS: -1}); o != broker.OutcomeLate || err != nil {
		t.Errorf("a cancel after the deadline made it %s, %v", o, err)
	}
	if rows := h.misses(); len(rows) != 1 || rows[0].Outcome != broker.OutcomeLate {
		t.Errorf("misses %+v", rows)
	}
	h.balanced()
}

func cancelledHandback(t *testing.T, h *harness) {
	c := h.started("j")
	h.openAttempt(c, 1)
	if _, err := h.Cancel(bg, "j"); err != nil {
		t.Fatal(err)
	}
	if ended, err := h.Store.Handback(bg, c); err != nil || !reflect.DeepEqual(ended, h.view("j")) {
		t.Errorf("ended %v, %v", ended, err)
	}
	if v := h.view("j"); v.Outcome != broker.OutcomeCancelled {
		t.Errorf("a cancelled job was put back: %+v", v)
	}
	if _, err := h.Finish(bg, c, usable("x")); !errors.Is(err, broker.ErrFenced) {
		t.Errorf("its old claim still ends it: %v", err)
	}
	if rows := h.spent(); len(rows) != 1 || rows[0].Known != broker.KnownUnknown {
		t.Errorf("its attempt: %+v", rows)
	}
	h.balanced()
}

func purge(t *testing.T, h *harness) {
	c := h.started("j")
	h.openAttempt(c, 1)
	_, err := h.Finish(bg, c, usable("secret answer"), h.attempt(c, 1, 10, 10))
	h.must(err)
	h.must(h.Purge(bg, "j"))
	h.must(h.Purge(bg, "j"))
	if v := h.view("j"); v.Answer != "" || v.Outcome != broker.OutcomeUsable {
		t.Errorf("%+v", v)
	}
	if len(h.spent()) != 1 {
		t.Error("the spend row went too")
	}
	keys, err := h.rdb.Keys(bg, h.key("text", "*")).Result()
	h.must(err)
	if len(keys) != 0 {
		t.Errorf("texts left: %v", keys)
	}
}

func announced(t *testing.T, h *harness) {
	ctx, stop := context.WithCancel(bg)
	defer stop()
	ended, closeEnded := h.Ended(ctx)
	cancels, closeCancels := h.Cancels(ctx)
	// Both subscriptions stand once each has heard of something.
	for ended2, cancels2 := ended, cancels; ended2 != nil || cancels2 != nil; {
		h.must(h.rdb.Publish(bg, h.key("ended"), "probe").Err())
		h.must(h.rdb.Publish(bg, h.key("cancel"), "probe").Err())
		select {
		case <-ended2:
			ended2 = nil
		case <-cancels2:
			cancels2 = nil
		default:
		}
	}
	hear := func(from <-chan string, want string) {
		t.Helper()
		for id := range from {
			if id == want {
				return
			}
			if id != "probe" {
				t.Errorf("heard of %s, want %s", id, want)
			}
		}
		t.Errorf("the channel closed before %s", want)
	}
	c := h.started("j")
	_, err := h.Cancel(bg, "j")
	h.must(err)
	hear(cancels, "j")
	_, err = h.Finish(bg, c, usable("x"))
	h.must(err)
	hear(ended, "j")
	h.put(slackgate.Paid, testJob("k", 60_000))
	_, err = h.Cancel(bg, "k")
	h.must(err)
	hear(ended, "k")
	h.must(closeEnded())
	h.must(closeCancels())
	for range ended {
	}
	for range cancels {
	}
}

func unreadable(t *testing.T, h *harness) {
	h.live(10, 10)
	h.put(slackgate.Paid, testJob("j", 60_000))
	h.must(h.rdb.HSet(bg, h.key("job", "j"), "spec", "{nonsense").Err())
	if _, err := h.Get(bg, "j"); err == nil || errors.Is(err, broker.ErrNotFound) || strings.Contains(err.Error(), "nonsense") {
		t.Errorf("reading it: %v", err)
	}
	h.put(slackgate.Paid, testJob("other", 600_000))
	if jobs, _, err := h.RecentJobs(bg, "", true, "", 10); err != nil || len(jobs) != 1 || jobs[0].ID != "other" {
		t.Errorf("listed with another one: %+v, %v", jobs, err)
	}
	h.must(h.ReportBackends(bg, "sane", []broker.BackendState{{Backend: "b"}}, time.Hour))
	h.must(h.ReportBackends(bg, "insane", nil, time.Hour))
	h.must(h.rdb.Set(bg, h.key("fleet", "insane"), "{", time.Hour).Err())
	if states, err := h.Backends(bg); err != nil || len(states) != 1 || states[0].Worker != "sane" {
		t.Errorf("a report that cannot be read beside another: %+v, %v", states, err)
	}
	c, _, err := h.Claim(bg, slackgate.Paid, 10, time.Minute)
	if err == nil || errors.Is(err, broker.ErrUnavailable) || c == nil || c.ID != "j" {
		t.Fatalf("claim %+v, %v", c, err)
	}
	if syn, ok := errors.AsType[*json.SyntaxError](err); !ok {
		t.Errorf("the error does not say what is wrong: %v, %v", err, syn)
	}
	// The claim is good enough to end the job by.
	ended, err := h.Finish(bg, c, &broker.Finish{Outcome: broker.OutcomeFailed, Cause: broker.CauseRecordLost, FirstByteMS: -1})
	want := &broker.Job{ID: "j", State: broker.StateDone, Path: slackgate.Paid, Outcome: broker.OutcomeFailed, Cause: broker.CauseRecordLost}
	if err != nil || !reflect.DeepEqual(ended, want) {
		t.Errorf("ended as %+v, %v; want %+v", ended, err, want)
	}
	if rows := h.misses(); len(rows) != 1 || rows[0].Cause != broker.CauseRecordLost {
		t.Errorf("misses %+v", rows)
	}
	h.balanced()
}
