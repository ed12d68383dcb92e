package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"

	"leeway/broker/ledger"
	"leeway/broker/wire"
)

// Rollups reads the sums of one ledger. q holds the route's parameters: by,
// group, from_ms, to_ms and the filters.
func (c *Client) Rollups(ctx context.Context, k ledger.Kind, q url.Values) (*wire.RollupAnswer, error) {
	var a wire.RollupAnswer
	if err := c.call(ctx, http.MethodGet, "/v1/ledgers/rollups?"+with(q, "ledger", string(k)).Encode(), nil, &a); err != nil {
		return nil, err
	}
	return &a, nil
}

// CheckLedgers holds the books against each other. It takes as long as reading
// all of both ledgers does.
func (c *Client) CheckLedgers(ctx context.Context) (*ledger.Report, error) {
	var r ledger.Report
	if err := c.call(ctx, http.MethodGet, "/v1/ledgers/check", nil, &r); err != nil {
		return nil, err
	}
	return &r, nil
}

// StreamRows copies the rows of one ledger to w, as CSV or NDJSON. An error
// after the first byte means that what was written is not the whole.
func (c *Client) StreamRows(ctx context.Context, k ledger.Kind, f ledger.Format, q url.Values, w io.Writer) error {
	return c.stream(ctx, "/v1/ledgers/"+string(k)+"?"+with(q, "format", string(f)).Encode(), w)
}

// StreamRollups copies the sums of one ledger to w, as CSV or NDJSON.
func (c *Client) StreamRollups(ctx context.Context, k ledger.Kind, f ledger.Format, q url.Values, w io.Writer) error {
	return c.stream(ctx, "/v1/ledgers/rollups?"+with(with(q, "ledger", string(k)), "format", string(f)).Encode(), w)
}

// with is q with one more parameter.
func with(q url.Values, name, value string) url.Values {
	out := url.Values{name: {value}}
	for k, v := range q {
		if k != name {
			out[k] = v
		}
	}
	return out
}

func (c *Client) stream(ctx context.Context, path string, w io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Base+path, http.NoBody)
	if err != nil {
		return err
	}
	if c.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.Key)
	}
	hc := c.HTTP
	if hc == nil {
		hc = &http.Client{}
	}
	resp, err := hc.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 == 2 {
		_, err := io.Copy(w, resp.Body)
		return err
	}
	var p wire.Problem
	if err := json.NewDecoder(io.LimitReader(resp.Body, MaxResponseBytes)).Decode(&p); err != nil || p.Reason == "" {
		return errors.New(path + ": " + resp.Status)
	}
	return &p
}
