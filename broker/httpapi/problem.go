package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/slackgate"
)

// Reasons of problems that are not the gate's. They are stable: clients may
// switch on them.
const (
	ReasonInvalidField = "invalid_field"
	ReasonInvalidJSON  = "invalid_json"
	ReasonTooLarge     = "too_large"
	ReasonMediaType    = "unsupported_media_type"
	ReasonNotFound     = "not_found"
	ReasonMethod       = "method_not_allowed"
	ReasonOrder        = "out_of_order"
	ReasonKeyConflict  = "idempotency_conflict"
	ReasonUnauthorized = "unauthorized"
	ReasonForbidden    = "forbidden"
	ReasonInternal     = "internal"
	// ReasonTooManyStreams is for event streams beyond [MaxStreams].
	ReasonTooManyStreams = "too_many_streams"
	// ReasonBusy is for a body or a line that there is no memory for now.
	ReasonBusy = "busy"
	// ReasonBatchCancelled is for a line of a batch that was taken back.
	ReasonBatchCancelled = "batch_cancelled"
	// ReasonNoModel is for a chat completion of no class.
	ReasonNoModel = "model_not_found"
	// ReasonAnswerChanged is for a stream whose answer was generated twice.
	ReasonAnswerChanged = "answer_changed"
)

// Problem is an RFC 9457 problem document.
//
//nolint:errname // it is a document first, and an error to Go clients
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Reason is stable and from a closed set.
	Reason string `json:"reason"`
	// Field names what was wrong in the input.
	Field string `json:"field,omitempty"`
	// Verdict carries the gate's numbers when it was the gate that refused.
	Verdict *Verdict `json:"verdict,omitempty"`

	// RetryAfterMS is the Retry-After header in milliseconds; 0: waiting does
	// not help.
	RetryAfterMS int64 `json:"-"`
}

func (p *Problem) Error() string { return p.Reason + ": " + p.Detail }

func problem(status int, reason, detail string) *Problem {
	return &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Reason: reason, Detail: detail}
}

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

func (m *PoolsMS) set(path slackgate.Path, ms int64) {
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

func verdict(v *broker.Verdict) *Verdict {
	out := &Verdict{
		JobID: v.JobID, Path: v.Path, Reason: v.Reason, SlackMS: v.SlackMS,
		PredictedWaitMS: v.PredictedWaitMS, ReserveMS: v.ReserveMS, Limit: v.Limit, RetryAfterMS: v.RetryAfterMS,
	}
	for _, p := range slackgate.Paths {
		if n := v.NeedMS[p]; n > 0 && n < slackgate.Unbounded {
			out.NeedMS.set(p, n)
		}
		out.QueueAgeMS.set(p, v.QueueAgeMS[p])
	}
	if v.Admitted() {
		out.DeadlineAtMS = v.DeadlineMS
	} else {
		out.JobID = "" // a refused job is on no record
	}
	return out
}

// unavailableRetryMS is suggested to those who met a gate that cannot say.
const unavailableRetryMS = 1000

// refusal is the problem document of a submission that was not admitted.
func refusal(v *broker.Verdict) *Problem {
	status, detail := http.StatusTooManyRequests, "the gate refused the job"
	retry := v.RetryAfterMS
	switch v.Reason {
	case slackgate.ReasonDeadline:
		detail = "no slack is left: the deadline lies within the reserve"
	case slackgate.ReasonNoSlack:
		detail = "no pool can answer within the slack that is left"
	case slackgate.ReasonClosed:
		detail = "the pools this class may use are closed"
	case slackgate.ReasonPoolDown:
		status, detail, retry = http.StatusServiceUnavailable, "no worker lives in the pools this class may use", unavailableRetryMS
	case slackgate.ReasonGateUnavailable:
		status, detail, retry = http.StatusServiceUnavailable, "the gate cannot read its state now; nothing was admitted", unavailableRetryMS
	case slackgate.ReasonBudget:
		detail = "the " + budgetOf(v.Limit) + "'s budget for the day does not reach for the most that the job may cost; no other pool can take it"
	case slackgate.ReasonRate:
		detail = "the producer submits faster than it may"
		if v.Limit == slackgate.LimitInFlight {
			detail = "the producer has as many unfinished jobs as it may have"
		}
	case slackgate.ReasonShare:
		detail = "the producer has its fair share of the pools while others want theirs"
	case slackgate.ReasonPaid, slackgate.ReasonFree:
	}
	p := problem(status, string(v.Reason), detail)
	p.Verdict = verdict(v)
	p.RetryAfterMS = retry
	return p
}

func budgetOf(l slackgate.Limit) string {
	if l == slackgate.LimitClassBudget {
		return ScopeClass
	}
	return ScopeProducer
}

// asProblem maps whatever a handler returned to a problem document.
func asProblem(err error) *Problem {
	var p *Problem
	var field *broker.FieldError
	var malformed *malformedError
	var large *http.MaxBytesError
	var echoErr *echo.HTTPError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &field):
		p = problem(http.StatusBadRequest, ReasonInvalidField, field.Error())
		p.Field = field.Field
		return p
	case errors.As(err, &malformed):
		p = problem(http.StatusBadRequest, ReasonInvalidJSON, malformed.Error())
		p.Field = malformed.field
		return p
	case errors.As(err, &large):
		return problem(http.StatusRequestEntityTooLarge, ReasonTooLarge, "the body is larger than "+strconv.FormatInt(large.Limit, 10)+" bytes")
	case errors.Is(err, broker.ErrKeyConflict):
		p = problem(http.StatusConflict, ReasonKeyConflict, "the idempotency key is bound to a submission with another body")
		p.Field = HeaderIdempotencyKey
		return p
	case errors.Is(err, broker.ErrBatchCancelled):
		return problem(http.StatusConflict, ReasonBatchCancelled, "the batch was cancelled: nothing more is taken under its id")
	case errors.Is(err, broker.ErrBatchFull):
		return problem(http.StatusRequestEntityTooLarge, ReasonTooLarge, "the batch has as many lines as a batch may have")
	case errors.Is(err, broker.ErrBatchNotFound):
		return problem(http.StatusNotFound, ReasonNotFound, "no such batch on record")
	case errors.Is(err, errBusy):
		p = problem(http.StatusServiceUnavailable, ReasonBusy, "too much is being read at once")
		p.RetryAfterMS = unavailableRetryMS
		return p
	case errors.Is(err, broker.ErrNotFound):
		return problem(http.StatusNotFound, ReasonNotFound, "no such job on record")
	case errors.Is(err, broker.ErrUnavailable):
		p = problem(http.StatusServiceUnavailable, string(slackgate.ReasonGateUnavailable), broker.TroubleOf(err).Sentence())
		p.RetryAfterMS = unavailableRetryMS
		return p
	case errors.As(err, &echoErr):
		switch echoErr.Code {
		case http.StatusNotFound:
			return problem(echoErr.Code, ReasonNotFound, "no such route")
		case http.StatusMethodNotAllowed:
			return problem(echoErr.Code, ReasonMethod, "the route does not take this method")
		}
	}
	return problem(http.StatusInternalServerError, ReasonInternal, "see the log")
}

// write sends the problem.
func (p *Problem) write(w http.ResponseWriter) error {
	w.Header().Set("Content-Type", "application/problem+json")
	p.retryAfter(w.Header())
	w.WriteHeader(p.Status)
	return json.NewEncoder(w).Encode(p)
}

func (p *Problem) retryAfter(h http.Header) {
	if p.RetryAfterMS > 0 {
		h.Set("Retry-After", strconv.FormatInt((p.RetryAfterMS+999)/1000, 10))
	}
}
