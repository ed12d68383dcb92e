package httpapi

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"leeway/broker/config"
	"leeway/broker/ledger"
	"leeway/broker/shard"
	"leeway/slackgate"
)

// BudgetsAnswer is GET /v1/budgets: every budget for the on-call, a producer's
// own for the producer.
type BudgetsAnswer struct {
	NowMS int64 `json:"now_ms"`
	// Day is the day that the budgets are for, in UTC; the next begins at
	// ResetsAtMS.
	Day        string       `json:"day"`
	ResetsAtMS int64        `json:"resets_at_ms"`
	Currency   string       `json:"currency"`
	Budgets    []BudgetView `json:"budgets"`
}

// BudgetView is one budget and how far it is used.
type BudgetView struct {
	// Scope is producer or class, Name which.
	Scope string `json:"scope"`
	Name  string `json:"name"`
	// Amounts are micro-units of the answer's currency.
	BudgetMicroPerDay int64 `json:"budget_micro_per_day"`
	SpentMicro        int64 `json:"spent_micro"`
	ReservedMicro     int64 `json:"reserved_micro"`
	LeftMicro         int64 `json:"left_micro"`
}

// Scopes of a budget.
const (
	ScopeProducer = "producer"
	ScopeClass    = "class"
)

// Budgets reads the budgets of a configuration and how far they are used,
// producers before classes, by name. want chooses; nil takes all.
func Budgets(ctx context.Context, store *shard.Store, cfg *config.Config, want func(scope, name string) bool) (*BudgetsAnswer, error) {
	type named struct{ scope, name, field string }
	var order []named
	used := map[string]*slackgate.Budget{}
	add := func(scope, name, field string, micro *int64) {
		if micro == nil || want != nil && !want(scope, name) {
			return
		}
		b := config.Budget(micro)
		used[field] = &b
		order = append(order, named{scope, name, field})
	}
	for _, n := range slices.Sorted(maps.Keys(cfg.Producers)) {
		add(ScopeProducer, n, ledger.ProducerField(n), cfg.Producers[n].BudgetMicroPerDay)
	}
	for _, n := range slices.Sorted(maps.Keys(cfg.Classes)) {
		add(ScopeClass, n, ledger.ClassField(n), cfg.Classes[n].BudgetMicroPerDay)
	}
	now, err := store.Budgets(ctx, used)
	if err != nil {
		return nil, err
	}
	a := &BudgetsAnswer{
		NowMS: now, Day: time.UnixMilli(now).UTC().Format(time.DateOnly), ResetsAtMS: now + slackgate.DayLeftMS(now),
		Currency: cfg.Currency(), Budgets: make([]BudgetView, 0, len(order)),
	}
	for _, n := range order {
		b := used[n.field]
		a.Budgets = append(a.Budgets, BudgetView{
			Scope: n.scope, Name: n.name, BudgetMicroPerDay: b.CapMicro,
			SpentMicro: b.SpentMicro, ReservedMicro: b.ReservedMicro, LeftMicro: b.LeftMicro(),
		})
	}
	return a, nil
}

func (s *Server) budgets(c echo.Context) error {
	var want func(scope, name string) bool
	if who := callerOf(c); who.role == roleProducer {
		want = func(scope, name string) bool { return scope == ScopeProducer && name == who.name }
	}
	a, err := Budgets(c.Request().Context(), s.Store, s.Config(), want)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, a)
}
