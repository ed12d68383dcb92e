package main

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"leeway/broker/wire"
)

func TestAdvice(t *testing.T) {
	away := &url.Error{Op: "Get", URL: "http://h", Err: errors.New("refused")}
	for _, tt := range []struct {
		name, command string
		err           error
		says          string // "" for no advice
	}{
		{"the API is away", "jobs list", away, "--api or LEEWAY_API"},
		{"what is drilled is away", "drill run <name>", away, "--api says where it is"},
		{"what is checked is away", "healthcheck <url>", away, ""},
		{"the error says it all", "submit <files>", errors.New("no such file"), ""},
		{"no key", "jobs", &wire.Problem{Status: 401}, "LEEWAY_KEY"},
		{"a producer's key", "flags", &wire.Problem{Status: 403}, "on-call key"},
		{"an unknown name", "jobs", &wire.Problem{Status: 404}, "check the name"},
		{"refused for now", "submit", &wire.Problem{Status: 429, RetryAfterMS: 1}, "--retry-rejected-until"},
		{"refused for good", "submit", &wire.Problem{Status: 429}, "longer --deadline"},
		{"the gate cannot say", "pools", &wire.Problem{Status: 503}, "/readyz"},
		{"a fault of the API", "pools", &wire.Problem{Status: 500, Reason: wire.ReasonInternal}, "log says more"},
		{"a batch that was taken back", "submit", &wire.Problem{Status: 409, Reason: wire.ReasonBatchCancelled}, "a new batch"},
		{"out of order", "drain", &wire.Problem{Status: 409, Reason: wire.ReasonOrder}, "shows the state"},
		{"a key used twice", "submit", &wire.Problem{Status: 409, Reason: wire.ReasonKeyConflict}, "shows the state"},
		{"bad input", "submit", &wire.Problem{Status: 400, Reason: wire.ReasonInvalidField}, "correct what is named"},
	} {
		got := advice(tt.command, tt.err)
		if (got == "") != (tt.says == "") || !strings.Contains(got, tt.says) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.says)
		}
	}
}
