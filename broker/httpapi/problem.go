package httpapi

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/wire"
	"leeway/slackgate"
)

func problem(status int, reason, detail string) *wire.Problem {
	return &wire.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Reason: reason, Detail: detail}
}

func fieldProblem(status int, reason, field, detail string) *wire.Problem {
	p := problem(status, reason, detail)
	p.Field = field
	return p
}

// unavailableRetryMS is suggested to those who met a gate that cannot say.
const unavailableRetryMS = 1000

// unavailable is a problem that passes by itself.
func unavailable(reason, detail string) *wire.Problem {
	p := problem(http.StatusServiceUnavailable, reason, detail)
	p.RetryAfterMS = unavailableRetryMS
	return p
}

// refusal is the problem document of a submission that was not admitted.
func refusal(v *broker.Verdict) *wire.Problem {
	detail := "the gate refused the job"
	switch v.Reason {
	case slackgate.ReasonDeadline:
		detail = "no slack is left: the deadline lies within the reserve"
	case slackgate.ReasonNoSlack:
		detail = "no pool can answer within the slack that is left"
	case slackgate.ReasonClosed:
		detail = "the pools this class may use are closed"
	case slackgate.ReasonPoolDown:
		detail = "no worker lives in the pools this class may use"
	case slackgate.ReasonGateUnavailable:
		detail = "the gate cannot read its state now; nothing was admitted"
	case slackgate.ReasonBudget:
		whose := wire.ScopeProducer
		if v.Limit == slackgate.LimitClassBudget {
			whose = wire.ScopeClass
		}
		detail = "the " + whose + "'s budget for the day does not reach for the most that the job may cost; no other pool can take it"
	case slackgate.ReasonRate:
		detail = "the producer submits faster than it may"
		if v.Limit == slackgate.LimitInFlight {
			detail = "the producer has as many unfinished jobs as it may have"
		}
	case slackgate.ReasonShare:
		detail = "the producer has its fair share of the pools while others want theirs"
	case slackgate.ReasonPaid, slackgate.ReasonFree:
	}
	var p *wire.Problem
	if v.Reason.Unavailable() {
		p = unavailable(string(v.Reason), detail)
	} else {
		p = problem(http.StatusTooManyRequests, string(v.Reason), detail)
		p.RetryAfterMS = v.RetryAfterMS
	}
	p.Verdict = wire.NewVerdict(v)
	return p
}

// notAdmitted is what to tell of a submission that was not admitted: the
// gate's refusal, or why there is none.
func notAdmitted(v *broker.Verdict, err error) error {
	if v.Reason == "" {
		return err
	}
	p := refusal(v)
	if err != nil {
		p.Detail = broker.TroubleOf(err).Sentence() + "; nothing was admitted"
	}
	return p
}

// knownProblems are the problems of errors that have no details of their own.
var knownProblems = []struct {
	err     error
	problem *wire.Problem
}{
	{
		broker.ErrKeyConflict,
		fieldProblem(http.StatusConflict, wire.ReasonKeyConflict, wire.HeaderIdempotencyKey,
			"the idempotency key is bound to a submission with another body"),
	},
	{
		broker.ErrBatchCancelled,
		problem(http.StatusConflict, wire.ReasonBatchCancelled, "the batch was cancelled: nothing more is taken under its id"),
	},
	{
		broker.ErrBatchFull,
		problem(http.StatusRequestEntityTooLarge, wire.ReasonTooLarge, "the batch has as many lines as a batch may have"),
	},
	{broker.ErrBatchNotFound, problem(http.StatusNotFound, wire.ReasonNotFound, "no such batch on record")},
	{errBusy, unavailable(wire.ReasonBusy, "too much is being read at once")},
	{broker.ErrNotFound, problem(http.StatusNotFound, wire.ReasonNotFound, "no such job on record")},
	{echo.ErrNotFound, problem(http.StatusNotFound, wire.ReasonNotFound, "no such route")},
	{echo.ErrMethodNotAllowed, problem(http.StatusMethodNotAllowed, wire.ReasonMethod, "the route does not take this method")},
}

// asProblem maps whatever a handler returned to a problem document.
func asProblem(err error) *wire.Problem {
	if p, ok := errors.AsType[*wire.Problem](err); ok {
		return p
	}
	if f, ok := errors.AsType[*broker.FieldError](err); ok {
		return fieldProblem(http.StatusBadRequest, wire.ReasonInvalidField, f.Field, f.Error())
	}
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return problem(http.StatusRequestEntityTooLarge, wire.ReasonTooLarge,
			"the body is larger than "+strconv.FormatInt(large.Limit, 10)+" bytes")
	}
	for i := range knownProblems {
		if errors.Is(err, knownProblems[i].err) {
			return new(*knownProblems[i].problem)
		}
	}
	if errors.Is(err, broker.ErrUnavailable) {
		return unavailable(string(slackgate.ReasonGateUnavailable), broker.TroubleOf(err).Sentence())
	}
	return problem(http.StatusInternalServerError, wire.ReasonInternal, "see the log")
}

// fail answers whatever a handler returned.
func (s *Server) fail(err error, c echo.Context) {
	if errors.Is(err, errClientGone) || c.Response().Committed && notTaken(err) {
		return
	}
	p := asProblem(err)
	if p.Reason == wire.ReasonInternal {
		s.Log.Error("request failed", "method", c.Request().Method, "route", c.Path(), "error", err)
	}
	if c.Response().Committed {
		return
	}
	answer := writeProblem
	switch route := c.Path(); {
	case route == routeChat || route == routeModels || official(c.Request()):
		answer = writeAPIError
	case strings.HasPrefix(c.Request().URL.Path, "/v1/") && (errors.Is(err, echo.ErrNotFound) || errors.Is(err, echo.ErrMethodNotAllowed)):
		answer = writeNoRoute
	}
	if err := answer(c, p); err != nil {
		s.Log.Debug("problem not delivered", "error", err)
	}
}

// notTaken reports whether an answer could not be written because its client has
// gone, or reads nothing of it.
func notTaken(err error) bool {
	if errors.Is(err, broker.ErrUnavailable) { // it was the store that did not take it
		return false
	}
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "write" || errors.Is(err, os.ErrDeadlineExceeded)
}

func writeProblem(c echo.Context, p *wire.Problem) error {
	w := c.Response()
	w.Header().Set("Content-Type", "application/problem+json")
	setRetryAfter(w.Header(), p)
	w.WriteHeader(p.Status)
	return json.NewEncoder(w).Encode(p)
}

func setRetryAfter(h http.Header, p *wire.Problem) {
	if p.RetryAfterMS > 0 {
		h.Set("Retry-After", strconv.FormatInt((p.RetryAfterMS+999)/1000, 10))
	}
}
