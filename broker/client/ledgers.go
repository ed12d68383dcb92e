package client

import (
	"context"
	"io"
	"net/url"
	"strconv"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/broker/wire"
)

// Spend reads the whole spend ledger: settled rows and open ones. A row that is
// settled meanwhile may be among both, and is never among neither.
func (c *Client) Spend(ctx context.Context) (settled, open []broker.SpendRow, err error) {
	return readLedger[broker.SpendRow](ctx, c, ledger.Spend)
}

// Misses reads the whole deadline-miss ledger.
func (c *Client) Misses(ctx context.Context) ([]broker.MissRow, error) {
	rows, _, err := readLedger[broker.MissRow](ctx, c, ledger.Misses)
	return rows, err
}

// readLedger reads a ledger page by page. The first page carries the rows that
// are still open.
func readLedger[T any](ctx context.Context, c *Client, k ledger.Kind) (rows, open []T, err error) {
	for cursor := ""; ; {
		page, err := get[struct {
			Rows []T    `json:"rows"`
			Open []T    `json:"open"`
			Next string `json:"next_cursor"`
		}](ctx, c, "/v1/ledgers/"+string(k)+"?limit="+strconv.Itoa(wire.MaxRows)+"&cursor="+url.QueryEscape(cursor))
		if err != nil {
			return nil, nil, err
		}
		rows, open = append(rows, page.Rows...), append(open, page.Open...)
		if cursor = page.Next; cursor == "" {
			return rows, open, nil
		}
	}
}

// Rollups reads the sums of one ledger. q holds the route's parameters: by,
// group, from_ms, to_ms and the filters.
func (c *Client) Rollups(ctx context.Context, k ledger.Kind, q url.Values) (*wire.RollupAnswer, error) {
	return get[wire.RollupAnswer](ctx, c, "/v1/ledgers/rollups?"+with(q, "ledger", string(k)).Encode())
}

// CheckLedgers holds the books against each other. It takes as long as reading
// all of both ledgers does.
func (c *Client) CheckLedgers(ctx context.Context) (*ledger.Report, error) {
	return get[ledger.Report](ctx, c, "/v1/ledgers/check")
}

// StreamRows copies the rows of one ledger to w, as CSV or NDJSON. An error
// after the first byte means that what was written is not the whole.
func (c *Client) StreamRows(ctx context.Context, k ledger.Kind, f ledger.Format, q url.Values, w io.Writer) error {
	return c.copy(ctx, string(k), with(q, "format", string(f)), w)
}

// StreamRollups copies the sums of one ledger to w, as CSV or NDJSON.
func (c *Client) StreamRollups(ctx context.Context, k ledger.Kind, f ledger.Format, q url.Values, w io.Writer) error {
	return c.copy(ctx, "rollups", with(with(q, "ledger", string(k)), "format", string(f)), w)
}

func (c *Client) copy(ctx context.Context, what string, q url.Values, w io.Writer) error {
	body, err := c.stream(ctx, "/v1/ledgers/"+what+"?"+q.Encode())
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	_, err = io.Copy(w, body)
	return err
}

// Budgets reads the budgets that the key may see, and how far they are used.
func (c *Client) Budgets(ctx context.Context) (*wire.BudgetsAnswer, error) {
	return get[wire.BudgetsAnswer](ctx, c, "/v1/budgets")
}
