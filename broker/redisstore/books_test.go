package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/slackgate"
)

var booksBehaviours = []behaviour{
	{"any interleaving leaves balanced books", interleavings},
	{"each kind of imbalance is named", imbalances},
	{"trimmed rows are no imbalance", trimmedBooks},
	{"unfinished jobs without a record are told apart", goneRecords},
	{"producers beyond the bound share a sum", manyProducers},
	{"an attempt nobody settles is settled as unknown", orphans},
	{"a page goes by time and filter", filteredPages},
	{"a trim takes what is archived and no more", trims},
}

// checked runs a check, which must find the books balanced.
func (h *harness) checked() *ledger.Report {
	h.t.Helper()
	r := h.check()
	if !r.Balanced {
		h.t.Fatalf("the books do not balance:\n%s", problems(r))
	}
	return r
}

func (h *harness) check() *ledger.Report {
	h.t.Helper()
	r, err := h.CheckLedgers(bg)
	h.must(err)
	return r
}

func problems(r *ledger.Report) string {
	var b strings.Builder
	for _, i := range r.Items {
		for _, p := range i.Problems {
			b.WriteString(i.Name + ": " + p + "\n")
		}
	}
	return b.String()
}

// actor is a worker that has claimed a job; it may act on it whenever it likes,
// as often as it likes, long after it has lost it.
type actor struct {
	claim *broker.Claim
	rows  []broker.SpendRow // of the attempts it has opened
}

