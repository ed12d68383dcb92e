package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"leeway/broker/flag"
	"leeway/broker/wire"
)

// Flags reads every flag as it holds now.
func (c *Client) Flags(ctx context.Context) ([]wire.FlagView, error) {
	out, err := get[struct {
		Flags []wire.FlagView `json:"flags"`
	}](ctx, c, "/v1/flags")
	if err != nil {
		return nil, err
	}
	return out.Flags, nil
}

func flagPath(n flag.Name) string { return "/v1/flags/" + url.PathEscape(string(n)) }

// SetFlag sets a flag and returns its new state and what it does to the gate.
func (c *Client) SetFlag(ctx context.Context, n flag.Name, ch *wire.FlagChange) (*wire.FlagAnswer, error) {
	return call[wire.FlagAnswer](ctx, c, http.MethodPut, flagPath(n), ch, nil)
}

// ClearFlag returns a flag to its value from configuration.
func (c *Client) ClearFlag(ctx context.Context, n flag.Name, class, by, reason string) (*wire.FlagAnswer, error) {
	q := url.Values{"reason": {reason}, "by": {by}, "class": {class}}
	return call[wire.FlagAnswer](ctx, c, http.MethodDelete, flagPath(n)+"?"+q.Encode(), nil, nil)
}

// Audit reads the newest changes of flags, newest first.
func (c *Client) Audit(ctx context.Context, limit int) ([]flag.Change, error) {
	out, err := get[struct {
		Changes []flag.Change `json:"changes"`
	}](ctx, c, "/v1/audit?limit="+strconv.Itoa(limit))
	if err != nil {
		return nil, err
	}
	return out.Changes, nil
}

// Pools reads the pools' state.
func (c *Client) Pools(ctx context.Context) (*wire.Pools, error) {
	return get[wire.Pools](ctx, c, "/v1/pools")
}

// Gate reads the gate's view, and what it would say to a job of the class; empty:
// the default one.
func (c *Client) Gate(ctx context.Context, class string) (*wire.GateAnswer, error) {
	path := "/v1/gate"
	if class != "" {
		path += "?" + url.Values{"class": {class}}.Encode()
	}
	return get[wire.GateAnswer](ctx, c, path)
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
	path := "/v1/pools/" + url.PathEscape(pool)
	if backend != "" {
		path += "/backends/" + url.PathEscape(backend)
	}
	return call[wire.Pools](ctx, c, http.MethodPost, path+"/"+what, o, nil)
}
