package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/admission"
	"leeway/slackgate"
)

// Headers that tell a limited producer where it stands, as revision 11 of the
// IETF's draft-ietf-httpapi-ratelimit-headers has them.
const (
	HeaderRateLimit       = "RateLimit"
	HeaderRateLimitPolicy = "RateLimit-Policy"
)

// The names of the two policies. Amounts of the second are concurrent requests.
const (
	policySubmissions = "submissions"
	policyInFlight    = "in-flight"
)

// policyHeader tells what a producer may do.
func policyHeader(h http.Header, q slackgate.Quota) {
	var policies []string
	if q.IntervalUS > 0 {
		// As many as may come at once, in the time in which they are made good;
		// windows are whole seconds.
		n, w := q.Burst(), ceilSeconds(q.Burst()*q.IntervalUS)
		if n*q.IntervalUS < 1e6 {
			n, w = 1e6/q.IntervalUS, 1
		}
		policies = append(policies, fmt.Sprintf("%q;q=%d;w=%d", policySubmissions, n, w))
	}
	if q.MaxInFlight > 0 {
		policies = append(policies, fmt.Sprintf("%q;q=%d;qu=%q", policyInFlight, q.MaxInFlight, "concurrent-requests"))
	}
	if len(policies) > 0 {
		h.Set(HeaderRateLimitPolicy, strings.Join(policies, ", "))
	}
}

// limitHeaders tells what a producer may do and what is left of it after a
// decision.
func limitHeaders(h http.Header, v *broker.Verdict) {
	q := v.Quota
	policyHeader(h, q)
	var left []string
	if q.IntervalUS > 0 {
		ahead := q.AheadUS
		if q.InRate() {
			ahead += q.IntervalUS
		}
		left = append(left, fmt.Sprintf("%q;r=%d;t=%d", policySubmissions, q.Remaining(), ceilSeconds(ahead)))
	}
	if q.MaxInFlight > 0 && q.InRate() { // else nobody looked
		used := q.InFlight
		if v.Admitted() {
			used++
		}
		left = append(left, fmt.Sprintf("%q;r=%d", policyInFlight, max(0, q.MaxInFlight-used)))
	}
	if len(left) > 0 {
		h.Set(HeaderRateLimit, strings.Join(left, ", "))
	}
}

// producerOf is whose rate a submission counts in, as far as that could be read.
func producerOf(who caller, sub *submission) string {
	if sub != nil {
		return sub.Producer
	}
	return who.name
}

// charge has what is no job count in its producer's rate; nil: there is none.
func (s *Server) charge(ctx context.Context, producer string) *admission.Offered {
	if q := s.Config().Quota(producer); q.IntervalUS == 0 {
		return nil
	}
	return new(s.Admitter.Charge(ctx, producer))
}

// wrongOr is what to tell of a submission that is no job: what is wrong with it,
// or that it came faster than its producer may submit.
func wrongOr(v *broker.Verdict, wrong error) error {
	if v.Reason == "" {
		return wrong
	}
	return refusal(v)
}

// charged counts a submission that is no job, and is what to tell of it.
func (s *Server) charged(c echo.Context, producer string, wrong error) error {
	counted := s.charge(c.Request().Context(), producer)
	if counted == nil {
		return wrong
	}
	v, _ := counted.Wait(c.Request().Context()) // a store that is away makes nothing right
	limitHeaders(c.Response().Header(), &v)
	return wrongOr(&v, wrong)
}

func ceilSeconds(us int64) int64 { return (us + 999_999) / 1_000_000 }
