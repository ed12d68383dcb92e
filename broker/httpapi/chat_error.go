package httpapi

import (
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
		e.Param, e.Message = &p.Field, strings.TrimPrefix(p.Detail, p.Field+": ")
	}
	return apiErrorBody{e}
}

// longestClientWait is what the official clients wait at most when they are
// told to: beyond it some of them retry sooner than told.
const longestClientWait = 59 * time.Second

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
