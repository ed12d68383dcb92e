package attempt

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/rehearsal/lab"
	"leeway/workers/backend"
)

// A backend that does not take a field of its requests is out once a probe was
// told so too, and its state names the option to set. With that it serves.
func TestUnsupportedOptionIsNamed(t *testing.T) {
	for _, tt := range []struct {
		fault, why string
		mend       func(*backend.Config)
	}{
		{
			"no-max-tokens", "unsupported: set options.limit_field: max_completion_tokens",
			func(c *backend.Config) { c.LimitField = backend.LimitMaxCompletionTokens },
		},
		{"no-stream-options", "unsupported: set options.stream_usage: false", func(c *backend.Config) { c.NoStreamUsage = true }},
		{"no-stream-options.mistral", "unsupported: set options.stream_usage: false", func(c *backend.Config) { c.NoStreamUsage = true }},
		{"no-stream-options", "unsupported: set options.stream_usage: false", func(c *backend.Config) { c.NoStream = true }},
	} {
		t.Run(tt.fault, func(t *testing.T) {
			bubble(t, func(w *world) {
				cfg, _ := w.labBackend("primary", lab.Config{}, lab.FaultModelPrefix+tt.fault)
				j := job(10 * second)
				j.Text, j.MaxOutputTokens = labText, 200
				var r *Runner
				c, states := probing(w.t, &r, Config{Backends: []Backend{{Caller: w.client(cfg), P95: second}}})
				r = w.runner(c)
				res, _ := r.Run(w.t.Context(), j, Hooks{})
				advice := strings.TrimPrefix(tt.why, "unsupported: ")
				if res.Outcome != broker.OutcomeFailed || res.Reason != backend.ReasonUnsupported || res.Attempts[0].Advice != advice {
					w.t.Errorf("%s (%s), %+v", res.Outcome, res.Reason, res.Attempts)
				}
				time.Sleep(second)
				if s := r.Upstreams()[0].State(); s.State != broker.BackendOut || s.Why != tt.why {
					w.t.Errorf("%s: %q, want out: %q", s.State, s.Why, tt.why)
				}
				if want := []string{"primary out " + tt.why}; !slices.Equal(states(), want) {
					w.t.Errorf("states told %q, want %q", states(), want)
				}
				tt.mend(&cfg)
				res, _ = w.runner(Config{Backends: []Backend{{Caller: w.client(cfg), P95: second}}}).Run(w.t.Context(), j, Hooks{})
				if res.Outcome != broker.OutcomeUsable {
					w.t.Errorf("with the option set: %s (%s)", res.Outcome, res.Reason)
				}
			})
		})
	}
}

// What a class asks for may be what its model does not take. Its jobs fail and say
// so; the backend serves the others.
func TestUnsupportedOptionOfAClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		a := &fussy{script: script{name: "a", onCall: func(_ context.Context, r backend.Request) { asked = append(asked, r.Options.ReasoningEffort) }}}
		var r *Runner
		cfg, states := probing(t, &r, Config{Backends: []Backend{{
			Caller: a, P95: 100 * time.Millisecond,
			Options: func(class string) backend.Options {
				return backend.Options{ReasoningEffort: map[string]string{"hard": "xhigh"}[class]}
			},
		}}})
		r, _ = NewRunner(cfg)
		outcomes := map[string]broker.Outcome{"hard": broker.OutcomeFailed, "": broker.OutcomeUsable, "plain": broker.OutcomeUsable}
		for _, class := range []string{"hard", "hard", "hard", "hard", "plain", "", "hard"} {
			j := job(10 * second)
			j.Class = class
			if res, _ := r.Run(t.Context(), j, Hooks{}); res.Outcome != outcomes[class] {
				t.Errorf("class %q: %s (%s)", class, res.Outcome, res.Reason)
			}
			synctest.Wait()
		}
		// One probe, which is trusted for a minute.
		for range 2 {
			time.Sleep(longestPause / 2)
			j := job(10 * second)
			j.Class = "hard"
			_, _ = r.Run(t.Context(), j, Hooks{})
			synctest.Wait()
		}
		if len(states()) > 0 {
			t.Errorf("states told: %q", states())
		}
		if want := []string{"xhigh", "", "xhigh", "xhigh", "xhigh", "", "", "xhigh", "xhigh", "xhigh", ""}; !slices.Equal(asked, want) {
			t.Errorf("asked for %q, want %q", asked, want)
		}
	})
}

// fussy takes no effort.
type fussy struct{ script }

func (f *fussy) Generate(ctx context.Context, r backend.Request, obs backend.Observer) (backend.Answer, error) {
	if r.Options.ReasoningEffort == "" {
		return f.script.Generate(ctx, r, obs)
	}
	f.onCall(ctx, r)
	return backend.Answer{Usage: backend.Unbilled()}, &backend.Error{Reason: backend.ReasonUnsupported, Status: 400, Advice: "change or leave out options.reasoning_effort"}
}

// What is kept for reasoning is part of what a call may cost, and of its limit.
func TestReasoningIsPartOfTheLargestCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t)
		var calls []Call
		hooks := l.hooks()
		before := hooks.Before
		hooks.Before = func(ctx context.Context, c Call) error { calls = append(calls, c); return before(ctx, c) }
		r, _ := NewRunner(Config{Backends: []Backend{{
			Caller: &script{name: "a"}, P95: second, Price: fixed(backend.Price{OutputMicroPerMTok: 1_000_000}),
			Options: func(class string) backend.Options {
				return backend.Options{ReasoningTokens: new(map[string]int{"hard": 3000}[class])}
			},
		}}})
		for _, class := range []string{"hard", "plain"} {
			j := job(10 * second)
			j.MaxOutputTokens, j.Class = 400, class
			_, _ = r.Run(t.Context(), j, hooks)
		}
		if calls[0].LargestCostMicro != 3400 || calls[0].OutputLimit != 3400 || calls[1].LargestCostMicro != 400 || calls[1].OutputLimit != 400 {
			t.Errorf("%+v", calls)
		}
	})
}