// interleavings: whatever order events come in, twice, late, or from holders
// that have long lost the job, each job comes to one outcome and the books
// balance.
func interleavings(t *testing.T, h0 *harness) {
	rapid.Check(t, func(rt *rapid.T) {
		h := h0.fresh()
		h.live(3, 2)
		limit := map[slackgate.Path]int{slackgate.Paid: 3, slackgate.Free: 2}
		var actors []*actor
		jobs := 0
		some := func() *actor {
			if len(actors) == 0 {
				return nil
			}
			return actors[rapid.IntRange(0, len(actors)-1).Draw(rt, "actor")]
		}
		path := func() slackgate.Path { return rapid.SampledFrom(slackgate.Paths[:]).Draw(rt, "path") }
		fenced := func(err error) {
			if err != nil && !errors.Is(err, broker.ErrFenced) {
				rt.Fatal(err)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"submit": func(*rapid.T) {
				jobs++
				j := testJob(fmt.Sprintf("j%d", jobs), 60_000)
				j.Producer = rapid.SampledFrom([]string{"", "a", "b:c", "other", "ü"}).Draw(rt, "producer")
				h.put(path(), j)
			},
			"submit under a budget": func(*rapid.T) {
				jobs++
				o := budgetedOffer(fmt.Sprintf("j%d", jobs), rapid.Int64Range(0, 20_000).Draw(rt, "cost"), rapid.Int64Range(0, 60_000).Draw(rt, "cap"))
				got, err := h.Admit(bg, openPools(), []broker.Offer{o})
				h.must(err)
				producer := &got.Jobs[0].Budgets[slackgate.ProducerBudget]
				if fits := producer.Admits(o.CostMicro); (got.Jobs[0].Path == slackgate.Paid) != fits {
					rt.Fatalf("%s with %+v and %d to come", got.Jobs[0].Path, producer, o.CostMicro)
				}
			},
			"offer a claimed job again": func(*rapid.T) {
				if a := some(); a != nil && a.claim.Path == slackgate.Free {
					o := budgetedOffer(a.claim.ID, 7000, 1_000_000)
					j := broker.Submission{Spec: a.claim.Spec}
					o.Job, o.Again = &j, &broker.Again{From: a.claim.Path, Fence: a.claim.Fence}
					_, err := h.Admit(bg, openPools(), []broker.Offer{o})
					h.must(err)
				}
			},
			"offer a waiting job again": func(*rapid.T) {
				if jobs > 0 {
					o := budgetedOffer(fmt.Sprintf("j%d", rapid.IntRange(1, jobs).Draw(rt, "job")), 7000, 1_000_000)
					o.Again, o.Bounds = &broker.Again{From: path(), Revoke: rapid.Bool().Draw(rt, "or revoke it")}, anywhere(path())
					_, err := h.Admit(bg, openPools(), []broker.Offer{o})
					h.must(err)
				}
			},
			"arrive late": func(*rapid.T) {
				jobs++
				j := testJob(fmt.Sprintf("j%d", jobs), 1000)
				_, err := h.Admit(bg, openPools(), []broker.Offer{{Job: j, LeftMS: 1000, ReserveMS: 2000, Miss: true}})
				h.must(err)
			},
			"claim": func(*rapid.T) {
				p := path()
				c, _, err := h.Claim(bg, p, limit[p], time.Minute)
				h.must(err)
				if c != nil {
					actors = append(actors, &actor{claim: c})
				}
			},
			"open": func(*rapid.T) {
				// No worker calls a backend for a job that is past its deadline.
				if a := some(); a != nil && a.claim.NowMS < a.claim.DeadlineAtMS {
					s := h.attempt(a.claim, a.claim.Attempts+len(a.rows)+1, rapid.Int64Range(0, 500).Draw(rt, "in"), rapid.Int64Range(0, 100).Draw(rt, "out"))
					s.Priced = rapid.Bool().Draw(rt, "priced")
					s.Known = rapid.SampledFrom([]broker.Known{broker.KnownReported, broker.KnownEstimated, broker.KnownUnknown}).Draw(rt, "known")
					if rapid.Bool().Draw(rt, "reported") {
						s.ReportedCostMicro, s.ListCostMicro = new(s.CostMicro), new(s.CostMicro+rapid.Int64Range(0, 3).Draw(rt, "off"))
					}
					row := s
					row.ReportedCostMicro, row.ListCostMicro = nil, nil // nothing is reported before the call
					err := h.OpenSpend(bg, a.claim, &row)
					fenced(err)
					if err == nil {
						a.rows = append(a.rows, s)
					}
				}
			},
			"settle": func(*rapid.T) {
				if a := some(); a != nil && len(a.rows) > 0 {
					rows := slices.Clone(a.rows[rapid.IntRange(0, len(a.rows)-1).Draw(rt, "from"):])
					slices.Reverse(rows)
					h.must(h.Settle(bg, rows...))
				}
			},
			"finish": func(*rapid.T) {
				if a := some(); a != nil {
					f := rapid.SampledFrom([]*broker.Finish{
						usable("x"), {Outcome: broker.OutcomeLate, Cause: broker.CauseLateFinish, FirstByteMS: 10},
						{Outcome: broker.OutcomeFailed, Cause: broker.CauseFailed, Reason: "down", Backend: "lab", FirstByteMS: -1},
						{Outcome: broker.OutcomeEmpty, Cause: broker.CauseEmpty, FirstByteMS: -1},
					}).Draw(rt, "finish")
					_, err := h.Finish(bg, a.claim, f, a.rows...)
					fenced(err)
				}
			},
			"hand back": func(*rapid.T) {
				if a := some(); a != nil {
					fenced(h.Handback(bg, a.claim))
				}
			},
			"cancel": func(*rapid.T) {
				if jobs > 0 {
					_, err := h.Cancel(bg, fmt.Sprintf("j%d", rapid.IntRange(1, jobs).Draw(rt, "job")))
					h.must(err)
				}
			},
			"renew": func(*rapid.T) {
				if a := some(); a != nil {
					_, err := h.Renew(bg, a.claim, time.Minute)
					h.must(err)
				}
			},
			"time passes": func(*rapid.T) {
				h.advance(time.Duration(rapid.Int64Range(0, 70_000).Draw(rt, "ms")) * time.Millisecond)
				h.live(3, 2)
				h.sweep()
			},
		})
		if r := h.check(); !r.Balanced {
			rt.Fatalf("the books do not balance:\n%s", problems(r))
		}
		for h.state().Pools[slackgate.Paid].InFlight()+h.state().Pools[slackgate.Free].InFlight() > 0 {
			h.advance(10 * time.Minute)
			h.sweep()
		}
		r := h.check()
		if !r.Balanced {
			rt.Fatalf("the books do not balance at the end:\n%s", problems(r))
		}
		if held, reserved := h.held(); len(held)+len(reserved) > 0 {
			rt.Fatalf("nothing is unfinished, and held are %v, reserved %v", held, reserved)
		}
		outcomes := int64(0)
		for k, n := range r.Totals {
			if strings.HasPrefix(k, "outcome:") {
				outcomes += n
			}
		}
		if in := r.Totals["admitted:paid"] + r.Totals["admitted:free"]; outcomes != in || len(h.openRows()) != 0 {
			rt.Fatalf("%d jobs admitted, %d outcomes, open rows %+v", in, outcomes, h.openRows())
		}
	})
}

