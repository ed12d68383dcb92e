package wire

import (
	"strconv"
	"strings"

	"leeway/broker"
	"leeway/slackgate"
)

// Verdict is a decision as it goes over the wire.
type Verdict struct {
	JobID  string           `json:"job_id"`
	Path   slackgate.Path   `json:"path"`
	Reason slackgate.Reason `json:"reason"`
	// SlackMS is deadline - now - reserve.
	SlackMS int64 `json:"slack_ms"`
	// NeedMS is what the slack was compared with, per pool that was asked.
	NeedMS PoolsMS `json:"need_ms"`
	// PredictedWaitMS is how long the job is expected to wait for a worker.
	PredictedWaitMS int64 `json:"predicted_wait_ms"`
	// QueueAgeMS is how long the oldest waiting job has waited, per pool.
	QueueAgeMS PoolsMS `json:"queue_age_ms"`
	ReserveMS  int64   `json:"reserve_ms"`
	// DeadlineAtMS is the instant on the broker's clock, for an admitted job.
	DeadlineAtMS int64 `json:"deadline_at_ms,omitempty"`
	// Limit names what reject_rate and reject_budget were about.
	Limit slackgate.Limit `json:"limit,omitempty"`
	// RetryAfterMS is when the same job might be admitted; absent when waiting
	// cannot help.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
}

// PoolsMS is a number of milliseconds for each pool that has one.
type PoolsMS struct {
	Free *int64 `json:"free,omitempty"`
	Paid *int64 `json:"paid,omitempty"`
}

// Of is the number of a pool; ok is false where there is none.
func (m *PoolsMS) Of(path slackgate.Path) (ms int64, ok bool) {
	if n := m.at(path); n != nil && *n != nil {
		return **n, true
	}
	return 0, false
}

// Set sets the number of a pool.
func (m *PoolsMS) Set(path slackgate.Path, ms int64) {
	if n := m.at(path); n != nil {
		*n = &ms
	}
}

func (m *PoolsMS) at(path slackgate.Path) **int64 {
	switch path {
	case slackgate.Free:
		return &m.Free
	case slackgate.Paid:
		return &m.Paid
	case slackgate.Reject:
	}
	return nil
}

// String gives the numbers as "paid 1200, free 4000"; "none" without any.
func (m PoolsMS) String() string {
	var parts []string
	for _, path := range slackgate.Paths {
		if n, ok := m.Of(path); ok {
			parts = append(parts, path.String()+" "+strconv.FormatInt(n, 10))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// NewVerdict is a decision as it goes over the wire.
func NewVerdict(v *broker.Verdict) *Verdict {
	out := &Verdict{
		JobID: v.JobID, Path: v.Path, Reason: v.Reason, SlackMS: v.SlackMS,
		PredictedWaitMS: v.PredictedWaitMS, ReserveMS: v.ReserveMS, Limit: v.Limit, RetryAfterMS: v.RetryAfterMS,
	}
	for _, p := range slackgate.Paths {
		if n := v.NeedMS[p]; n > 0 && n < slackgate.Unbounded {
			out.NeedMS.Set(p, n)
		}
		out.QueueAgeMS.Set(p, v.QueueAgeMS[p])
	}
	if v.Admitted() {
		out.DeadlineAtMS = v.DeadlineAtMS
	} else {
		out.JobID = "" // a refused job is on no record
	}
	return out
}

// RecordedVerdict is the verdict that a job on record once got.
func RecordedVerdict(v *broker.Job) *Verdict {
	out := &Verdict{
		JobID: v.ID, Path: v.Path, Reason: slackgate.Reason(v.Path.String()),
		SlackMS: v.Admission.SlackMS, PredictedWaitMS: v.Admission.PredictedWaitMS,
		ReserveMS: v.ReserveMS, DeadlineAtMS: v.DeadlineAtMS,
	}
	out.NeedMS.Set(v.Path, v.Admission.NeedMS)
	out.QueueAgeMS.Set(v.Path, v.Admission.QueueAgeMS)
	return out
}
