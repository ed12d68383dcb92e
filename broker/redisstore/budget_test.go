package redisstore

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"leeway/broker"
	"leeway/slackgate"
)

var budgetBehaviours = []behaviour{
	{"a reservation follows its job to the end", reservationLife},
	{"a budget closes paid and nothing else", budgetClosesPaid},
	{"one call's jobs share what is left of a budget", budgetWithinACall},
	{"what is spent stays spent, what is not is given back", budgetSettles},
	{"every exit gives the reservation back", budgetExits},
	{"a lost worker's attempts stay charged", budgetLostWorker},
	{"a job that leaves paid leaves its reservation", budgetMoves},
	{"a claimed job that paid takes over is reserved for", budgetTakenOver},
	{"budgets of yesterday are spent no more", budgetNextDay},
	{"spend is counted without a budget too", spentWithoutBudget},
	{"unfinished jobs are counted by producer", liveJobs},
}

// budgetedOffer offers a job of producer p to paid, under a budget of its
// producer.
func budgetedOffer(id string, cost, limit int64) broker.Offer {
	o := offerTo(slackgate.Paid, testJob(id, 60_000))
	o.CostMicro = cost
	o.Budgets[slackgate.ProducerBudget] = slackgate.Budget{Set: true, CapMicro: limit}
	return o
}

func (h *harness) putBudgeted(id string, cost, limit int64) {
	h.t.Helper()
	got, err := h.Admit(bg, openPools(), []broker.Offer{budgetedOffer(id, cost, limit)})
	h.must(err)
	if got.Jobs[0].Path != slackgate.Paid {
		h.t.Fatalf("%s: %+v", id, got.Jobs[0])
	}
}

// held is what is kept for jobs, and the sums of it.
func (h *harness) held() (held, reserved map[string]string) {
	h.t.Helper()
	held, err := h.rdb.HGetAll(bg, h.key("budget", "held")).Result()
	h.must(err)
	reserved, err = h.rdb.HGetAll(bg, h.key("budget", "reserved")).Result()
	h.must(err)
	return held, reserved
}

// charged is what of producer p's and of class summary's budget is spent and
// reserved; the two must be the same here.
func (h *harness) charged() (spent, reserved int64) {
	h.t.Helper()
	got, err := h.Admit(bg, openPools(), []broker.Offer{{
		Job: testJob("ask", 60_000), LeftMS: 60_000, ReserveMS: 2000,
		Budgets: [slackgate.NumBudgets]slackgate.Budget{{Set: true}, {Set: true}},
	}})
	h.must(err)
	p, c := got.Jobs[0].Budgets[slackgate.ProducerBudget], got.Jobs[0].Budgets[slackgate.ClassBudget]
	if p.SpentMicro != c.SpentMicro || p.ReservedMicro != c.ReservedMicro {
		h.t.Errorf("the producer's budget is %+v, the class's %+v", p, c)
	}
	return p.SpentMicro, p.ReservedMicro
}

func (h *harness) wantCharged(what string, spent, reserved int64) {
	h.t.Helper()
	if s, r := h.charged(); s != spent || r != reserved {
		h.t.Errorf("%s: %d spent, %d reserved, want %d and %d", what, s, r, spent, reserved)
	}
	h.checked()
}

func reservationLife(_ *testing.T, h *harness) {
	h.live(10, 10)
	h.wantCharged("nothing", 0, 0)
	h.putBudgeted("j", 15_000, 100_000)
	h.wantCharged("admitted", 0, 15_000)
	c := h.claim(slackgate.Paid)
	h.wantCharged("claimed", 0, 15_000)
	h.openAttempt(c, 1)
	h.wantCharged("an attempt under way", 0, 15_000)
	h.openAttempt(c, 2)
	h.openAttempt(c, 3)
	h.openAttempt(c, 4) // one more than was reserved for
	h.wantCharged("an attempt more than was reserved for", 0, 20_000)
	_, err := h.Finish(bg, c, usable("x"), h.attempt(c, 1, 100, 25), h.attempt(c, 2, 0, 0), h.attempt(c, 3, 0, 0), h.attempt(c, 4, 0, 1))
	h.must(err)
	h.wantCharged("ended", 204, 0)
	if held, reserved := h.held(); len(held)+len(reserved) != 0 {
		h.t.Errorf("%v, %v", held, reserved)
	}
}