// booked is a harness with a usable job of two attempts, a miss, a job that
// waits and an arrival without slack.
func (h *harness) booked() {
	h.t.Helper()
	c := h.started("good")
	h.openAttempt(c, 1)
	h.openAttempt(c, 2)
	_, err := h.Finish(bg, c, usable("x"), h.attempt(c, 1, 7, 0), h.attempt(c, 2, 10, 20))
	h.must(err)
	c = h.started("bad")
	h.openAttempt(c, 1)
	_, err = h.Finish(bg, c, &broker.Finish{Outcome: broker.OutcomeEmpty, Cause: broker.CauseEmpty, FirstByteMS: -1, Backend: "lab"}, h.attempt(c, 1, 7, 0))
	h.must(err)
	h.put(slackgate.Free, testJob("waits", 60_000))
	h.putBudgeted("budgeted", 15_000, 1_000_000)
	_, err = h.Admit(bg, openPools(), []broker.Offer{{Job: testJob("late", 1000), LeftMS: 1000, ReserveMS: 2000, Miss: true}})
	h.must(err)
}

func imbalances(t *testing.T, h0 *harness) {
	first := func(h *harness, stream string) string {
		m, err := h.rdb.XRangeN(bg, h.key("ledger", stream), "-", "+", 1).Result()
		h.must(err)
		return m[0].ID
	}
	last := func(h *harness, stream string) redis.XMessage {
		m, err := h.rdb.XRevRangeN(bg, h.key("ledger", stream), "+", "-", 1).Result()
		h.must(err)
		return m[0]
	}
	again := func(h *harness, stream string) {
		m := last(h, stream)
		h.must(h.rdb.XAdd(bg, &redis.XAddArgs{Stream: h.key("ledger", stream), Values: m.Values}).Err())
	}
	minute := func(h *harness) string {
		keys, err := h.server().Keys(bg, h.key("rollup", "*")).Result()
		h.must(err)
		keys = slices.DeleteFunc(keys, func(k string) bool { return strings.HasSuffix(k, ":producers") })
		return keys[len(keys)-1]
	}
	for _, tt := range []struct {
		name  string
		spoil func(h *harness)
		items []string
	}{
		{"nothing", func(*harness) {}, nil},
		{"an outcome twice", func(h *harness) { h.must(h.rdb.HIncrBy(bg, h.key("totals"), "outcome:paid:usable", 1).Err()) }, []string{ledger.ItemOutcomes}},
		{"a promise forgotten", func(h *harness) { h.must(h.rdb.Del(bg, h.key("waiting", "free")).Err()) }, []string{ledger.ItemOutcomes}},
		{"a spend row lost", func(h *harness) { h.must(h.rdb.XDel(bg, h.key("ledger", "spend"), first(h, "spend")).Err()) }, []string{ledger.ItemAttempts, ledger.ItemSpendTotals, ledger.ItemSpendSums, ledger.ItemBudgets}},
		{"a miss row lost", func(h *harness) { h.must(h.rdb.XDel(bg, h.key("ledger", "miss"), first(h, "miss")).Err()) }, []string{ledger.ItemMisses, ledger.ItemMissTotals, ledger.ItemMissSums}},
		{"a spend row twice", func(h *harness) { again(h, "spend") }, []string{ledger.ItemAttempts, ledger.ItemSpendTotals, ledger.ItemSpendSums, ledger.ItemBudgets}},
		{"a miss row twice", func(h *harness) { again(h, "miss") }, []string{ledger.ItemMisses, ledger.ItemMissTotals, ledger.ItemMissSums}},
		{"an attempt without a row", func(h *harness) { h.must(h.rdb.HSet(bg, h.key("job", "good"), "attempts", 3).Err()) }, []string{ledger.ItemAttempts}},
		{"a miss called usable", func(h *harness) { h.must(h.rdb.HSet(bg, h.key("job", "bad"), "outcome", "usable").Err()) }, []string{ledger.ItemMisses}},
		{"a total too high", func(h *harness) { h.must(h.rdb.HIncrBy(bg, h.key("totals"), "cost_micro:paid:USD", 1).Err()) }, []string{ledger.ItemSpendTotals}},
		{"a total too many", func(h *harness) { h.must(h.rdb.HIncrBy(bg, h.key("totals"), "tokens:free:input", 1).Err()) }, []string{ledger.ItemSpendTotals}},
		{"a miss too many", func(h *harness) { h.must(h.rdb.HIncrBy(bg, h.key("totals"), "miss_cause:paid:failed", 1).Err()) }, []string{ledger.ItemMissTotals}},
		{"a sum too high", func(h *harness) {
			h.must(h.rdb.HIncrBy(bg, minute(h), "s:input:paid:summary:lab:p", 1).Err())
		}, []string{ledger.ItemSpendSums}},
		{"a sum of nothing", func(h *harness) { h.must(h.rdb.HIncrBy(bg, minute(h), "m:failed:free:summary:lab:p", 1).Err()) }, []string{ledger.ItemMissSums}},
		{"a sum gone", func(h *harness) { h.must(h.rdb.HDel(bg, minute(h), "s:cost.USD:paid:summary:lab:p").Err()) }, []string{ledger.ItemSpendSums}},
		{"an open row past its deadline", func(h *harness) {
			h.must(h.rdb.HSet(bg, h.key("spend", "open"), "x/1", fmt.Sprintf(`{"job_id":"x","attempt":1,"path":"paid","backend":"lab","due_ms":%d}`, h.NowMS()-ledger.GraceMS-1000)).Err())
		}, []string{ledger.ItemOpen}},
		{"an ended job that counts as unfinished", func(h *harness) { h.must(h.rdb.ZAdd(bg, h.key("live", "paid", "p"), z(h.NowMS(), "good")).Err()) }, []string{ledger.ItemUnfinished}},
		{"an unfinished job that does not count", func(h *harness) { h.must(h.rdb.ZRem(bg, h.key("live", "free", "p"), "waits").Err()) }, []string{ledger.ItemUnfinished}},
		{"an unfinished job that counts in another place", func(h *harness) { h.must(h.rdb.ZIncrBy(bg, h.key("live", "free", "p"), 1, "waits").Err()) }, []string{ledger.ItemUnfinished}},
		{"an unfinished job that counts in another pool too", func(h *harness) { h.must(h.rdb.ZAdd(bg, h.key("live", "paid", "p"), z(h.NowMS(), "waits")).Err()) }, []string{ledger.ItemUnfinished}},
		{"an unfinished job that counts for another too", func(h *harness) {
			h.must(h.rdb.ZAdd(bg, h.key("live", "free", "p:q"), z(h.NowMS(), "waits")).Err())
		}, []string{ledger.ItemUnfinished}},
		{"a reservation nobody holds", func(h *harness) { h.must(h.rdb.HIncrBy(bg, h.key("budget", "reserved"), "p:p", 1).Err()) }, []string{ledger.ItemBudgets}},
		{"a reservation forgotten", func(h *harness) { h.must(h.rdb.Del(bg, h.key("budget", "reserved")).Err()) }, []string{ledger.ItemBudgets}},
		{"a reservation kept for a job that has ended", func(h *harness) {
			h.must(h.rdb.HSet(bg, h.key("job", "budgeted"), "state", "done", "outcome", "cancelled").Err())
		}, []string{ledger.ItemBudgets, ledger.ItemUnfinished}},
		{"spend that no budget saw", func(h *harness) {
			h.must(h.rdb.HIncrBy(bg, h.key("budget", "spent", day(h)), "c:summary", -1).Err())
		}, []string{ledger.ItemBudgets}},
		{"a day's spend too much", func(h *harness) {
			h.must(h.rdb.HSet(bg, h.key("budget", "spent", day(h)), "p:nobody", 1).Err())
		}, []string{ledger.ItemBudgets}},
	} {
		h := h0.fresh()
		h.booked()
		h.checked()
		tt.spoil(h)
		var got []string
		r := h.check()
		for _, i := range r.Items {
			if !i.OK {
				got = append(got, i.Name)
			}
			if i.Detail == "" {
				t.Errorf("%s: item %s says nothing", tt.name, i.Name)
			}
		}
		slices.Sort(tt.items)
		slices.Sort(got)
		if !slices.Equal(got, tt.items) || r.Balanced != (len(tt.items) == 0) {
			t.Errorf("%s: %v do not hold, want %v:\n%s", tt.name, got, tt.items, problems(r))
		}
	}
}

