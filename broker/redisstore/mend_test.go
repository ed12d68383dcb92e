package redisstore

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"leeway/broker"
	"leeway/slackgate"
)

var mendBehaviours = []behaviour{
	{"a job past due in the queue is expired", expiredInQueue},
	{"a lab with the re-check off keeps a job past due in the queue", overdueKept},
	{"a lease ends soon after the deadline", leaseEnds},
	{"a lost lease is offered twice more, then failed", lostLease},
	{"a lost lease without slack fails at once", lostLeaseNoSlack},
	{"a job that no pool can keep is revoked once", revoked},
	{"a lost lease of a cancelled job is cancelled", lostLeaseCancelled},
	{"a worker that was given up for lost changes nothing", backFromTheDead},
	{"a job whose record is gone is set aside", recordGone},
	{"a job whose text is gone is set aside", textGone},
	{"a running job whose record is gone is set aside", runningRecordGone},
	{"a place left over ends no job twice", leftOverPlace},
	{"a sweep with nothing to do does nothing", idleSweep},
	{"a store that stood still costs no lease", stoodStillGrace},
	{"a hand-back says what was not called", handbackNotCalled},
	{"an unfinished job without its place is given it back", strayPlaces},
	{"keys of no job are removed", strayKeys},
	{"a reservation of no job is given back", strayReservation},
	{"strays are looked for in turn", straysInTurn},
}

func (h *harness) sweep() *broker.Swept {
	h.t.Helper()
	s, err := h.Sweep(bg)
	h.must(err)
	return s
}

func expiredInQueue(t *testing.T, h *harness) {
	h.live(10, 10)
	h.put(slackgate.Free, testJob("due", 60_000))
	h.put(slackgate.Free, testJob("patient", 600_000))
	h.advance(57 * time.Second)
	// The first byte was due 2,000 ms before the deadline: not yet.
	if s := h.sweep(); s.Expired != 0 && h.view("due").State == broker.StateWaiting {
		t.Errorf("swept %+v before its time", s)
	}
	h.advance(2 * time.Second)
	s := h.sweep()
	if v := h.view("due"); v.Outcome != broker.OutcomeExpired || v.Cause != broker.CauseExpiredInQueue || v.Attempts != 0 {
		t.Errorf("swept %+v, view %+v", s, v)
	}
	if len(s.Ended) != 1 || s.Ended[0].ID != "due" || s.Expired != 1 || s.Failed != 0 || s.Reoffered != 0 {
		t.Errorf("swept %+v", s)
	}
	if rows := h.misses(); len(rows) != 1 || rows[0].Cause != broker.CauseExpiredInQueue || rows[0].QueueWaitMS < 59_000 {
		t.Errorf("misses %+v", rows)
	}
	if c := h.claim(slackgate.Free); c.ID != "patient" {
		t.Errorf("claimed %s", c.ID)
	}
	h.balanced()
}

func overdueKept(t *testing.T, h *harness) {
	h.live(10, 10)
	h.put(slackgate.Free, testJob("due", 60_000))
	h.advance(59 * time.Second)
	h.keepOverdue = 10_000
	if s := h.sweep(); s.Expired != 0 || h.view("due").State != broker.StateWaiting {
		t.Errorf("swept %+v", s)
	}
	h.advance(10 * time.Second)
	if s := h.sweep(); s.Expired != 1 || h.view("due").Outcome != broker.OutcomeExpired {
		t.Errorf("swept %+v after all", s)
	}
}

