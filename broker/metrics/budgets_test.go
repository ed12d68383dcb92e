package metrics

import (
	"context"
	"testing"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/broker/wire"
	"leeway/slackgate"
)

func TestBudgets(t *testing.T) {
	inBubble(t, func(b *bench) {
		ctx := context.Background()
		b.Budgets(func(ctx context.Context) (*wire.BudgetsAnswer, error) {
			used := map[string]*slackgate.Budget{ledger.ClassField("c"): {Set: true, CapMicro: 1000}}
			_, err := b.store.Budgets(ctx, used)
			u := used[ledger.ClassField("c")]
			return &wire.BudgetsAnswer{Budgets: []wire.BudgetView{{
				Scope: "class", Name: "c", BudgetMicroPerDay: u.CapMicro, SpentMicro: u.SpentMicro, ReservedMicro: u.ReservedMicro,
			}}}, err
		})
		row := broker.SpendRow{JobID: "j", Attempt: 1, Path: slackgate.Paid, Class: "c", Backend: "lab", Currency: "USD", Priced: true}
		if err := b.store.OpenProbe(ctx, &row); err != nil {
			t.Fatal(err)
		}
		row.CostMicro, row.Known = 70, broker.KnownReported
		if err := b.store.Settle(ctx, row); err != nil {
			t.Fatal(err)
		}
		b.redis.HSet("{t}:budget:reserved", "c:c", "30")
		b.want(b.scrape(), map[string]string{
			`leeway_budget_cap_micro{name="c",scope="class"}`: "1000", `leeway_budget_spent_micro{name="c",scope="class"}`: "70",
			`leeway_budget_reserved_micro{name="c",scope="class"}`: "30",
		})
		b.redis.SetError("away")
		if v, ok := b.scrape()[`leeway_budget_spent_micro{name="c",scope="class"}`]; ok {
			t.Errorf("%s spent, says a store that does not answer", v)
		}
		b.redis.SetError("")
	})
}
