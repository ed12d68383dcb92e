package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"leeway/broker/flag"
	"leeway/broker/wire"
)

// Flags reads every flag as it holds now.
func (c *Client) Flags(ctx context.Context) ([]wire.FlagView, error) {
	var out struct {
		Flags []wire.FlagView `json:"flags"`
	}
	err := c.call(ctx, http.MethodGet, "/v1/flags", nil, &out)
	return out.Flags, err
}

// SetFlag sets a flag and returns its new state and what it does to the gate.
func (c *Client) SetFlag(ctx context.Context, n flag.Name, ch *wire.FlagChange) (*wire.FlagAnswer, error) {
	body, err := json.Marshal(ch)
	if err != nil {
		return nil, err
	}
	var out wire.FlagAnswer
	return &out, c.call(ctx, http.MethodPut, "/v1/flags/"+url.PathEscape(string(n)), body, &out)
}

// ClearFlag returns a flag to its value from configuration.
func (c *Client) ClearFlag(ctx context.Context, n flag.Name, class, by, reason string) (*wire.FlagAnswer, error) {
	q := url.Values{"reason": {reason}, "by": {by}, "class": {class}}
	var out wire.FlagAnswer
	return &out, c.call(ctx, http.MethodDelete, "/v1/flags/"+url.PathEscape(string(n))+"?"+q.Encode(), nil, &out)
}

// Audit reads the newest changes of flags, newest first.
func (c *Client) Audit(ctx context.Context, limit int) ([]flag.Change, error) {
	var out struct {
		Changes []flag.Change `json:"changes"`
	}
	err := c.call(ctx, http.MethodGet, "/v1/audit?limit="+strconv.Itoa(limit), nil, &out)
	return out.Changes, err
}

// Pools reads the pools' state.
func (c *Client) Pools(ctx context.Context) (*wire.Pools, error) {
	var out wire.Pools
	return &out, c.call(ctx, http.MethodGet, "/v1/pools", nil, &out)
}

// Gate reads the gate's view, and what it would say to a job of the class; empty:
// the default one.
func (c *Client) Gate(ctx context.Context, class string) (*wire.GateAnswer, error) {
	path := "/v1/gate"
	if class != "" {
		path += "?" + url.Values{"class": {class}}.Encode()
	}
	var out wire.GateAnswer
	return &out, c.call(ctx, http.MethodGet, path, nil, &out)
}

// Drain closes a pool to newcomers; Resume opens it again. With backend set,
// they concern that backend of the pool alone.
func (c *Client) Drain(ctx context.Context, pool, backend string, o *wire.Order) (*wire.Pools, error) {
	return c.order(ctx, pool, backend, "drain", o)
}

// Resume undoes Drain.
func (c *Client) Resume(ctx context.Context, pool, backend string, o *wire.Order) (*wire.Pools, error) {
	return c.order(ctx, pool, backend, "resume", o)
}

func (c *Client) order(ctx context.Context, pool, backend, what string, o *wire.Order) (*wire.Pools, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	path := "/v1/pools/" + url.PathEscape(pool)
	if backend != "" {
		path += "/backends/" + url.PathEscape(backend)
	}
	var out wire.Pools
	return &out, c.call(ctx, http.MethodPost, path+"/"+what, body, &out)
}