func budgetClosesPaid(t *testing.T, h *harness) {
	h.live(10, 10)
	for _, tt := range []struct {
		cost, limit int64
		want        slackgate.Path
	}{
		{1001, 1000, slackgate.Free},
		{1000, 1000, slackgate.Paid}, // the last bit of it
		{1, 1000, slackgate.Free},
		{0, 1000, slackgate.Paid}, // costs nothing
		{slackgate.MaxBudgetMicro + 1, slackgate.MaxBudgetMicro, slackgate.Free},
		{1, 0, slackgate.Free},
	} {
		id := fmt.Sprintf("j%d-%d", tt.cost, tt.limit)
		o := budgetedOffer(id, tt.cost, tt.limit)
		o.Bounds[1] = anywhere(slackgate.Free)[0]
		got, err := h.Admit(bg, openPools(), []broker.Offer{o})
		h.must(err)
		if a := got.Jobs[0]; a.Path != tt.want || a.Budgets[slackgate.ProducerBudget].CapMicro != tt.limit {
			t.Errorf("cost %d, budget %d: %s, %+v", tt.cost, tt.limit, a.Path, a.Budgets)
		}
	}
	// The class's budget binds as well, and another producer's jobs count on it.
	o := budgetedOffer("other", 500, 1000)
	o.Job.Producer = "q"
	o.Budgets[slackgate.ClassBudget] = slackgate.Budget{Set: true, CapMicro: 1499}
	got, err := h.Admit(bg, openPools(), []broker.Offer{o})
	h.must(err)
	if got.Jobs[0].Path != slackgate.Reject {
		t.Errorf("%+v", got.Jobs[0])
	}
	o.Budgets[slackgate.ClassBudget].CapMicro = 1500
	got, err = h.Admit(bg, openPools(), []broker.Offer{o})
	h.must(err)
	if got.Jobs[0].Path != slackgate.Paid {
		t.Errorf("%+v", got.Jobs[0])
	}
	h.checked()
}

func budgetWithinACall(t *testing.T, h *harness) {
	h.live(10, 10)
	var offers []broker.Offer
	for i := range 25 {
		offers = append(offers, budgetedOffer("j"+strconv.Itoa(i), 1000, 10_500))
	}
	got, err := h.Admit(bg, openPools(), offers)
	h.must(err)
	for i := range got.Jobs {
		if (got.Jobs[i].Path == slackgate.Paid) != (i < 10) || got.Jobs[i].Budgets[slackgate.ProducerBudget].ReservedMicro != 1000*int64(min(i, 10)) {
			t.Errorf("job %d: %s, %+v", i, got.Jobs[i].Path, got.Jobs[i].Budgets)
		}
	}
	h.wantCharged("ten", 0, 10_000)
}

func budgetSettles(t *testing.T, h *harness) {
	h.live(10, 10)
	h.putBudgeted("j", 15_000, 100_000)
	c := h.claim(slackgate.Paid)
	h.openAttempt(c, 1)
	row := h.attempt(c, 1, 0, 0)
	row.CostMicro, row.Known = row.MaxCostMicro, broker.KnownUnknown
	h.must(h.Settle(bg, row))
	h.wantCharged("an unknown attempt stays charged at its largest", 5000, 10_000)
	h.must(h.Settle(bg, row)) // again: nothing
	h.wantCharged("settled twice", 5000, 10_000)
	h.openAttempt(c, 2)
	row = h.attempt(c, 2, 0, 0)
	row.CostMicro = 9000 // more than anybody thought
	_, err := h.Finish(bg, c, usable("x"), row)
	h.must(err)
	h.wantCharged("booked at its true cost", 14_000, 0)
	got, err := h.Admit(bg, openPools(), []broker.Offer{budgetedOffer("more", 86_001, 100_000), budgetedOffer("fits", 86_000, 100_000)})
	h.must(err)
	if got.Jobs[0].Path != slackgate.Reject || got.Jobs[1].Path != slackgate.Paid {
		t.Errorf("%+v", got.Jobs)
	}
}

