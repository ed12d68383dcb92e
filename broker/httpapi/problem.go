package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/wire"
	"leeway/slackgate"
)

func problem(status int, reason, detail string) *wire.Problem {
	return &wire.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Reason: reason, Detail: detail}
}

// unavailableRetryMS is suggested to those who met a gate that cannot say.
const unavailableRetryMS = 1000

// refusal is the problem document of a submission that was not admitted.
func refusal(v *broker.Verdict) *wire.Problem {
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
	p.Verdict = wire.NewVerdict(v)
	p.RetryAfterMS = retry
	return p
}

func budgetOf(l slackgate.Limit) string {
	if l == slackgate.LimitClassBudget {
		return wire.ScopeClass
	}
	return wire.ScopeProducer
}

// asProblem maps whatever a handler returned to a problem document.
func asProblem(err error) *wire.Problem {
	var p *wire.Problem
	var field *broker.FieldError
	var malformed *malformedError
	var large *http.MaxBytesError
	var echoErr *echo.HTTPError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &field):
		p = problem(http.StatusBadRequest, wire.ReasonInvalidField, field.Error())
		p.Field = field.Field
		return p
	case errors.As(err, &malformed):
		p = problem(http.StatusBadRequest, wire.ReasonInvalidJSON, malformed.Error())
		p.Field = malformed.field
		return p
	case errors.As(err, &large):
		return problem(http.StatusRequestEntityTooLarge, wire.ReasonTooLarge, "the body is larger than "+strconv.FormatInt(large.Limit, 10)+" bytes")
	case errors.Is(err, broker.ErrKeyConflict):
		p = problem(http.StatusConflict, wire.ReasonKeyConflict, "the idempotency key is bound to a submission with another body")
		p.Field = wire.HeaderIdempotencyKey
		return p
	case errors.Is(err, broker.ErrBatchCancelled):
		return problem(http.StatusConflict, wire.ReasonBatchCancelled, "the batch was cancelled: nothing more is taken under its id")
	case errors.Is(err, broker.ErrBatchFull):
		return problem(http.StatusRequestEntityTooLarge, wire.ReasonTooLarge, "the batch has as many lines as a batch may have")
	case errors.Is(err, broker.ErrBatchNotFound):
		return problem(http.StatusNotFound, wire.ReasonNotFound, "no such batch on record")
	case errors.Is(err, errBusy):
		p = problem(http.StatusServiceUnavailable, wire.ReasonBusy, "too much is being read at once")
		p.RetryAfterMS = unavailableRetryMS
		return p
	case errors.Is(err, broker.ErrNotFound):
		return problem(http.StatusNotFound, wire.ReasonNotFound, "no such job on record")
	case errors.Is(err, broker.ErrUnavailable):
		p = problem(http.StatusServiceUnavailable, string(slackgate.ReasonGateUnavailable), broker.TroubleOf(err).Sentence())
		p.RetryAfterMS = unavailableRetryMS
		return p
	case errors.As(err, &echoErr):
		switch echoErr.Code {
		case http.StatusNotFound:
			return problem(echoErr.Code, wire.ReasonNotFound, "no such route")
		case http.StatusMethodNotAllowed:
			return problem(echoErr.Code, wire.ReasonMethod, "the route does not take this method")
		}
	}
	return problem(http.StatusInternalServerError, wire.ReasonInternal, "see the log")
}

// writeProblem sends a problem document.
func writeProblem(w http.ResponseWriter, p *wire.Problem) error {
	w.Header().Set("Content-Type", "application/problem+json")
	retryAfter(w.Header(), p)
	w.WriteHeader(p.Status)
	return json.NewEncoder(w).Encode(p)
}

func retryAfter(h http.Header, p *wire.Problem) {
	if p.RetryAfterMS > 0 {
		h.Set("Retry-After", strconv.FormatInt((p.RetryAfterMS+999)/1000, 10))
	}
}
