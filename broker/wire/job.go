package wire

import (
	"leeway/broker"
	"leeway/slackgate"
)

// JobList is a page of jobs, newest first.
type JobList struct {
	Jobs []*broker.Job `json:"jobs"`
	Next string        `json:"next_cursor,omitempty"`
}

// The events of a job, in their order. A job that never ran has no running, one
// without answer text no first_byte; after a lost worker running may come again.
const (
	EventVerdict   = "verdict"    // a [Verdict]
	EventRunning   = "running"    // an [EventAt]: a worker has claimed the job
	EventFirstByte = "first_byte" // an [EventAt]: the first answer text came
	EventOutcome   = "outcome"    // a [broker.Job]; the stream ends
)

// EventAt says when something happened to a job.
type EventAt struct {
	JobID string         `json:"job_id"`
	Path  slackgate.Path `json:"path"`
	// AtMS is the instant on the broker's clock.
	AtMS int64 `json:"at_ms"`
}
