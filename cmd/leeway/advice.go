package main

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"leeway/broker/wire"
)

// advice is what to do next about a command's error; empty where the error says
// it all.
func advice(command string, err error) string {
	if p, ok := errors.AsType[*wire.Problem](err); ok {
		return problemAdvice(p)
	}
	if _, ok := errors.AsType[*url.Error](err); !ok {
		return ""
	}
	switch first, _, _ := strings.Cut(command, " "); first {
	case "drill":
		return "is the API running there? --api says where it is, and without it the drill starts a Leeway of its own"
	case "healthcheck": // the address is all that it was given
		return ""
	}
	return "is the API running there? `api --embedded` starts one to try things out; --api or LEEWAY_API says where it is"
}

func problemAdvice(p *wire.Problem) string {
	switch {
	case p.Status == http.StatusUnauthorized:
		return "give your key with LEEWAY_KEY"
	case p.Status == http.StatusForbidden:
		return "this takes an on-call key: ask whoever runs the API, or give yours with LEEWAY_KEY"
	case p.Status == http.StatusNotFound:
		return "check the name: `leeway jobs` and `leeway batches` list what there is; a record is kept for a day after the end unless configured otherwise"
	case p.Status == http.StatusTooManyRequests && p.RetryAfterMS > 0:
		return "offer it again later: --retry-rejected-until does"
	case p.Status == http.StatusTooManyRequests:
		return "waiting does not help: give it a longer --deadline, or another --class"
	case p.Status == http.StatusServiceUnavailable:
		return "try again in a moment; GET /readyz says what is wrong"
	case p.Reason == wire.ReasonInternal:
		return "the API's log says more"
	case p.Reason == wire.ReasonBatchCancelled:
		return "submit it as a new batch"
	case slices.Contains([]string{wire.ReasonOrder, wire.ReasonKeyConflict}, p.Reason):
		return "`leeway jobs show` or `leeway pools` shows the state it is in"
	}
	return "correct what is named and try again"
}