func budgetExits(_ *testing.T, h *harness) {
	h.live(10, 10)
	cancel := func(id string) {
		_, err := h.Cancel(bg, id)
		h.must(err)
	}
	for name, exit := range map[string]func(id string){
		"cancelled while waiting": cancel,
		"cancelled while running": func(id string) {
			c := h.claim(slackgate.Paid)
			cancel(id)
			_, err := h.Finish(bg, c, &broker.Finish{Outcome: broker.OutcomeFailed, Cause: broker.CauseFailed, FirstByteMS: -1})
			h.must(err)
		},
		"cancelled and handed back": func(id string) {
			c := h.claim(slackgate.Paid)
			cancel(id)
			h.must(h.Handback(bg, c))
		},
		"expired in the queue": func(string) {
			h.advance(2 * time.Minute)
			h.live(10, 10)
			h.sweep()
		},
		"expired at the claim": func(string) {
			_, err := h.Finish(bg, h.claim(slackgate.Paid), &broker.Finish{Outcome: broker.OutcomeExpired, Cause: broker.CauseExpiredInQueue, FirstByteMS: -1})
			h.must(err)
		},
		"a record that is gone": func(id string) {
			h.must(h.rdb.Del(bg, h.key("job", id)).Err())
			if c, _, err := h.Claim(bg, slackgate.Paid, 10, time.Minute); c != nil || err != nil {
				h.t.Error(c, err)
			}
		},
		"a text that is gone": func(id string) {
			h.must(h.rdb.Del(bg, h.key("text", id)).Err())
			if c, _, err := h.Claim(bg, slackgate.Paid, 10, time.Minute); c != nil || err != nil {
				h.t.Error(c, err)
			}
		},
	} {
		h.putBudgeted(name, 15_000, 15_000)
		exit(name)
		if s, r := h.charged(); s != 0 || r != 0 {
			h.t.Errorf("%s: %d spent, %d reserved", name, s, r)
		}
	}
	// Handed back, it is still to be done.
	h.putBudgeted("back", 15_000, 15_000)
	c := h.claim(slackgate.Paid)
	h.must(h.Handback(bg, c))
	h.wantCharged("handed back", 0, 15_000)
}

func budgetLostWorker(_ *testing.T, h *harness) {
	h.live(10, 10)
	h.sweep()
	h.putBudgeted("j", 15_000, 100_000)
	late := h.claim(slackgate.Paid)
	h.openAttempt(late, 1)
	h.advance(2 * time.Second)
	h.must(h.rdb.ZAdd(bg, h.key("running", "paid"), z(1, "j")).Err()) // its lease has lapsed
	if s := h.sweep(); s.Reoffered != 1 {
		h.t.Fatalf("%+v", s)
	}
	h.wantCharged("offered again", 5000, 10_000)
	_, err := h.Finish(bg, late, usable("x"), h.attempt(late, 1, 1, 0)) // back from the dead
	if err == nil {
		h.t.Error("not fenced")
	}
	h.wantCharged("its own settlement comes too late", 5000, 10_000)
	c := h.claim(slackgate.Paid)
	h.openAttempt(c, 2)
	_, err = h.Finish(bg, c, usable("x"), h.attempt(c, 2, 96, 1))
	h.must(err)
	h.wantCharged("done", 5100, 0)
}

func budgetMoves(t *testing.T, h *harness) {
	h.live(10, 10)
	h.putBudgeted("j", 15_000, 15_000)
	o := offerTo(slackgate.Free, testJob("j", 60_000))
	o.Again = &broker.Again{From: slackgate.Paid}
	got, err := h.Admit(bg, openPools(), []broker.Offer{o})
	h.must(err)
	if got.Jobs[0].Path != slackgate.Free {
		t.Fatalf("%+v", got.Jobs[0])
	}
	h.wantCharged("moved to free", 0, 0)
	back := budgetedOffer("j", 15_001, 15_000)
	back.Again = &broker.Again{From: slackgate.Free}
	got, err = h.Admit(bg, openPools(), []broker.Offer{back})
	h.must(err)
	if got.Jobs[0].Path != slackgate.Reject {
		t.Errorf("moved to paid over its budget: %+v", got.Jobs[0])
	}
	back.CostMicro = 15_000
	_, err = h.Admit(bg, openPools(), []broker.Offer{back})
	h.must(err)
	h.wantCharged("moved to paid", 0, 15_000)
}

