package redisstore

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"leeway/broker"
	"leeway/slackgate"
)

var orderBehaviours = []behaviour{
	{"the most urgent job goes first, then arrival", urgencyOrder},
	{"a short deadline passes a hundred patient jobs", shortPassesPatient},
	{"claims never exceed capacity", claimsWithinCapacity},
	{"a handed-back job keeps its place", handbackKeepsPlace},
	{"queue age is our own, in milliseconds, per class too", queueAge},
	{"the smallest slack is that of the most urgent job", smallestSlack},
}

// urgencyOrder: whatever the mix, claims come by deadline - reserve; equal ones
// by arrival.
func urgencyOrder(t *testing.T, h0 *harness) {
	rapid.Check(t, func(rt *rapid.T) {
		h := h0.fresh()
		h.live(100, 0)
		n := rapid.IntRange(2, 8).Draw(rt, "jobs")
		var offers []broker.Offer
		for i := range n {
			j := testJob(fmt.Sprintf("j%d", i), 60_000+1000*rapid.Int64Range(0, 3).Draw(rt, "deadline"))
			j.ReserveMS = 1000 * rapid.Int64Range(0, 3).Draw(rt, "reserve")
			offers = append(offers, offerTo(slackgate.Paid, j))
		}
		_, err := h.Admit(bg, openPools(), offers) // one call: one instant
		h.must(err)
		arrival := map[string]int{}
		for i := range offers {
			arrival[offers[i].Job.ID] = i
		}
		var last *broker.Claim
		for range n {
			c := h.claim(slackgate.Paid)
			if last != nil {
				was, is := last.DeadlineAtMS-last.ReserveMS, c.DeadlineAtMS-c.ReserveMS
				if was > is || was == is && arrival[last.ID] > arrival[c.ID] {
					rt.Fatalf("%s (due %d) was claimed before %s (due %d)", last.ID, was, c.ID, is)
				}
			}
			last = c
		}
	})
}

func shortPassesPatient(t *testing.T, h *harness) {
	h.live(10, 10)
	var patient []broker.Offer
	for _, id := range ids(100, "patient") {
		patient = append(patient, offerTo(slackgate.Free, testJob(id, 600_000)))
	}
	_, err := h.Admit(bg, openPools(), patient)
	h.must(err)
	h.put(slackgate.Free, testJob("urgent", 15_000))
	for _, want := range []string{"urgent", "patient0", "patient1"} {
		if c := h.claim(slackgate.Free); c.ID != want {
			t.Errorf("claimed %s, want %s", c.ID, want)
		}
	}
}

// claimsWithinCapacity: 32 claimers, each with a store and a client of its
// own, on a pool whose workers have 8 slots.
func claimsWithinCapacity(t *testing.T, h *harness) {
	const claimers, slots, jobs = 32, 8, 20
	h.live(slots, 0)
	for _, id := range ids(jobs, "j") {
		h.put(slackgate.Paid, testJob(id, 60_000))
	}
	for _, tt := range []struct{ limit, want int }{{5, 5}, {100, slots - 5}} {
		var wg sync.WaitGroup
		claimed, full := make(chan *broker.Claim, claimers), make(chan bool, claimers)
		for range claimers {
			other := h.another()
			wg.Go(func() {
				c, met, err := other.Claim(bg, slackgate.Paid, tt.limit, time.Minute)
				switch {
				case err != nil:
					t.Error(err)
				case c != nil:
					claimed <- c
				case met.Full:
					full <- true
				}
			})
		}
		wg.Wait()
		if len(claimed) != tt.want || len(full) != claimers-tt.want {
			t.Errorf("limit %d: %d claims and %d told full, want %d and %d", tt.limit, len(claimed), len(full), tt.want, claimers-tt.want)
		}
		seen := map[string]bool{}
		for range len(claimed) {
			c := <-claimed
			if seen[c.ID] {
				t.Errorf("%s was claimed twice", c.ID)
			}
			seen[c.ID] = true
		}
	}
	if p := h.state().Pools[slackgate.Paid]; p.Running != slots || p.Waiting != jobs-slots {
		t.Errorf("%d running, %d waiting", p.Running, p.Waiting)
	}
	// A worker leaves: nothing more until as many have ended.
	h.must(h.Leave(bg, broker.Worker{ID: "w-paid", Path: slackgate.Paid, Slots: slots}))
	h.live(slots-1, 0)
	if c, met, err := h.Claim(bg, slackgate.Paid, 100, time.Minute); c != nil || !met.Full || err != nil {
		t.Errorf("claimed %v (met %+v, %v) above the capacity that is left", c, met, err)
	}
}