// A job without a record counts for nobody in particular: it is said, and is no
// imbalance until it should have been forgotten.
func goneRecords(t *testing.T, h *harness) {
	detail := func() string {
		for _, i := range h.checked().Items {
			if i.Name == ledger.ItemUnfinished {
				return i.Detail
			}
		}
		return ""
	}
	h.live(10, 10)
	for _, id := range ids(300, "j") { // more than one page
		h.put(slackgate.Free, testJob(id, 60_000))
	}
	if got := detail(); !strings.Contains(got, "300 on record, 300 counted") || strings.Contains(got, "without") {
		t.Errorf("%q", got)
	}
	h.must(h.rdb.Del(bg, h.key("job", "j1"), h.key("job", "j2")).Err())
	if got := detail(); !strings.Contains(got, "298 on record, 300 counted, 2 of them without a record") {
		t.Errorf("%q", got)
	}
	// Long past due nobody counts them any more.
	h.must(h.rdb.ZAdd(bg, h.key("live", "free", "p"), z(h.NowMS()-2*3600_000, "j1"), z(h.NowMS()-2*3600_000, "j2")).Err())
	if got := detail(); !strings.Contains(got, "298 on record, 298 counted") || strings.Contains(got, "without") {
		t.Errorf("%q", got)
	}
}

