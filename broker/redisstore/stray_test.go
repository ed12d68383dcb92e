package redisstore

import (
	"testing"
	"time"

	"leeway/broker"
	"leeway/slackgate"
)

// strays walks through all keys once.
func (h *harness) strays() (sum broker.Strays) {
	h.t.Helper()
	for {
		h.advance(time.Second)
		got, err := h.MendStrays(bg)
		h.must(err)
		sum.Placed += got.Placed
		sum.Removed += got.Removed
		cursor, err := h.rdb.HGet(bg, h.key("strays"), "cursor").Result()
		h.must(err)
		if cursor == "0" {
			return sum
		}
	}
}

// A waiting job whose place was deleted runs all the same, and a running one is
// decided by the sweep.
func strayPlaces(t *testing.T, h *harness) {
	c := h.started("runs")
	h.openAttempt(c, 1)
	h.put(slackgate.Free, testJob("waits", 600_000))
	h.put(slackgate.Paid, testJob("due", 60_000))
	for _, k := range []string{"waiting:free", "waiting:paid", "age:paid", "running:paid"} {
		h.must(h.rdb.Del(bg, h.key(k)).Err())
	}
	if s := h.strays(); s != (broker.Strays{Placed: 3}) {
		t.Errorf("mended %+v", s)
	}
	if s := h.strays(); s != (broker.Strays{}) {
		t.Errorf("mended once more %+v", s)
	}
	if got := h.claim(slackgate.Free); got.ID != "waits" || got.Text != "text of waits" {
		t.Errorf("claimed %+v", got)
	}
	// Offered again, as after any lost lease; its attempt is booked as unknown.
	h.lastSweep(500 * time.Millisecond)
	if s := h.sweep(); s.Reoffered != 1 {
		t.Errorf("swept %+v", s)
	}
	if rows := h.spent(); len(rows) != 1 || rows[0].JobID != "runs" || rows[0].Known != broker.KnownUnknown {
		t.Errorf("spent %+v", rows)
	}
	h.advance(60 * time.Second)
	h.sweep()
	for _, id := range []string{"due", "runs"} {
		if v := h.view(id); v.Outcome != broker.OutcomeExpired {
			t.Errorf("%s: %+v", id, v)
		}
	}
	h.balanced()
}

// What belongs to no job goes, what belongs to one stays.
func strayKeys(t *testing.T, h *harness) {
	h.live(10, 10)
	h.put(slackgate.Free, testJob("waits", 600_000))
	h.put(slackgate.Paid, testJob("record gone", 600_000))
	h.must(h.rdb.Del(bg, h.key("job", "record gone")).Err()) // in the order: for the sweep to set aside
	c := h.started("ended")
	_, err := h.Finish(bg, c, usable("the answer"))
	h.must(err)
	h.must(h.rdb.Persist(bg, h.key("job", "ended")).Err())
	h.must(h.rdb.HSet(bg, h.key("job", "half"), "fence", 3).Err())
	h.must(h.rdb.Set(bg, h.key("text", "half"), "x", 0).Err())
	h.must(h.rdb.Set(bg, h.key("text", "none"), "x", 0).Err())
	h.must(h.rdb.Set(bg, h.key("answer", "none"), "x", 0).Err())
	h.must(h.rdb.Set(bg, "another's:text:none", "x", 0).Err())
	if s := h.strays(); s != (broker.Strays{Removed: 5}) {
		t.Errorf("mended %+v", s)
	}
	if s := h.strays(); s != (broker.Strays{}) {
		t.Errorf("mended once more %+v", s)
	}
	for _, k := range []string{h.key("job", "half"), h.key("text", "half"), h.key("text", "none"), h.key("answer", "none")} {
		if n, err := h.rdb.Exists(bg, k).Result(); n != 0 || err != nil {
			t.Errorf("%s is still there, %v", k, err)
		}
	}
	for _, k := range []string{h.key("text", "waits"), h.key("text", "record gone"), h.key("answer", "ended"), "another's:text:none"} {
		if n, err := h.rdb.Exists(bg, k).Result(); n != 1 || err != nil {
			t.Errorf("%s is gone, %v", k, err)
		}
	}
	if d := h.ttl("job", "ended"); d <= 0 || d > 24*time.Hour {
		t.Errorf("the ended job stays for %v", d)
	}
}

// A reservation whose job is gone holds no budget.
func strayReservation(t *testing.T, h *harness) {
	h.must(h.rdb.HSet(bg, h.key("budget:held"), "gone", "70:30:summary:p").Err())
	h.must(h.rdb.HSet(bg, h.key("budget:reserved"), "p:p", 100, "c:summary", 150).Err())
	if s := h.strays(); s != (broker.Strays{Removed: 1}) {
		t.Errorf("mended %+v", s)
	}
	reserved, err := h.rdb.HGetAll(bg, h.key("budget:reserved")).Result()
	h.must(err)
	if len(reserved) != 1 || reserved["c:summary"] != "50" {
		t.Errorf("reserved %v", reserved)
	}
	h.must(h.rdb.Del(bg, h.key("budget:reserved")).Err()) // the rest is of no job at all
}

// Any number of processes look at one page in half a second.
func straysInTurn(t *testing.T, h *harness) {
	h.must(h.rdb.Set(bg, h.key("text", "none"), "x", 0).Err())
	h.must(h.rdb.HSet(bg, h.key("strays"), "at", h.NowMS()+60_000, "cursor", "0").Err()) // a clock that stepped back
	if s := h.strays(); s.Removed != 1 {
		t.Errorf("mended %+v", s)
	}
	h.must(h.rdb.Set(bg, h.key("text", "none"), "x", 0).Err())
	for range 3 {
		if s, err := h.MendStrays(bg); s.Removed != 0 || err != nil {
			t.Errorf("mended %+v, %v out of turn", s, err)
		}
	}
	h.must(h.rdb.Del(bg, h.key("text", "none")).Err())
}
