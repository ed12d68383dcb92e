package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"leeway/broker/wire"
)

// Lines is where the lines of a batch go.
type Lines struct {
	// Batch is the id of a batch on record; empty: a new one.
	Batch string
	// Key is the idempotency key of a new batch: sent again under the same key
	// it is the same batch.
	Key string
	// Opened is told the batch's id before the first verdict; nil: nobody is.
	Opened func(id string)
}

// SendLines sends submissions as NDJSON, a [Job] with a custom_id a line, and
// tells each line's verdict, in order, while the lines go out. An error after
// some verdicts leaves the other lines unknown: sent again they are named by
// their custom_id. The body is read to its end or to the first error; an
// io.Closer among them is closed.
func (c *Client) SendLines(ctx context.Context, to *Lines, body io.Reader, tell func(*wire.BatchLine) error) error {
	path := "/v1/jobs/batch"
	if to.Batch != "" {
		path = batchPath(to.Batch)
	}
	header := http.Header{"Content-Type": {"application/x-ndjson"}}
	if to.Key != "" && to.Batch == "" {
		header.Set(wire.HeaderIdempotencyKey, to.Key)
	}
	resp, err := c.do(ctx, http.MethodPost, path, body, header)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if to.Opened != nil {
		to.Opened(resp.Header.Get(wire.HeaderBatchID))
	}
	return ndjson(resp.Body, tell)
}

// ndjson decodes a body line by line.
func ndjson[T any](body io.Reader, tell func(*T) error) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, MaxEventBytes)
	for lines.Scan() {
		var v T
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			return fmt.Errorf("a line of the answer: %w", err)
		}
		if err := tell(&v); err != nil {
			return err
		}
	}
	return lines.Err()
}

func batchPath(id string) string { return "/v1/batches/" + url.PathEscape(id) }

// Batch reads how far a batch is, waiting up to wait for it to be done.
func (c *Client) Batch(ctx context.Context, id string, wait time.Duration) (*wire.Batch, error) {
	return get[wire.Batch](ctx, c, batchPath(id)+"?wait="+wait.String())
}

// Batches lists the newest batches. q holds the route's parameters.
func (c *Client) Batches(ctx context.Context, q url.Values) (*wire.BatchList, error) {
	return get[wire.BatchList](ctx, c, "/v1/batches?"+q.Encode())
}

// BatchLines tells the lines of a batch in their order. q holds the route's
// filters.
func (c *Client) BatchLines(ctx context.Context, id string, q url.Values, tell func(*wire.LineView) error) error {
	for cursor := "0"; cursor != ""; {
		asked := with(with(q, "cursor", cursor), "limit", strconv.Itoa(wire.MaxListed))
		p, err := get[wire.LinePage](ctx, c, batchPath(id)+"/lines?"+asked.Encode())
		if err != nil {
			return err
		}
		for _, l := range p.Lines {
			if err := tell(l); err != nil {
				return err
			}
		}
		cursor = p.Next
	}
	return nil
}

// BatchResults tells the lines whose jobs have ended, from a cursor on (0: from
// the first), in the order of the ends. When there is none it waits up to wait
// for the next.
func (c *Client) BatchResults(ctx context.Context, id string, cursor int64, wait time.Duration, tell func(*wire.ResultLine) error) error {
	body, err := c.stream(ctx, fmt.Sprintf("%s/results?cursor=%d&wait=%s", batchPath(id), cursor, wait))
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	return ndjson(body, tell)
}

// CancelBatch takes a batch back.
func (c *Client) CancelBatch(ctx context.Context, id string) (*wire.BatchCancelResult, error) {
	return call[wire.BatchCancelResult](ctx, c, http.MethodDelete, batchPath(id), nil, nil)
}

// Lost reports whether an error says nothing of what became of a request: its
// reply was lost, or the API could not give one. Asking again may help.
func Lost(err error) bool {
	if err == nil {
		return false
	}
	p, told := errors.AsType[*wire.Problem](err)
	return !told || p.Status/100 == 5
}