func day(h *harness) string { return strconv.FormatInt(h.NowMS()/slackgate.DayMS, 10) }

func trimmedBooks(t *testing.T, h *harness) {
	h.booked()
	// More was booked than is kept: the store may have dropped the rest.
	h.must(h.rdb.HIncrBy(bg, h.key("totals"), "attempts:free", h.rows).Err())
	r := h.check()
	for _, i := range r.Items {
		if i.Name == ledger.ItemSpendTotals && (!i.OK || !strings.Contains(i.Detail, "no longer here")) {
			t.Errorf("%+v", i)
		}
	}
}

// There are enough of them for one minute too many, even if a new one begins
// meanwhile.
func manyProducers(t *testing.T, h *harness) {
	h.live(10, 10)
	var offers []broker.Offer
	for _, id := range ids(2*ledger.MostProducers+2, "p") {
		j := testJob(id, 1000)
		j.Producer = id
		offers = append(offers, broker.Offer{Job: j, LeftMS: 1000, ReserveMS: 2000, Miss: true}, broker.Offer{Job: testJob(id+"again", 1000), LeftMS: 1000, ReserveMS: 2000, Miss: true})
	}
	_, err := h.Admit(bg, openPools(), offers)
	h.must(err)
	r := ledger.Rollup{Kind: ledger.Misses, Step: ledger.ByHour, Group: []string{"producer"}}
	now := ledger.MinuteOf(h.NowMS())
	most := 0
	h.must(h.Minutes(bg, now-60, now+2, func(m ledger.MinuteSums) error {
		r.Add(m.Minute, m.Sums)
		most = max(most, len(m.Producers))
		return nil
	}))
	total := int64(0)
	others := int64(0)
	for _, s := range r.Take() {
		total += s.Misses
		if s.Producer == ledger.OtherProducer {
			others += s.Misses
		}
	}
	if most > ledger.MostProducers || total != int64(len(offers)) || others == 0 {
		t.Errorf("%d producers in a minute, %d misses, %d of others", most, total, others)
	}
	h.checked()
}

