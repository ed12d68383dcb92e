package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/wire"
	"leeway/slackgate"
)

const budgetDoc = `
producers: {nightly: {budget_micro_per_day: 10000}, poor: {budget_micro_per_day: 999}, rich: {}}
classes:
  summary: {}
  paid: {prefer: paid-only}
  tight: {prefer: paid-only, budget_micro_per_day: 1500}
`

func (a *api) budgets() map[string]wire.BudgetView {
	a.t.Helper()
	w := a.send(http.MethodGet, "/v1/budgets", "")
	var got wire.BudgetsAnswer
	a.must(json.Unmarshal(w.Body.Bytes(), &got))
	out := map[string]wire.BudgetView{}
	for _, b := range got.Budgets {
		out[b.Scope+" "+b.Name] = b
	}
	return out
}

func (a *api) submitAs(producer, class string) *answer {
	a.t.Helper()
	return a.submit(fmt.Sprintf(`{"text":"x","producer":%q,"class":%q,"deadline_ms":600000}`, producer, class))
}

func TestBudgetRefusals(t *testing.T) {
	inAPI(t, budgetDoc, func(a *api) {
		for _, tt := range []struct {
			producer, class string
			reason, limit   string
			path, retry     string
		}{
			{"rich", "paid", "", "", "paid", ""},
			{"", "paid", "", "", "paid", ""},
			{"poor", "summary", "", "", "free", ""},                                 // its money closes paid and nothing else
			{"poor", "paid", "reject_budget", "producer_budget", "reject", ""},      // no day's budget reaches
			{"nightly", "tight", "", "", "paid", ""},                                //
			{"nightly", "tight", "reject_budget", "class_budget", "reject", "soon"}, // until a job ends
		} {
			w := a.submitAs(tt.producer, tt.class)
			v := w.problem.Verdict
			if w.Code == http.StatusAccepted {
				v = &wire.Verdict{}
				a.must(json.Unmarshal(w.Body.Bytes(), v))
			}
			if w.problem.Reason != tt.reason || string(v.Limit) != tt.limit || v.Path.String() != tt.path || (w.Header().Get("Retry-After") != "") != (tt.retry != "") {
				t.Errorf("%s, %s: %d %s, Retry-After %q", tt.producer, tt.class, w.Code, w.Body, w.Header().Get("Retry-After"))
			}
		}
		b := a.budgets()
		if got := b["class tight"]; len(b) != 3 || got.ReservedMicro != 1000 || got.LeftMicro != 500 || b["producer nightly"].LeftMicro != 9000 || b["producer poor"].LeftMicro != 999 {
			t.Errorf("%+v", b)
		}
		// What is spent is gone until the next day.
		for {
			c, _, err := a.store.Claim(context.Background(), slackgate.Paid, 10, time.Minute)
			a.must(err)
			if c == nil {
				break
			}
			row := broker.SpendRow{JobID: c.ID, Attempt: 1, Path: c.Path, Class: c.Class, Producer: c.Producer, Backend: "b", Currency: "USD", Priced: true, MaxCostMicro: 800}
			a.must(a.store.OpenSpend(context.Background(), c, &row))
			row.CostMicro, row.Known = 600, broker.KnownReported
			_, err = a.store.Finish(context.Background(), c, &broker.Finish{Outcome: broker.OutcomeUsable, Answer: "x"}, row)
			a.must(err)
		}
		if got := a.budgets()["class tight"]; got.SpentMicro != 600 || got.ReservedMicro != 0 {
			t.Errorf("%+v", got)
		}
		w := a.submitAs("nightly", "tight")
		left := slackgate.DayLeftMS(a.store.NowMS())
		if v := w.problem.Verdict; w.Code != 429 || v.RetryAfterMS < left-1000 || v.RetryAfterMS > left+60_000 {
			t.Errorf("%d ms are left of the day: %s", left, w.Body)
		}
		time.Sleep(time.Duration(left) * time.Millisecond)
		a.live(2, 1)
		if w := a.submitAs("nightly", "tight"); w.Code != http.StatusAccepted {
			t.Errorf("the next day: %d %s", w.Code, w.Body)
		}
	})
}

// A hundred callers at once get what the reservation allows and no more, and
// when they take their jobs back, or just go away, all of it is free again.
func TestParallelSubmissionsAgainstABudget(t *testing.T) {
	inAPI(t, budgetDoc, func(a *api) {
		const callers = 200
		var wg sync.WaitGroup
		var mu sync.Mutex
		var ids []string
		reasons := map[string]int{}
		for range callers {
			wg.Go(func() {
				w := a.submitAs("nightly", "paid")
				mu.Lock()
				defer mu.Unlock()
				if reasons[w.problem.Reason]++; w.Code == http.StatusAccepted {
					var v wire.Verdict
					a.must(json.Unmarshal(w.Body.Bytes(), &v))
					ids = append(ids, v.JobID)
				}
			})
		}
		wg.Wait()
		if len(ids) != 10 || reasons["reject_budget"] != callers-10 {
			t.Errorf("%d admitted, %v", len(ids), reasons)
		}
		if b := a.budgets()["producer nightly"]; b.ReservedMicro != 10_000 || b.LeftMicro != 0 {
			t.Errorf("%+v", b)
		}
		for _, id := range ids {
			if w := a.send(http.MethodDelete, "/v1/jobs/"+id, ""); w.Code != http.StatusOK {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		}
		if b := a.budgets()["producer nightly"]; b.ReservedMicro != 0 || b.SpentMicro != 0 {
			t.Errorf("all taken back: %+v", b)
		}
	})
	// The same through clients that hang up while they wait for the answer.
	const keys = budgetDoc + "access: {producers: [{name: nightly, key_sha256: %s}, {name: poor, key_sha256: %s}, {name: rich, key_sha256: %s}]}"
	inAPI(t, fmt.Sprintf(keys, hashed("n"), hashed("p"), hashed("r")), func(a *api) {
		ctx, hangUp := context.WithCancel(a.t.Context())
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() {
				a.chat(ctx, `{"model":"paid","messages":[{"role":"user","content":"x"}]}`, wire.HeaderDeadline, "600000", "Authorization", "Bearer n")
			})
		}
		synctest.Wait()
		reserved := func() int64 {
			w := a.send(http.MethodGet, "/v1/budgets", "", "Authorization", "Bearer n")
			var got wire.BudgetsAnswer
			a.must(json.Unmarshal(w.Body.Bytes(), &got))
			if len(got.Budgets) != 1 || got.Budgets[0].Name != "nightly" { // its own and no other's
				t.Fatalf("%s", w.Body)
			}
			return got.Budgets[0].ReservedMicro
		}
		if n := reserved(); n != 10_000 {
			t.Errorf("%d reserved", n)
		}
		hangUp()
		wg.Wait()
		synctest.Wait()
		if n := reserved(); n != 0 {
			t.Errorf("%d reserved after all have gone", n)
		}
	})
}
