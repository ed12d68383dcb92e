package app

import (
	"context"

	"leeway/broker/httpapi"
	"leeway/broker/metrics"
)

// budgets are the configured budgets and how far they are used.
func (b *base) budgets(ctx context.Context) ([]metrics.Budget, error) {
	a, err := httpapi.Budgets(ctx, b.store, b.config(), nil)
	if err != nil {
		return nil, err
	}
	out := make([]metrics.Budget, len(a.Budgets))
	for i, v := range a.Budgets {
		out[i] = metrics.Budget{Scope: v.Scope, Name: v.Name, CapMicro: v.BudgetMicroPerDay, SpentMicro: v.SpentMicro, ReservedMicro: v.ReservedMicro}
	}
	return out, nil
}