func budgetTakenOver(t *testing.T, h *harness) {
	h.live(10, 10)
	h.put(slackgate.Free, testJob("j", 60_000))
	c := h.claim(slackgate.Free)
	for _, tt := range []struct {
		limit int64
		want  slackgate.Path
	}{{14_999, slackgate.Reject}, {15_000, slackgate.Paid}} {
		o := budgetedOffer("j", 15_000, tt.limit)
		o.Again = &broker.Again{From: c.Path, Fence: c.Fence}
		got, err := h.Admit(bg, openPools(), []broker.Offer{o})
		h.must(err)
		if got.Jobs[0].Path != tt.want {
			t.Errorf("a budget of %d: %+v", tt.limit, got.Jobs[0])
		}
	}
	h.wantCharged("taken over", 0, 15_000)
}

func budgetNextDay(_ *testing.T, h *harness) {
	h.live(10, 10)
	h.putBudgeted("j", 15_000, 100_000)
	c := h.claim(slackgate.Paid)
	h.openAttempt(c, 1)
	h.must(h.Settle(bg, h.attempt(c, 1, 100, 0)))
	h.wantCharged("today", 100, 10_000)
	// The day is over: what was booked stands under its own number.
	h.must(h.rdb.Rename(bg, h.key("budget", "spent", day(h)), h.key("budget", "spent", strconv.FormatInt(h.NowMS()/slackgate.DayMS-1, 10))).Err())
	if s, r := h.charged(); s != 0 || r != 10_000 {
		h.t.Errorf("%d spent, %d reserved: what is unfinished costs the new day", s, r)
	}
	if ttl := h.ttl("budget", "spent", strconv.FormatInt(h.NowMS()/slackgate.DayMS-1, 10)); ttl < 48*time.Hour || ttl > 72*time.Hour {
		h.t.Errorf("a day's sums are kept for %v", ttl)
	}
}

func spentWithoutBudget(_ *testing.T, h *harness) {
	c := h.started("j") // no budget anywhere
	h.openAttempt(c, 1)
	_, err := h.Finish(bg, c, usable("x"), h.attempt(c, 1, 100, 0))
	h.must(err)
	h.wantCharged("a budget set in the middle of the day knows", 100, 0)
}

// liveJobs: whatever way a job goes, its producer's count follows it.
func liveJobs(t *testing.T, h *harness) {
	h.live(10, 10)
	live := func(what string, want int64) {
		t.Helper()
		o := offerTo(slackgate.Paid, testJob("ask", 60_000))
		o.Quota, o.Bounds = slackgate.Quota{MaxInFlight: 100}, [2]slackgate.Bound{}
		got, err := h.Admit(bg, openPools(), []broker.Offer{o})
		h.must(err)
		if n := got.Jobs[0].Quota.InFlight; n != want {
			t.Errorf("%s: %d unfinished jobs, want %d", what, n, want)
		}
	}
	live("none", 0)
	h.put(slackgate.Paid, testJob("a", 60_000))
	h.put(slackgate.Free, testJob("b", 60_000))
	live("one in each pool", 2)
	move := offerTo(slackgate.Free, testJob("a", 60_000))
	move.Again = &broker.Again{From: slackgate.Paid}
	_, err := h.Admit(bg, openPools(), []broker.Offer{move})
	h.must(err)
	live("one moved", 2)
	c := h.claim(slackgate.Free)
	live("one claimed", 2)
	h.must(h.Handback(bg, c))
	live("and handed back", 2)
	_, err = h.Cancel(bg, "a")
	h.must(err)
	live("one taken back", 1)
	_, err = h.Finish(bg, h.claim(slackgate.Free), usable("x"))
	h.must(err)
	live("one answered", 0)
	// A job whose record is gone is forgotten in time.
	h.put(slackgate.Paid, testJob("lost", 60_000))
	h.must(h.rdb.Del(bg, h.key("job", "lost")).Err())
	_, _, err = h.Claim(bg, slackgate.Paid, 10, time.Minute)
	h.must(err)
	live("one lost", 1)
	h.must(h.rdb.ZIncrBy(bg, h.key("live", "paid", "p"), -float64(time.Hour.Milliseconds()+60_000), "lost").Err())
	live("an hour later", 0)
}
