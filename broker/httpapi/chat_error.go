package httpapi

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"leeway/broker/wire"
)

// apiError is OpenAI's error object.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

type apiErrorBody struct {
	Error apiError `json:"error"`
}

// asAPIError puts a problem into OpenAI's words.
func asAPIError(p *wire.Problem) apiErrorBody {
	e := apiError{Message: p.Detail, Type: "server_error", Code: p.Reason}
	switch {
	case p.Status == http.StatusUnauthorized:
		e.Type = "authentication_error"
	case p.Status == http.StatusForbidden:
		e.Type = "permission_error"
	case p.Status == http.StatusTooManyRequests:
		e.Type = "rate_limit_error"
	case p.Status < http.StatusInternalServerError:
		e.Type = "invalid_request_error"
	}
	if p.Field != "" {
		e.Param = &p.Field
	}
	return apiErrorBody{e}
}

// longestClientWait is what the official clients wait at most when they are
// told to: beyond it some of them retry sooner than told.
const longestClientWait = 59 * time.Second

// official reports whether a request is an official OpenAI client's.
func official(r *http.Request) bool { return r.Header.Get("X-Stainless-Lang") != "" }

// notTheirBatches keeps OpenAI's clients from taking our batches for theirs: a
// list of ours would be an empty page to them.
func notTheirBatches(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if official(c.Request()) && strings.HasPrefix(c.Request().URL.Path, "/v1/batches") {
			return problem(http.StatusNotFound, wire.ReasonNotFound, "OpenAI's batches are not served: POST /v1/jobs/batch takes documents as NDJSON")
		}
		return next(c)
	}
}

// writeNoRoute answers for a route that there is not, in both shapes: an OpenAI
// client would find no words in a problem document.
func writeNoRoute(c echo.Context, p *wire.Problem) error {
	c.Response().Header().Set("Content-Type", "application/problem+json")
	c.Response().WriteHeader(p.Status)
	return json.NewEncoder(c.Response()).Encode(struct {
		*wire.Problem
		apiErrorBody
	}{p, asAPIError(p)})
}

// writeAPIError answers a chat completion's or the models' failure.
func writeAPIError(c echo.Context, p *wire.Problem) error {
	h := c.Response().Header()
	if v := p.Verdict; v != nil {
		verdictHeaders(h, v)
	}
	retry := time.Duration(p.RetryAfterMS) * time.Millisecond
	setRetryAfter(h, p)
	// Left alone, the clients retry these on a schedule of their own.
	waitable := p.Status == http.StatusTooManyRequests || p.Status >= http.StatusInternalServerError
	if p.Status == http.StatusConflict || waitable && p.Status != http.StatusInternalServerError && (retry == 0 || retry > longestClientWait) {
		h.Set("X-Should-Retry", "false")
	}
	return c.JSON(p.Status, asAPIError(p))
}

func verdictHeaders(h http.Header, v *wire.Verdict) {
	h.Set(wire.HeaderPath, v.Path.String())
	h.Set(wire.HeaderReason, string(v.Reason))
	h.Set(wire.HeaderSlack, strconv.FormatInt(v.SlackMS, 10))
	h.Set(wire.HeaderPredictedWait, strconv.FormatInt(v.PredictedWaitMS, 10))
	if v.JobID != "" {
		h.Set(wire.HeaderJobID, v.JobID)
		h.Set("X-Request-Id", v.JobID) // what the official clients show
	}
}