// A probe whose worker died belongs to no job that would ever end.
func orphans(t *testing.T, h *harness) {
	h.must(h.SyncClock(bg))
	row := broker.SpendRow{JobID: "probe-1", Attempt: 1, Path: slackgate.Paid, Class: "probe", Backend: "lab", Currency: "USD", MaxCostMicro: 9}
	h.must(h.OpenProbe(bg, &row))
	h.sweep()
	if len(h.openRows()) != 1 {
		t.Fatal("settled before its time")
	}
	due := row.DueAtMS
	h.must(h.rdb.ZAdd(bg, h.key("spend", "due"), z(h.NowMS()-settleBy.Milliseconds()-1, "probe-1/1")).Err())
	h.sweep()
	if len(h.openRows()) != 1 {
		t.Fatal("settled though the store has only just come back")
	}
	h.must(h.rdb.Set(bg, h.key("back"), h.NowMS()-settleBy.Milliseconds()-1, 0).Err())
	h.sweep()
	rows := h.spent()
	if len(h.openRows()) != 0 || len(rows) != 1 || rows[0].Known != broker.KnownUnknown || rows[0].CostMicro != 9 || rows[0].DueAtMS != 0 || due == 0 {
		t.Errorf("open %+v, settled %+v", h.openRows(), rows)
	}
	if n, _ := h.rdb.ZCard(bg, h.key("spend", "due")).Result(); n != 0 {
		t.Errorf("%d left among the due", n)
	}
	h.checked()
}

