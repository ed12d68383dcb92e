package redisstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/slackgate"
)

var ledgerBehaviours = []behaviour{
	{"a spend row is written ahead", writtenAhead},
	{"a settlement may be repeated", settleTwice},
	{"pages follow one another", pages},
	{"a cursor that is none of ours is bad input", badCursor},
	{"sums equal rows after anything", anything},
}

func z(score int64, member string) redis.Z { return redis.Z{Score: float64(score), Member: member} }

// openAttempt opens a row of at most 5,000 micro-units, 200 tokens in and 100
// out.
func (h *harness) openAttempt(c *broker.Claim, n int) {
	h.t.Helper()
	row := h.attempt(c, n, 0, 0)
	row.Known, row.Result = "", ""
	h.must(h.OpenSpend(bg, c, &row))
	if row.OpenedAtMS == 0 {
		h.t.Error("the row has no opening time")
	}
}

// attempt is a settled row.
func (h *harness) attempt(c *broker.Claim, n int, in, out int64) broker.SpendRow {
	return broker.SpendRow{
		JobID: c.ID, Attempt: n, Path: c.Path, Class: c.Class, Producer: c.Producer, Backend: "lab", Model: "m",
		Currency: "USD", PriceVersion: "1", MaxCostMicro: 5000, CostMicro: in + 4*out,
		Usage:  broker.Usage{InputTokens: in, OutputTokens: out, Known: broker.KnownReported},
		Result: "whole", Priced: true, MaxInputTokens: 200, MaxOutputTokens: 100,
	}
}

func writtenAhead(t *testing.T, h *harness) {
	c := h.started("j")
	h.openAttempt(c, 1)
	open := h.openRows()
	if len(open) != 1 || open[0].MaxCostMicro != 5000 || open[0].JobID != "j" || open[0].Known != "" || open[0].Backend != "lab" || open[0].ID != "" {
		t.Errorf("open rows %+v", open)
	}
	if len(h.spent()) != 0 || h.view("j").Attempts != 1 {
		t.Errorf("settled %+v, attempts %d", h.spent(), h.view("j").Attempts)
	}
	// A second attempt of the same claim.
	h.openAttempt(c, 2)
	_, err := h.Finish(bg, c, usable("x"), h.attempt(c, 1, 7, 0), h.attempt(c, 2, 10, 20))
	h.must(err)
	rows := h.spent()
	if len(rows) != 2 || len(h.openRows()) != 0 {
		t.Fatalf("%+v, open %+v", rows, h.openRows())
	}
	if r := rows[1]; r.Attempt != 2 || r.InputTokens != 10 || r.OutputTokens != 20 || r.CostMicro != 90 || r.Known != broker.KnownReported || r.ID == "" || r.SettledAtMS == 0 {
		t.Errorf("%+v", r)
	}
	tot := h.totals()
	for k, want := range map[string]int64{
		"attempts:paid": 2, "tokens:paid:input": 17, "tokens:paid:output": 20, "spend_tokens:paid": 37, "cost_micro:paid:USD": 97, "known:paid:reported": 2,
	} {
		if tot[k] != want {
			t.Errorf("%s is %d, want %d", k, tot[k], want)
		}
	}
	// An attempt that nobody settled with the outcome is settled by it.
	c = h.started("k")
	h.openAttempt(c, 1)
	_, err = h.Finish(bg, c, usable("x"))
	h.must(err)
	if rows := h.spent(); len(rows) != 3 || rows[2].Known != broker.KnownUnknown || rows[2].CostMicro != 5000 {
		t.Errorf("%+v", rows)
	}
	h.balanced()
}

func settleTwice(t *testing.T, h *harness) {
	c := h.started("j")
	h.openAttempt(c, 1)
	row := h.attempt(c, 1, 10, 20)
	for range 3 {
		h.must(h.Settle(bg, row))
	}
	// A row that was never opened is not booked, whoever asks.
	h.must(h.Settle(bg, h.attempt(c, 7, 1000, 1000)))
	h.must(h.Settle(bg))
	if rows := h.spent(); len(rows) != 1 {
		t.Errorf("%+v", rows)
	}
	// Large sums stay whole numbers.
	h.openAttempt(c, 2)
	big := h.attempt(c, 2, 1<<40, 0)
	big.CostMicro = 1 << 50
	h.must(h.Settle(bg, big))
	if got := h.totals()["cost_micro:paid:USD"]; got != 1<<50+90 {
		t.Errorf("cost is %d", got)
	}
	h.balanced()
}

