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
	"time"

	"leeway/broker"
	"leeway/broker/ledger"
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

// Job is a submission.
type Job struct {
	Class           string            `json:"class,omitempty"`
	Text            string            `json:"text"`
	DeadlineMS      int64             `json:"deadline_ms,omitempty"`
	DeadlineAt      string            `json:"deadline_at,omitempty"` // RFC 3339; not both
	MaxOutputTokens int               `json:"max_output_tokens,omitempty"`
	Producer        string            `json:"producer,omitempty"`
	Metadata        map[string]string `json:"metadata,omitempty"`
	// IdempotencyKey makes submitting the same job again harmless; empty: it
	// is another job.
	IdempotencyKey string `json:"-"`
	// CustomID names a line of a batch.
	CustomID string `json:"custom_id,omitempty"`
}

// Submit offers a job. A refusal is an error of type *wire.Problem, with the
// gate's verdict inside when it was the gate that refused. RetryAfterMS says
// when to offer it again; 0: that would not help.
func (c *Client) Submit(ctx context.Context, job *Job) (*wire.Verdict, error) {
	body, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	if job.IdempotencyKey != "" {
		header.Set(wire.HeaderIdempotencyKey, job.IdempotencyKey)
	}
	resp, err := c.open(ctx, http.MethodPost, "/v1/jobs", body, header)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var v wire.Verdict
	if err := json.NewDecoder(io.LimitReader(resp.Body, MaxResponseBytes)).Decode(&v); err != nil {
		return nil, err
	}
	return &v, nil
}

// Get reads a job, waiting up to wait for its end.
func (c *Client) Get(ctx context.Context, id string, wait time.Duration) (*broker.View, error) {
	var v broker.View
	if err := c.call(ctx, http.MethodGet, "/v1/jobs/"+url.PathEscape(id)+"?wait="+wait.String(), nil, &v); err != nil {
		return nil, err
	}
	return &v, nil
}

// Wait reads a job until it has ended or ctx is done.
func (c *Client) Wait(ctx context.Context, id string) (*broker.View, error) {
	for {
		v, err := c.Get(ctx, id, 30*time.Second)
		if err != nil || v.State == broker.StateDone {
			return v, err
		}
	}
}

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
		var page struct {
			Rows []T    `json:"rows"`
			Open []T    `json:"open"`
			Next string `json:"next_cursor"`
		}
		path := "/v1/ledgers/" + string(k) + "?limit=" + strconv.Itoa(wire.MaxRows) + "&cursor=" + url.QueryEscape(cursor)
		if err := c.call(ctx, http.MethodGet, path, nil, &page); err != nil {
			return nil, nil, err
		}
		rows, open = append(rows, page.Rows...), append(open, page.Open...)
		if cursor = page.Next; cursor == "" {
			return rows, open, nil
		}
	}
}

func (c *Client) call(ctx context.Context, method, path string, body []byte, into any) error {
	resp, err := c.open(ctx, method, path, body, nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, MaxResponseBytes))
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// open makes a request and returns the response of one that succeeded, whose
// body must be closed. Any other is an error: a *wire.Problem if the API
// said what is wrong.
func (c *Client) open(ctx context.Context, method, path string, body []byte, header http.Header) (*http.Response, error) {
	if body == nil {
		return c.do(ctx, method, path, http.NoBody, header)
	}
	h := http.Header{"Content-Type": {"application/json"}}
	maps.Copy(h, header)
	return c.do(ctx, method, path, bytes.NewReader(body), h)
}

// do is open for any body.
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
