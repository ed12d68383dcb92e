package client

import (
	"context"
	"net/http"

	"leeway/broker/wire"
)

// Budgets reads the budgets that the key may see, and how far they are used.
func (c *Client) Budgets(ctx context.Context) (*wire.BudgetsAnswer, error) {
	var out wire.BudgetsAnswer
	return &out, c.call(ctx, http.MethodGet, "/v1/budgets", nil, &out)
}
