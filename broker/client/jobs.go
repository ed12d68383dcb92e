package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"leeway/broker"
	"leeway/broker/wire"
)

// Cancel takes back a job that has not ended. result is "cancelled" when it was
// waiting, "running" when its worker will cut it, "late" when its deadline had
// passed, which changes nothing. A job that has ended is a *wire.Problem
// with status 409.
func (c *Client) Cancel(ctx context.Context, id string) (result string, err error) {
	return c.remove(ctx, id, "cancel")
}

// Delete deletes text and answer of a job that has ended; its record and its
// ledger rows stay. One that has not ended is a *wire.Problem with status
// 409.
func (c *Client) Delete(ctx context.Context, id string) error {
	_, err := c.remove(ctx, id, "delete")
	return err
}

func (c *Client) remove(ctx context.Context, id, only string) (string, error) {
	var out struct {
		Result string `json:"result"`
	}
	err := c.call(ctx, http.MethodDelete, "/v1/jobs/"+url.PathEscape(id)+"?only="+only, nil, &out)
	return out.Result, err
}

// Event is something that happened to a job.
type Event struct {
	// Name is one of wire's events.
	Name string
	Data json.RawMessage
}

// MaxEventBytes bounds one line of an event stream: an outcome carries the
// answer.
const MaxEventBytes = 16 << 20

// Events tells of a job's events, those that have happened already first, until
// its outcome, which it returns.
func (c *Client) Events(ctx context.Context, id string, tell func(Event)) (*broker.View, error) {
	resp, err := c.open(ctx, http.MethodGet, "/v1/jobs/"+url.PathEscape(id)+"/events", nil, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, MaxEventBytes)
	var e Event
	for lines.Scan() {
		// The API sends an event's name and its data in one line each.
		name, value, _ := bytes.Cut(lines.Bytes(), []byte(": "))
		switch string(name) {
		case "event":
			e.Name = string(value)
		case "data":
			e.Data = bytes.Clone(value)
		case "":
			if e.Name == "" {
				continue // a comment
			}
			tell(e)
			if e.Name == wire.EventOutcome {
				var v broker.View
				if err := json.Unmarshal(e.Data, &v); err != nil {
					return nil, fmt.Errorf("outcome: %w", err)
				}
				return &v, nil
			}
			e = Event{}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return nil, errors.New("the event stream ended before the job did: ask again")
}