func handbackKeepsPlace(t *testing.T, h *harness) {
	h.live(10, 10)
	for _, id := range []string{"a", "b", "c"} {
		h.put(slackgate.Paid, testJob(id, 60_000))
	}
	c := h.claim(slackgate.Paid)
	was := h.view("a")
	h.must(h.Handback(bg, c))
	if err := h.Handback(bg, c); !errors.Is(err, broker.ErrFenced) {
		t.Errorf("handed back twice: %v", err)
	}
	is := h.view("a")
	if is.State != broker.StateWaiting || is.AcceptedAtMS != was.AcceptedAtMS || is.DeadlineAtMS != was.DeadlineAtMS || is.QueueWaitMS != 0 {
		t.Errorf("%+v, was %+v", is, was)
	}
	again := h.claim(slackgate.Paid)
	if again.ID != "a" || again.Fence <= c.Fence || again.Offers != 0 {
		t.Errorf("claimed %s under fence %d (was %d), offers %d", again.ID, again.Fence, c.Fence, again.Offers)
	}
	if ok, err := h.Renew(bg, c, time.Minute); ok != broker.LeaseLost || err != nil {
		t.Errorf("the old claim still renews: %v, %v", ok, err)
	}
	h.balanced()
}

func queueAge(t *testing.T, h *harness) {
	h.live(10, 10)
	classed := func(id, class string) *broker.Submission {
		j := testJob(id, 3600_000)
		j.Class = class
		return j
	}
	slack := int64(60_000)
	seen := func(class string) slackgate.PoolState {
		t.Helper()
		o := offerTo(slackgate.Free, classed("probe", class))
		o.Bounds[0].MaxInFlight = 0 // look, but do not enter
		o.ReserveMS = o.LeftMS - slack
		got, err := h.Admit(bg, openPools(), []broker.Offer{o})
		h.must(err)
		return got.Jobs[0].Pools[slackgate.Free]
	}
	const wide = 30_000
	if p := seen("a"); p.QueueAgeMS != 0 || p.ClassQueueAgeMS != 0 {
		t.Errorf("an empty pool has ages %d and %d", p.QueueAgeMS, p.ClassQueueAgeMS)
	}
	h.put(slackgate.Free, classed("old", "a"))
	h.advance(200 * time.Second)
	h.put(slackgate.Free, classed("young", "b"))
	h.advance(100 * time.Second)
	p := seen("b")
	between(t, "age", p.QueueAgeMS, 300_000, 300_000+wide)
	between(t, "class b's age", p.ClassQueueAgeMS, 100_000, 100_000+wide)
	between(t, "class a's age", seen("a").ClassQueueAgeMS, 300_000, 300_000+wide)
	if p := seen("c"); p.ClassQueueAgeMS != 0 {
		t.Errorf("class c, with nothing waiting, has age %d", p.ClassQueueAgeMS)
	}
	// The job in service does not count; handed back it has its whole age.
	c := h.claim(slackgate.Free)
	if c.ID != "old" || c.QueueWaitMS() < 300_000 {
		t.Errorf("claimed %s after %d ms", c.ID, c.QueueWaitMS())
	}
	between(t, "age without the job in service", h.state().Pools[slackgate.Free].QueueAgeMS, 100_000, 100_000+wide)
	between(t, "class a's age without it", seen("a").ClassQueueAgeMS, 0, 0)
	h.must(h.Handback(bg, c))
	between(t, "age after hand-back", h.state().Pools[slackgate.Free].QueueAgeMS, 300_000, 300_000+wide)
	between(t, "paid's age", h.state().Pools[slackgate.Paid].QueueAgeMS, 0, 0)
}

func smallestSlack(t *testing.T, h *harness) {
	h.live(10, 10)
	if _, ok, err := h.SmallestSlackMS(bg, slackgate.Paid); ok || err != nil {
		t.Errorf("an empty pool has a smallest slack (%v)", err)
	}
	h.put(slackgate.Paid, testJob("patient", 600_000))
	h.put(slackgate.Paid, testJob("urgent", 100_000))
	got, ok, err := h.SmallestSlackMS(bg, slackgate.Paid)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	between(t, "smallest slack", got, 68_000, 98_000)
	if n, err := h.Waiting(bg, slackgate.Paid); n != 2 || err != nil {
		t.Errorf("%d waiting, %v", n, err)
	}
}