func leaseEnds(t *testing.T, h *harness) {
	h.live(10, 10)
	h.sweep()
	h.put(slackgate.Paid, testJob("j", 60_000))
	c, _, err := h.Claim(bg, slackgate.Paid, 10, 10*time.Second)
	h.must(err)
	lapses := func() int64 { return h.score("j", "running", "paid") }
	between(t, "the claim's lease", lapses()-c.NowMS, 10_000, 10_000)
	for _, row := range []struct {
		lease       time.Duration
		overdue     int64
		least, most int64 // after the deadline
	}{
		{20 * time.Second, 0, -40_000, -30_000},
		{10 * time.Minute, 0, 500, 500},
		{10 * time.Minute, 10_000, 10_500, 10_500},
	} {
		h.keepOverdue = row.overdue
		if l, err := h.Renew(bg, c, row.lease); l != broker.LeaseHeld || err != nil {
			t.Errorf("renewal %v, %v", l, err)
		}
		between(t, "the lease", lapses()-c.DeadlineAtMS, row.least, row.most)
	}
	h.keepOverdue = 0
	if l, err := h.Renew(bg, c, 10*time.Minute); l != broker.LeaseHeld || err != nil {
		t.Errorf("renewal %v, %v", l, err)
	}
	// Its worker is gone, and the deadline as well.
	h.advance(60_600 * time.Millisecond)
	h.lastSweep(500 * time.Millisecond)
	if s := h.sweep(); s.Failed != 1 || h.view("j").Cause != broker.CauseWorkerLost {
		t.Errorf("swept %+v, %+v", s, h.view("j"))
	}
	// One that is claimed after its deadline has that long to be expired.
	h.put(slackgate.Paid, testJob("k", 60_000))
	h.advance(70 * time.Second)
	k := h.claim(slackgate.Paid)
	between(t, "the lease of an overdue job", h.score("k", "running", "paid")-k.NowMS, 500, 500)
	h.balanced()
}

func lostLease(t *testing.T, h *harness) {
	h.live(10, 10)
	h.put(slackgate.Paid, testJob("j", 3600_000))
	for n := range MaxOffers + 1 {
		c, _, err := h.Claim(bg, slackgate.Paid, 10, time.Minute)
		h.must(err)
		if c == nil || c.ID != "j" || c.Offers != n || c.Attempts != n {
			t.Fatalf("claim %d: %+v", n, c)
		}
		h.openAttempt(c, n+1)
		if s := h.sweep(); s.Reoffered+s.Failed != 0 {
			t.Fatalf("swept %+v under a good lease", s)
		}
		h.advance(61 * time.Second)
		s := h.sweep()
		// What that attempt cost nobody knows: it stays charged at its largest.
		rows := h.spent()
		if len(rows) != n+1 || len(h.openRows()) != 0 {
			t.Fatalf("after loss %d: %d settled, %d open", n, len(rows), len(h.openRows()))
		}
		if r := rows[n]; r.Known != broker.KnownUnknown || r.Result != "lost" || r.CostMicro != r.MaxCostMicro || r.CostMicro != 5000 ||
			r.InputTokens != 200 || r.OutputTokens != 100 || r.Attempt != n+1 || r.SettledAtMS == 0 || r.OpenedAtMS == 0 {
			t.Errorf("row %+v", r)
		}
		if n < MaxOffers {
			if v := h.view("j"); s.Reoffered != 1 || s.Failed != 0 || v.State != broker.StateWaiting {
				t.Fatalf("loss %d: swept %+v, view %+v", n, s, v)
			}
			// Its holder finds itself fenced off.
			if _, err := h.Finish(bg, c, usable("late")); !errors.Is(err, broker.ErrFenced) {
				t.Errorf("loss %d: the lost holder finished: %v", n, err)
			}
			continue
		}
		v := h.view("j")
		if s.Failed != 1 || v.Outcome != broker.OutcomeFailed || v.Cause != broker.CauseWorkerLost || v.Reason != "worker_lost" || len(s.Ended) != 1 {
			t.Errorf("last loss: swept %+v, view %+v", s, v)
		}
	}
	if got := h.totals()["reoffered:paid"]; got != MaxOffers {
		t.Errorf("reoffered %d times", got)
	}
	h.balanced()
}

func lostLeaseNoSlack(t *testing.T, h *harness) {
	h.live(10, 10)
	h.sweep()
	// One job has slack left when its lease lapses, one not.
	h.put(slackgate.Paid, testJob("enough", 600_000))
	h.put(slackgate.Paid, testJob("short", 62_000))
	h.claim(slackgate.Paid)
	h.claim(slackgate.Paid)
	h.advance(60 * time.Second)
	s := h.sweep()
	if s.Reoffered != 1 || s.Failed != 1 || len(s.Ended) != 1 || s.Ended[0].ID != "short" {
		t.Errorf("swept %+v", s)
	}
	if v := h.view("short"); v.Outcome != broker.OutcomeFailed || v.Cause != broker.CauseWorkerLost {
		t.Errorf("%+v", v)
	}
	h.balanced()
}