func pages(t *testing.T, h *harness) {
	h.live(10, 10)
	const n = 25
	var offers []broker.Offer
	for _, id := range ids(n, "m") {
		offers = append(offers, broker.Offer{Job: testJob(id, 1000), LeftMS: 1000, ReserveMS: 2000, Miss: true})
	}
	_, err := h.Admit(bg, openPools(), offers)
	h.must(err)
	for _, limit := range []int{1, 5, 24, 25, 26, 1000, 5000, 0, -1} {
		var got []string
		cursor, calls := "", 0
		for {
			p, err := h.MissRows(bg, &ledger.Filter{}, cursor, limit)
			h.must(err)
			calls++
			for _, r := range p.Rows {
				got = append(got, r.JobID)
			}
			if cursor = p.Next; cursor == "" {
				break
			}
			if len(p.Rows) != min(max(limit, 1), broker.MaxPage) {
				t.Errorf("limit %d: a page of %d has a next one", limit, len(p.Rows))
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(ids(n, "m")) {
			t.Errorf("limit %d: %d rows in %d pages: %v", limit, len(got), calls, got)
		}
	}
	if p, err := h.SpendRows(bg, &ledger.Filter{}, "", 10); err != nil || p.Rows == nil || len(p.Rows) != 0 || p.Next != "" {
		t.Errorf("an empty ledger gives %+v, %v", p, err)
	}
}

func badCursor(t *testing.T, h *harness) {
	for _, c := range []string{"nonsense", "-", "+", "(1-0", "1", "1-", "-1", "1-0-0", " 1-0", "1-0 ", "0x1-0", "99999999999999999999-0", "1-99999999999999999999", "$", "*"} {
		_, err := h.SpendRows(bg, &ledger.Filter{}, c, 10)
		if f, ok := errors.AsType[*broker.FieldError](err); !ok || f.Field != "cursor" {
			t.Errorf("cursor %q: %v", c, err)
		}
	}
	for _, c := range []string{"0-0", "1764460800000-12", "9223372036854775807-9223372036854775807"} {
		if p, err := h.MissRows(bg, &ledger.Filter{}, c, 10); err != nil || len(p.Rows) != 0 {
			t.Errorf("cursor %q: %+v, %v", c, p, err)
		}
	}
}

// anything: a seeded random walk over every call, after which the books must
// balance.
func anything(t *testing.T, h *harness) {
	r := rand.New(rand.NewPCG(1, 2))
	h.live(4, 2)
	limit := map[slackgate.Path]int{slackgate.Paid: 4, slackgate.Free: 2}
	type held struct {
		c    *broker.Claim
		open []int
	}
	var claims []*held
	serial := 0
	for step := range 250 {
		path := slackgate.Paths[r.IntN(2)]
		switch k := r.IntN(12); {
		case k < 4:
			serial++
			h.put(path, testJob(fmt.Sprintf("j%d", serial), 5000+r.Int64N(120_000)))
		case k < 7:
			c, _, err := h.Claim(bg, path, limit[path], 20*time.Second)
			h.must(err)
			if c != nil {
				claims = append(claims, &held{c: c})
			}
		case k == 7 && len(claims) > 0:
			x := claims[r.IntN(len(claims))]
			n := x.c.Attempts + len(x.open) + 1
			row := h.attempt(x.c, n, 0, 0)
			if err := h.OpenSpend(bg, x.c, &row); err == nil {
				x.open = append(x.open, n)
			} else if !errors.Is(err, broker.ErrFenced) {
				t.Fatal(err)
			}
		case k == 8 && len(claims) > 0:
			i := r.IntN(len(claims))
			x := claims[i]
			var rows []broker.SpendRow
			for _, n := range x.open {
				rows = append(rows, h.attempt(x.c, n, r.Int64N(100), r.Int64N(100)))
			}
			f := usable("x")
			if r.IntN(2) == 0 {
				f = &broker.Finish{Outcome: broker.OutcomeTruncated, Cause: broker.CauseTruncated, FirstByteMS: -1}
			}
			if _, err := h.Finish(bg, x.c, f, rows...); err != nil && !errors.Is(err, broker.ErrFenced) {
				t.Fatal(err)
			}
			if r.IntN(3) > 0 { // sometimes its holder tries again later
				claims = append(claims[:i], claims[i+1:]...)
			}
		case k == 9 && len(claims) > 0:
			if err := h.Handback(bg, claims[r.IntN(len(claims))].c); err != nil && !errors.Is(err, broker.ErrFenced) {
				t.Fatal(err)
			}
		case k == 10 && serial > 0:
			_, err := h.Cancel(bg, fmt.Sprintf("j%d", 1+r.IntN(serial)))
			h.must(err)
		case k == 11:
			h.advance(time.Duration(r.Int64N(int64(15 * time.Second))))
			h.live(4, 2)
			h.sweep()
		}
		for _, path := range slackgate.Paths {
			if p := h.state().Pools[path]; p.Running > limit[path] {
				t.Fatalf("step %d: %d running in %s", step, p.Running, path)
			}
		}
	}
	h.balanced()
	// Time ends everything.
	for h.state().Pools[slackgate.Paid].InFlight()+h.state().Pools[slackgate.Free].InFlight() > 0 {
		h.advance(10 * time.Minute)
		h.sweep()
	}
	h.balanced()
	for i := range serial {
		if v := h.view(fmt.Sprintf("j%d", i+1)); v.State != broker.StateDone || v.Outcome == "" {
			t.Errorf("%s has no outcome: %+v", v.ID, v)
		}
	}
	if len(h.openRows()) != 0 {
		t.Errorf("open rows %+v", h.openRows())
	}
}
