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
	"leeway/broker/store"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// Budgets reads the budgets of a configuration and how far they are used,
// producers before classes, by name. want chooses; nil takes all.
func Budgets(ctx context.Context, s store.Store, cfg *config.Config, want func(scope, name string) bool) (*wire.BudgetsAnswer, error) {
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
		add(wire.ScopeProducer, n, ledger.ProducerField(n), cfg.Producers[n].BudgetMicroPerDay)
	}
	for _, n := range slices.Sorted(maps.Keys(cfg.Classes)) {
		add(wire.ScopeClass, n, ledger.ClassField(n), cfg.Classes[n].BudgetMicroPerDay)
	}
	now, err := s.Budgets(ctx, used)
	if err != nil {
		return nil, err
	}
	a := &wire.BudgetsAnswer{
		NowMS: now, Day: time.UnixMilli(now).UTC().Format(time.DateOnly), ResetsAtMS: now + slackgate.DayLeftMS(now),
		Currency: cfg.Currency(), Budgets: make([]wire.BudgetView, 0, len(order)),
	}
	for _, n := range order {
		b := used[n.field]
		a.Budgets = append(a.Budgets, wire.BudgetView{
			Scope: n.scope, Name: n.name, BudgetMicroPerDay: b.CapMicro,
			SpentMicro: b.SpentMicro, ReservedMicro: b.ReservedMicro, LeftMicro: b.LeftMicro(),
		})
	}
	return a, nil
}

func (s *Server) budgets(c echo.Context) error {
	var want func(scope, name string) bool
	if who := callerOf(c); who.role == roleProducer {
		want = func(scope, name string) bool { return scope == wire.ScopeProducer && name == who.name }
	}
	a, err := Budgets(c.Request().Context(), s.Store, s.Config(), want)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, a)
}
