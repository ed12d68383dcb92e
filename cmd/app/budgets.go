package app

import (
	"context"

	"leeway/broker/httpapi"
	"leeway/broker/wire"
)

// budgets are the configured budgets and how far they are used.
func (b *base) budgets(ctx context.Context) (*wire.BudgetsAnswer, error) {
	return httpapi.Budgets(ctx, b.store, b.config(), nil)
}