func filteredPages(t *testing.T, h *harness) {
	// Rows at known instants, one a millisecond, of two producers in turn.
	const n = 1200 // more than one read takes
	_, err := h.rdb.Pipelined(bg, func(p redis.Pipeliner) error {
		for i := range n {
			p.XAdd(bg, &redis.XAddArgs{Stream: h.key("ledger", "miss"), ID: fmt.Sprintf("%d-1", 1000+i), Values: []string{
				"job_id", fmt.Sprintf("j%d", i), "path", []string{"paid", "reject"}[i%2], "producer", fmt.Sprintf("p%d", i%3), "admission", "{}", "cause", "empty", "outcome", "empty",
			}})
		}
		return nil
	})
	h.must(err)
	paid := slackgate.Paid
	for _, tt := range []struct {
		name   string
		filter ledger.Filter
		want   int
		first  string
	}{
		{"all", ledger.Filter{}, n, "j0"},
		{"from", ledger.Filter{FromMS: 1000 + 7}, n - 7, "j7"},
		{"to", ledger.Filter{ToMS: 1000 + 7}, 7, "j0"},
		{"between", ledger.Filter{FromMS: 1005, ToMS: 1006}, 1, "j5"},
		{"nothing between", ledger.Filter{FromMS: 1005, ToMS: 1005}, 0, ""},
		{"path", ledger.Filter{Path: &paid}, n / 2, "j0"},
		{"producer", ledger.Filter{Producer: "p2", FromMS: 1003}, n/3 - 1, "j5"},
		{"nobody", ledger.Filter{Producer: "x"}, 0, ""},
		{"cause", ledger.Filter{Cause: broker.CauseEmpty, Outcome: broker.OutcomeEmpty}, n, "j0"},
		{"other cause", ledger.Filter{Cause: broker.CauseFailed}, 0, ""},
	} {
		for _, limit := range []int{1000, 7} {
			if limit == 7 && tt.want > 100 {
				continue
			}
			got, first, cursor := 0, "", ""
			for {
				p, err := h.MissRows(bg, &tt.filter, cursor, limit)
				h.must(err)
				if got == 0 && len(p.Rows) > 0 {
					first = p.Rows[0].JobID
				}
				if got += len(p.Rows); len(p.Rows) > limit || p.OldestAtMS != 1000 {
					t.Errorf("%s: a page of %d rows, reaching back to %d", tt.name, len(p.Rows), p.OldestAtMS)
				}
				if cursor = p.Next; cursor == "" {
					break
				}
			}
			if got != tt.want || first != tt.first {
				t.Errorf("%s, limit %d: %d rows from %q, want %d from %q", tt.name, limit, got, first, tt.want, tt.first)
			}
		}
	}
}

func trims(t *testing.T, h0 *harness) {
	fill := func(h *harness, n int) {
		h.must(h.SyncClock(bg))
		_, err := h.rdb.Pipelined(bg, func(p redis.Pipeliner) error {
			for i := range n { // one an hour, the last an hour ago
				p.XAdd(bg, &redis.XAddArgs{Stream: h.key("ledger", "spend"), ID: fmt.Sprintf("%d-5", h.NowMS()-int64(n-i)*3600_000), Values: []string{"row", "{}"}})
			}
			return nil
		})
		h.must(err)
	}
	id := func(h *harness, i int) string {
		m, err := h.rdb.XRange(bg, h.key("ledger", "spend"), "-", "+").Result()
		h.must(err)
		return m[i].ID
	}
	for _, tt := range []struct {
		name     string
		archived int // the last archived row's place
		keep     time.Duration
		bound    int64
		dropped  int64
	}{
		{"all archived, none old", 9, 24 * time.Hour, 100, 0},
		{"all archived, some old", 9, 5*time.Hour + time.Minute, 100, 5},
		{"all old, some archived", 3, time.Minute, 100, 4},
		{"none old, but too many", 9, 24 * time.Hour, 6, 4},
		{"too many, and fewer archived", 1, 24 * time.Hour, 6, 2},
		{"too many, and more are old", 9, 2*time.Hour + time.Minute, 6, 8},
	} {
		h := h0.fresh()
		fill(h, 10)
		h.rows = tt.bound
		n, _, err := h.Trim(bg, ledger.Spend, id(h, tt.archived), tt.keep)
		h.must(err)
		left, err := h.rdb.XLen(bg, h.key("ledger", "spend")).Result()
		h.must(err)
		if n != tt.dropped || left != 10-tt.dropped {
			t.Errorf("%s: dropped %d, %d left; want %d dropped", tt.name, n, left, tt.dropped)
		}
	}
	// With an archive booking drops nothing; without one it does.
	for _, expected := range []bool{false, true} {
		h := h0.fresh()
		h.books = "1000:1000"
		fill(h, 2000)
		if expected {
			h.must(h.ExpectArchive(bg))
		}
		c := h.started("j")
		h.openAttempt(c, 1)
		h.must(h.Settle(bg, h.attempt(c, 1, 1, 1)))
		n, err := h.rdb.XLen(bg, h.key("ledger", "spend")).Result()
		h.must(err)
		if expected != (n == 2001) {
			t.Errorf("archive %v: %d rows", expected, n)
		}
	}
}