// A job that no pool takes is revoked in the step that offers it, once; one that
// somebody else has claimed or moved meanwhile is left alone.
func revoked(t *testing.T, h *harness) {
	h.live(10, 10)
	for _, id := range []string{"held", "stays", "goes"} {
		h.put(slackgate.Free, testJob(id, 60_000))
	}
	h.put(slackgate.Paid, testJob("moved meanwhile", 60_000))
	c := h.claim(slackgate.Free)
	var offers []broker.Offer
	for _, id := range []string{"held", "stays", "goes", "goes", "moved meanwhile", "unknown"} {
		o := offerTo(slackgate.Paid, testJob(id, 60_000))
		o.Bounds, o.Again = [2]slackgate.Bound{}, &broker.Again{From: slackgate.Free, Revoke: id != "stays"}
		offers = append(offers, o)
	}
	got, err := h.Admit(bg, openPools(), offers)
	h.must(err)
	if len(got.Revoked) != 1 || got.Revoked[0].ID != "goes" {
		t.Fatalf("revoked %+v", got.Revoked)
	}
	v := h.view("goes")
	if v.State != broker.StateDone || v.Outcome != broker.OutcomeRevoked || v.Cause != broker.CauseCapacityLost || v.Path != slackgate.Free {
		t.Errorf("%+v", v)
	}
	if rows := h.misses(); len(rows) != 1 || rows[0].JobID != "goes" || rows[0].Cause != broker.CauseCapacityLost || rows[0].Path != slackgate.Free {
		t.Errorf("misses %+v", rows)
	}
	if got := h.totals()["outcome:free:revoked"]; got != 1 {
		t.Errorf("counted %d times", got)
	}
	if v := h.view("moved meanwhile"); v.State != broker.StateWaiting {
		t.Errorf("%+v", v)
	}
	if h.view("held").State != broker.StateRunning || h.view("stays").State != broker.StateWaiting {
		t.Errorf("%+v, %+v", h.view("held"), h.view("stays"))
	}
	_, err = h.Finish(bg, c, usable("x"))
	h.must(err)
	h.balanced()
}

func lostLeaseCancelled(t *testing.T, h *harness) {
	h.sweep()
	h.started("j")
	_, err := h.Cancel(bg, "j")
	h.must(err)
	h.advance(61 * time.Second)
	// advance moved the deadline too, so make the job patient again: a cancel
	// that was in time stays in time.
	h.sweep()
	if v := h.view("j"); v.Outcome != broker.OutcomeCancelled || len(h.misses()) != 0 {
		t.Errorf("%+v, misses %+v", v, h.misses())
	}
	h.balanced()
}

// A worker that was cut off comes back after its job was failed for it: that
// end stands, and it is told that it is fenced.
func backFromTheDead(t *testing.T, h *harness) {
	h.sweep()
	c := h.started("j")
	h.openAttempt(c, 1)
	h.advance(61 * time.Second) // past the lease and the deadline
	h.sweep()
	if _, err := h.Finish(bg, c, usable("late"), h.attempt(c, 1, 100, 20)); !errors.Is(err, broker.ErrFenced) {
		t.Errorf("finish after the job was failed: %v", err)
	}
	if v := h.view("j"); v.Outcome != broker.OutcomeFailed || v.Answer != "" {
		t.Errorf("%+v", v)
	}
	if rows := h.spent(); len(rows) != 1 || rows[0].Known != broker.KnownUnknown {
		t.Errorf("the attempt was booked again: %+v", rows)
	}
	h.balanced()
}

// lost checks that a job was set aside and that the pool goes on.
func (h *harness) lost(t *testing.T, path slackgate.Path, id string) {
	t.Helper()
	rows := h.misses()
	if len(rows) != 1 || rows[0].JobID != id || rows[0].Cause != broker.CauseRecordLost || rows[0].Outcome != broker.OutcomeFailed || rows[0].Path != path {
		t.Errorf("misses %+v", rows)
	}
	if n, _ := h.rdb.Exists(bg, h.key("text", id)).Result(); n != 0 {
		t.Error("its text is still there")
	}
	h.balanced()
}

