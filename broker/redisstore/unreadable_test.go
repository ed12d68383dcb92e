package redisstore

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/slackgate"
)

var unreadableBehaviours = []behaviour{
	{"a row that cannot be read is told apart and the others are read", unreadableRows},
	{"an open row that cannot be read stops no settlement", unreadableOpenRow},
	{"a record that cannot be read stops no sweep", unreadableRecords},
	{"a reservation that cannot be read stops nobody", unreadableReservation},
}

// unreadableRow puts a row into a ledger that nobody can read.
func (h *harness) unreadableRow(k ledger.Kind, values ...any) string {
	h.t.Helper()
	id, err := h.rdb.XAdd(bg, &redis.XAddArgs{Stream: h.key("ledger", streams[k]), Values: values}).Result()
	h.must(err)
	return id
}

// found are the problems of one item of a check.
func (h *harness) found(item string) string {
	h.t.Helper()
	for _, i := range h.check().Items {
		if i.Name == item {
			return strings.Join(i.Problems, "\n")
		}
	}
	h.t.Fatalf("no item %s", item)
	return ""
}

func unreadableRows(t *testing.T, h *harness) {
	book := func(id string) {
		c := h.started(id)
		h.openAttempt(c, 1)
		f := &broker.Finish{Outcome: broker.OutcomeFailed, Cause: broker.CauseFailed, FirstByteMS: -1}
		_, err := h.finish(c, f, h.attempt(c, 1, 10, 20))
		h.must(err)
	}
	book("before")
	miss := []any{"job_id", "j", "path", "paid", "class", "c", "outcome", "failed", "cause", "failed", "admission", "{}"}
	bad := map[ledger.Kind][]string{
		ledger.Spend: {
			h.unreadableRow(ledger.Spend, "row", "{"),
			h.unreadableRow(ledger.Spend, "row", `{"job_id":"j","attempt":3000000000,"path":"paid"}`),
			h.unreadableRow(ledger.Spend, "something", "else"),
		},
		ledger.Misses: {
			h.unreadableRow(ledger.Misses, "path", "nowhere", "admission", "{}"),
			h.unreadableRow(ledger.Misses, append(miss, "at_ms", "soon")...),
		},
	}
	book("after")
	if rows := h.spent(); len(rows) != 2 || rows[0].JobID != "before" || rows[1].JobID != "after" {
		t.Errorf("spent %+v", rows)
	}
	if rows := h.misses(); len(rows) != 2 || rows[0].JobID != "before" || rows[1].JobID != "after" {
		t.Errorf("misses %+v", rows)
	}
	for _, limit := range []int{1, 2, 1000} { // however the pages are cut, each is told once
		var got []string
		for cursor, more := "", true; more; more = cursor != "" {
			p, err := h.SpendRows(bg, &ledger.Filter{}, cursor, limit)
			h.must(err)
			for _, u := range p.Unreadable {
				if got = append(got, u.ID); u.Why == "" || u.Raw == "" {
					t.Errorf("%+v", u)
				}
			}
			cursor = p.Next
		}
		if strings.Join(got, " ") != strings.Join(bad[ledger.Spend], " ") {
			t.Errorf("by %d: %v, want %v", limit, got, bad[ledger.Spend])
		}
	}
	for k, item := range map[ledger.Kind]string{ledger.Spend: ledger.ItemSpendTotals, ledger.Misses: ledger.ItemMissTotals} {
		problems := h.found(item)
		for _, id := range bad[k] {
			if !strings.Contains(problems, "row "+id+" cannot be read: ") {
				t.Errorf("%s: row %s is not named: %s", item, id, problems)
			}
		}
	}
}

func unreadableOpenRow(t *testing.T, h *harness) {
	a, b := h.started("a"), h.started("b")
	h.openAttempt(a, 1)
	h.openAttempt(b, 1)
	h.must(h.rdb.HSet(bg, h.key("spend", "open"), "a/1", "{").Err())
	if rows := h.openRows(); len(rows) != 1 || rows[0].JobID != "b" {
		t.Errorf("open %+v", rows)
	}
	if problems := h.found(ledger.ItemOpen); !strings.Contains(problems, "row a/1 cannot be read: ") {
		t.Errorf("not named: %s", problems)
	}
	h.advance(minuteMS * 1e6)
	h.sweep()
	h.advance(minuteMS * 1e6)
	h.sweep()
	for _, id := range []string{"a", "b"} {
		if v := h.view(id); v.State != broker.StateDone {
			t.Errorf("%s: %+v", id, v)
		}
	}
	if rows := h.spent(); len(rows) != 1 || rows[0].JobID != "b" {
		t.Errorf("spent %+v", rows)
	}
	// It is in the ledger, and counted there.
	if n := h.totals()["set_aside:spend"]; n != 1 || h.rdb.XLen(bg, h.key("ledger", "spend")).Val() != 2 {
		t.Errorf("%d set aside", n)
	}
	problems := h.found(ledger.ItemSpendTotals)
	if !strings.Contains(problems, " cannot be read: ") || strings.Contains(problems, "booked") {
		t.Errorf("%s", problems)
	}
}

func unreadableRecords(t *testing.T, h *harness) {
	for id, field := range map[string]string{"no spec": "spec", "offers": "offers", "attempts": "attempts", "wait": "queue_wait"} {
		h.started(id)
		if field == "spec" {
			h.must(h.rdb.HDel(bg, h.key("job", id), field).Err())
		} else {
			h.must(h.rdb.HSet(bg, h.key("job", id), field, "many").Err())
		}
	}
	h.started("well")
	h.advance(minuteMS * 1e6)
	h.sweep()
	h.advance(minuteMS * 1e6)
	h.sweep()
	if v := h.view("well"); v.State != broker.StateDone {
		t.Errorf("%+v", v)
	}
	if st := h.state(); st.Pools[slackgate.Paid].InFlight() != 0 {
		t.Errorf("%+v", st.Pools[slackgate.Paid])
	}
}

func unreadableReservation(t *testing.T, h *harness) {
	c := h.started("j")
	h.must(h.rdb.HSet(bg, h.key("budget:held"), "j", "?").Err())
	h.openAttempt(c, 1)
	if problems := h.found(ledger.ItemBudgets); !strings.Contains(problems, "j") {
		t.Errorf("not named: %s", problems)
	}
	if o, err := h.finish(c, usable("x"), h.attempt(c, 1, 10, 20)); err != nil || o != broker.OutcomeUsable {
		t.Errorf("%s, %v", o, err)
	}
}
