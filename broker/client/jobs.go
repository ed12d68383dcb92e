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
	"time"

	"leeway/broker"
	"leeway/broker/wire"
)

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
	header := http.Header{}
	if job.IdempotencyKey != "" {
		header.Set(wire.HeaderIdempotencyKey, job.IdempotencyKey)
	}
	return call[wire.Verdict](ctx, c, http.MethodPost, "/v1/jobs", job, header)
}

func jobPath(id string) string { return "/v1/jobs/" + url.PathEscape(id) }

// Get reads a job, waiting up to wait for its end.
func (c *Client) Get(ctx context.Context, id string, wait time.Duration) (*broker.Job, error) {
	return get[broker.Job](ctx, c, jobPath(id)+"?wait="+wait.String())
}

// Wait reads a job until it has ended or ctx is done.
func (c *Client) Wait(ctx context.Context, id string) (*broker.Job, error) {
	for {
		v, err := c.Get(ctx, id, 30*time.Second)
		if err != nil || v.State == broker.StateDone {
			return v, err
		}
	}
}

// Jobs lists the jobs admitted last, newest first. q holds the route's
// parameters.
func (c *Client) Jobs(ctx context.Context, q url.Values) (*wire.JobList, error) {
	return get[wire.JobList](ctx, c, "/v1/jobs?"+q.Encode())
}

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
	out, err := call[struct {
		Result string `json:"result"`
	}](ctx, c, http.MethodDelete, jobPath(id)+"?only="+only, nil, nil)
	if err != nil {
		return "", err
	}
	return out.Result, nil
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
func (c *Client) Events(ctx context.Context, id string, tell func(Event)) (*broker.Job, error) {
	body, err := c.stream(ctx, jobPath(id)+"/events")
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	lines := bufio.NewScanner(body)
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
				var v broker.Job
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