func recordGone(t *testing.T, h *harness) {
	for _, by := range []string{"claim", "sweep"} {
		t.Run(by, func(t *testing.T) {
			h := h.fresh()
			h.live(10, 10)
			h.put(slackgate.Free, testJob("lost", 60_000))
			h.put(slackgate.Free, testJob("next", 600_000))
			h.must(h.rdb.Del(bg, h.key("job", "lost")).Err())
			gone, want := []broker.Lost{{ID: "lost", Path: slackgate.Free, Class: "summary"}}, 1
			if by == "sweep" {
				h.advance(61 * time.Second)
				if s := h.sweep(); s.Failed != 1 || s.Expired != 0 || !slices.Equal(s.Lost, gone) || len(s.Ended) != 0 {
					t.Errorf("swept %+v", s)
				}
				want = 0
			}
			c, met, err := h.Claim(bg, slackgate.Free, 10, time.Minute)
			if err != nil || c == nil || c.ID != "next" || len(met.Ended) != 0 || !slices.Equal(met.Lost, gone[:want]) {
				t.Errorf("claimed %+v, met %+v, %v", c, met, err)
			}
			h.lost(t, slackgate.Free, "lost")
			if p := h.state().Pools[slackgate.Free]; p.QueueAgeMS != 0 || p.Waiting != 0 {
				t.Errorf("it still counts: %+v", p)
			}
		})
	}
}

func textGone(t *testing.T, h *harness) {
	h.live(10, 10)
	h.put(slackgate.Free, testJob("lost", 60_000))
	h.put(slackgate.Free, testJob("next", 600_000))
	h.must(h.rdb.Del(bg, h.key("text", "lost")).Err())
	c, met, err := h.Claim(bg, slackgate.Free, 10, time.Minute)
	if err != nil || c == nil || c.ID != "next" || len(met.Ended) != 1 || !reflect.DeepEqual(met.Ended[0], h.view("lost")) || len(met.Lost) != 0 {
		t.Errorf("claimed %+v, met %+v, %v", c, met, err)
	}
	h.lost(t, slackgate.Free, "lost")
	// Its producer is told.
	if v := h.view("lost"); v.State != broker.StateDone || v.Outcome != broker.OutcomeFailed || v.Cause != broker.CauseRecordLost {
		t.Errorf("%+v", v)
	}
}

func runningRecordGone(t *testing.T, h *harness) {
	c := h.started("lost")
	h.openAttempt(c, 1)
	h.must(h.rdb.Del(bg, h.key("job", "lost")).Err())
	if _, err := h.Finish(bg, c, usable("x")); !errors.Is(err, broker.ErrFenced) {
		t.Errorf("finish without a record: %v", err)
	}
	h.advance(61 * time.Second)
	if s := h.sweep(); s.Failed != 1 || !slices.Equal(s.Lost, []broker.Lost{{ID: "lost", Path: slackgate.Paid, Class: "unknown"}}) {
		t.Errorf("swept %+v", s)
	}
	h.lost(t, slackgate.Paid, "lost")
	if len(h.openRows()) != 0 || len(h.spent()) != 1 || h.spent()[0].CostMicro != 5000 {
		t.Errorf("its attempt: open %+v, settled %+v", h.openRows(), h.spent())
	}
}

func leftOverPlace(t *testing.T, h *harness) {
	h.live(10, 10)
	for _, by := range []string{"claim", "sweep"} {
		id := "done-" + by
		h.put(slackgate.Paid, testJob(id, 60_000))
		_, err := h.Cancel(bg, id)
		h.must(err)
		h.must(h.rdb.ZAdd(bg, h.key("waiting", "paid"), z(h.NowMS()-1, "0000000000000009:summary:"+id)).Err())
		if by == "sweep" {
			h.must(h.rdb.ZAdd(bg, h.key("running", "free"), z(h.NowMS()-1000, id)).Err())
			h.sweep()
		} else if c, _, err := h.Claim(bg, slackgate.Paid, 10, time.Minute); c != nil || err != nil {
			t.Errorf("claimed %+v, %v", c, err)
		}
		if n, _ := h.rdb.ZCard(bg, h.key("waiting", "paid")).Result(); n != 0 {
			t.Errorf("%s: the place is still there", by)
		}
	}
	if len(h.misses()) != 0 {
		t.Errorf("an ended job was missed as well: %+v", h.misses())
	}
	h.balanced()
}

