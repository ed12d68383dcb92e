// Package client is a small Go client of the admission API.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"strconv"

	"leeway/broker/wire"
)

// MaxResponseBytes bounds what is read of a response.
const MaxResponseBytes = 64 << 20

// Client talks to one API.
type Client struct {
	// Base is the API's address, for example http://127.0.0.1:8080. Required.
	Base string
	// HTTP defaults to a client with net/http's own transport.
	HTTP *http.Client
	// Key is sent as a bearer token; empty: none.
	Key string
}

// get reads a document.
func get[T any](ctx context.Context, c *Client, path string) (*T, error) {
	return call[T](ctx, c, http.MethodGet, path, nil, nil)
}

// call makes a request, with a body of JSON unless it is nil, and reads the
// document that it is answered with.
func call[T any](ctx context.Context, c *Client, method, path string, body any, header http.Header) (*T, error) {
	send := http.Header{}
	maps.Copy(send, header)
	var in io.Reader = http.NoBody
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		in = bytes.NewReader(raw)
		send.Set("Content-Type", "application/json")
	}
	resp, err := c.do(ctx, method, path, in, send)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, MaxResponseBytes))
	if err != nil {
		return nil, err
	}
	var out T
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// stream asks for a body that may be long, and must be closed.
func (c *Client) stream(ctx context.Context, path string) (io.ReadCloser, error) {
	resp, err := c.do(ctx, http.MethodGet, path, http.NoBody, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// do makes a request and returns the response of one that succeeded, whose body
// must be closed. Any other is an error: a *wire.Problem if the API said what is
// wrong.
func (c *Client) do(ctx context.Context, method, path string, body io.Reader, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.Base+path, body)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, header)
	if c.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.Key)
	}
	hc := c.HTTP
	if hc == nil {
		hc = &http.Client{}
	}
	resp, err := hc.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	var p wire.Problem
	raw, err := io.ReadAll(io.LimitReader(resp.Body, MaxResponseBytes))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &p); err != nil || p.Reason == "" {
		return nil, errors.New(path + ": " + resp.Status)
	}
	if s, err := strconv.ParseInt(resp.Header.Get("Retry-After"), 10, 64); err == nil && s > 0 && s < math.MaxInt64/1000 {
		p.RetryAfterMS = s * 1000
	}
	return nil, &p
}

// with is q with one more parameter.
func with(q url.Values, name, value string) url.Values {
	out := url.Values{}
	maps.Copy(out, q)
	out.Set(name, value)
	return out
}

// Metric reads one series of a Prometheus text page, for example
// `job_deadline_miss_total{path="paid"}`.
func Metric(page []byte, series string) (float64, error) {
	for line := range bytes.Lines(page) {
		if rest, ok := bytes.CutPrefix(line, []byte(series+" ")); ok {
			return strconv.ParseFloat(string(bytes.TrimSpace(rest)), 64)
		}
	}
	return 0, fmt.Errorf("no series %s", series)
}