func idleSweep(t *testing.T, h *harness) {
	c := h.started("j")
	h.put(slackgate.Free, testJob("k", 60_000))
	if s := h.sweep(); s.Expired+s.Reoffered+s.Failed != 0 || s.Ended != nil {
		t.Errorf("swept %+v", s)
	}
	if l, err := h.Renew(bg, c, time.Minute); l != broker.LeaseHeld || err != nil {
		t.Errorf("%v, %v", l, err)
	}
}

// lastSweep moves the instant of the last sweep; 0: nobody has ever swept.
func (h *harness) lastSweep(ago time.Duration) {
	h.t.Helper()
	if ago == 0 {
		h.must(h.rdb.Del(bg, h.key("swept")).Err())
		return
	}
	h.must(h.rdb.Set(bg, h.key("swept"), h.NowMS()-ago.Milliseconds(), 0).Err())
}

// Leases that lapsed while nobody could renew them get a moment more, a few
// times between two renewals; those of a store that was swept all the time do not.
func stoodStillGrace(t *testing.T, h *harness) {
	for _, row := range []struct {
		name   string
		swept  time.Duration // before the lapse is found; 0: never
		graced bool
	}{
		{"swept a moment ago", time.Second, false},
		{"not for as long as it takes to stand still", stoodStill + time.Second, true},
		{"never", 0, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := h.fresh()
			c := h.started("j")
			h.openAttempt(c, 1)
			lapse := func() int64 {
				// The lease has lapsed a second ago.
				h.must(h.rdb.ZAdd(bg, h.key("running", "paid"), z(h.NowMS()-1000, "j")).Err())
				h.lastSweep(row.swept)
				return h.sweep().Reoffered
			}
			want := int64(1)
			if row.graced {
				want = 0
			}
			if got := lapse(); got != want {
				t.Fatalf("%d leases lost, want %d", got, want)
			}
			if !row.graced {
				return
			}
			// Its worker renews first, and the next pause is another one.
			if l, err := h.Renew(bg, c, time.Minute); l != broker.LeaseHeld || err != nil {
				t.Errorf("renewal in the grace: %v, %v", l, err)
			}
			for pause := range mostGraces {
				if got := lapse(); got != 0 {
					t.Errorf("%d leases lost in pause %d", got, pause+1)
				}
			}
			// A worker that does not renew in all that time is gone.
			if got := lapse(); got != 1 {
				t.Errorf("%d leases lost after %d pauses without a renewal", got, mostGraces)
			}
			h.balanced()
		})
	}
}

// A spend row whose write timed out may still be carried out. Its worker, which
// called nobody, says so as it hands the job back.
func handbackNotCalled(t *testing.T, h *harness) {
	for _, row := range []struct {
		name   string
		opened bool
	}{{"the row was written", true}, {"the row comes later", false}} {
		t.Run(row.name, func(t *testing.T) {
			h := h.fresh()
			c := h.started("j")
			if row.opened {
				h.openAttempt(c, 1)
			}
			none := h.attempt(c, 1, 0, 0)
			none.Known, none.Result, none.CostMicro = broker.KnownReported, "not_called", 0
			h.must(h.Handback(bg, c, none))
			late := &broker.SpendRow{JobID: "j", Attempt: 1, Path: slackgate.Paid, Currency: "USD", MaxCostMicro: 5000}
			if err := h.OpenSpend(bg, c, late); !errors.Is(err, broker.ErrFenced) {
				t.Errorf("a row of a claim that was handed back: %v", err)
			}
			want := 0
			if row.opened {
				want = 1
			}
			rows := h.spent()
			if len(rows) != want || len(h.openRows()) != 0 || h.view("j").Attempts != want {
				t.Fatalf("%+v, open %+v", rows, h.openRows())
			}
			if want == 1 && (rows[0].CostMicro != 0 || rows[0].Known != broker.KnownReported) {
				t.Errorf("a call that was not made is booked as %+v", rows[0])
			}
			if c := h.claim(slackgate.Paid); c.ID != "j" || c.Attempts != want || c.Offers != 0 {
				t.Errorf("claimed again %+v", c)
			}
			h.balanced()
		})
	}
}
