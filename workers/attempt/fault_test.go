package attempt

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/workers/backend"
)

// The kinds of fault a backend can show, by the name of the fault, as the
// primary of a job with 10 s, once with a healthy fallback and once alone.
func TestFaults(t *testing.T) {
	const healthy = "The whole answer."
	stream := func(f func(o *out)) reply { return func(o *out, _ int) { f(o) } }
	tests := []struct {
		name string
		play reply // nil: connection refused
		// with a fallback
		with  string // attempts
		ended time.Duration
		// alone
		alone   string
		outcome broker.Outcome
		reason  backend.Reason
	}{
		{"ok", answers(time.Second, time.Second, healthy), "a", 2 * second, "a", broker.OutcomeUsable, ""},
		{
			"retry-after", func(o *out, n int) {
				if n == 0 {
					o.w.Header().Set("Retry-After", "2")
					o.status(429, ``)
					return
				}
				answers(0, 0, healthy)(o, n)
			}, "a:rate_limited a", 2 * second, "a:rate_limited a", broker.OutcomeUsable, "",
		},
		{
			"retry-after, longer than the slack allows", func(o *out, _ int) {
				o.w.Header().Set("Retry-After", "10")
				o.status(429, ``)
			}, "a:rate_limited b", 0, "a:rate_limited", broker.OutcomeFailed, backend.ReasonRateLimited,
		},
		{"throttled", refuses(429, ``), "a:rate_limited b", 0, strings.Repeat(" a:rate_limited", 4)[1:], broker.OutcomeFailed, backend.ReasonRateLimited},
		{
			"flaky", func(o *out, n int) {
				if n == 0 {
					o.status(500, ``)
					return
				}
				answers(0, 0, healthy)(o, n)
			}, "a:upstream_error a", 0, "a:upstream_error a", broker.OutcomeUsable, "",
		},
		{"500 for ever", refuses(500, ``), "a:upstream_error " + "a:upstream_error b", 0, "a:upstream_error " + "a:upstream_error", broker.OutcomeFailed, backend.ReasonUpstreamError},
		{"down, 503", refuses(503, ``), "a:upstream_error b", 0, strings.Repeat(" a:upstream_error", 4)[1:], broker.OutcomeFailed, backend.ReasonUpstreamError},
		{"down, refused", nil, "a:connect b", 0, "a:connect", broker.OutcomeFailed, backend.ReasonConnect},
		{
			"reset", stream(func(o *out) {
				if c, _, err := http.NewResponseController(o.w).Hijack(); err == nil {
					_ = c.Close()
				}
			}), "a:reset b", 0, "a:reset", broker.OutcomeFailed, backend.ReasonReset,
		},
		{"silent", silent, "a:first_byte b", 6 * second, "a:first_byte", broker.OutcomeLate, backend.ReasonFirstByte},
		{"headers-only", stream(func(o *out) { o.send(""); o.sleep(time.Hour) }), "a:first_byte b", 6 * second, "a:first_byte", broker.OutcomeLate, backend.ReasonFirstByte},
		{"comments only", stream(func(o *out) {
			for {
				o.send(": keep-alive\n\n")
				o.sleep(second)
			}
		}), "a:first_byte b", 6 * second, "a:first_byte", broker.OutcomeLate, backend.ReasonFirstByte},
		{"slow, 6 s", answers(6100*time.Millisecond, 0, healthy), "a:first_byte b", 6 * second, "a", broker.OutcomeUsable, ""},
		{"slow, 20 s", answers(20*second, 0, healthy), "a:first_byte b", 6 * second, "a:first_byte", broker.OutcomeLate, backend.ReasonFirstByte},
		{
			"stall", stream(func(o *out) {
				for range 20 {
					o.text("tok ")
				}
				o.sleep(30 * second)
			}), "a:stall b", 4 * second, "a:stall", broker.OutcomeTruncated, backend.ReasonStall,
		},
		{
			"drip", stream(func(o *out) {
				for {
					o.text("tok ")
					o.sleep(3900 * time.Millisecond)
				}
			}), "a:deadline", 10 * second, "a:deadline", broker.OutcomeLate, backend.ReasonDeadline,
		},
		{
			"cut", stream(func(o *out) {
				for range 40 {
					o.text("tok ")
				}
			}), "a:truncated b", 0, "a:truncated", broker.OutcomeTruncated, backend.ReasonTruncated,
		},
		{
			"bad-chunk", stream(func(o *out) { o.text("tok"); o.send("data: {\"choices\":\n\n"); o.end("stop", 1, 1) }),
			"a:bad_answer b", 0, "a:bad_answer", broker.OutcomeFailed, backend.ReasonBadAnswer,
		},
		{
			"no-done", stream(func(o *out) {
				o.text(healthy)
				o.send(`data: {"choices":[{"delta":{},"finish_reason":"stop"}]}` + "\n\n")
				o.sleep(time.Hour)
			}), "a", backend.Tail, "a", broker.OutcomeUsable, "",
		},
		{
			"big-line", stream(func(o *out) { o.text(strings.Repeat("x", 12<<20)); o.end("stop", 1, 1) }),
			"a:too_large b", 0, "a:too_large", broker.OutcomeFailed, backend.ReasonTooLarge,
		},
		{"empty", stream(func(o *out) { o.end("stop", 10, 32) }), "a:empty b", 0, "a:empty", broker.OutcomeEmpty, backend.ReasonEmpty},
		{
			"reasoning-only", stream(func(o *out) {
				o.send(`data: {"choices":[{"delta":{"reasoning":"Let me think"}}]}` + "\n\n")
				o.end("length", 10, 32)
			}), "a:empty b", 0, "a:empty", broker.OutcomeEmpty, backend.ReasonEmpty,
		},
		{
			"tool-only", stream(func(o *out) {
				o.send(`data: {"choices":[{"delta":{"tool_calls":[{"id":"t"}]}}]}` + "\n\n")
				o.end("tool_calls", 10, 32)
			}), "a:tool_call b", 0, "a:tool_call", broker.OutcomeFailed, backend.ReasonToolCall,
		},
		{"error-in-200", refuses(200, `{"error":{"message":"no"},"choices":[]}`), "a:upstream_error " + "a:upstream_error b", 0, "a:upstream_error " + "a:upstream_error", broker.OutcomeFailed, backend.ReasonUpstreamError},
		{"not an answer", refuses(200, `{"ok":true,"bytes":0}`), "a:bad_answer b", 0, "a:bad_answer", broker.OutcomeFailed, backend.ReasonBadAnswer},
		{"context-length", refuses(400, `{"error":{"code":"context_length_exceeded"}}`), "a:context_length b", 0, "a:context_length", broker.OutcomeFailed, backend.ReasonContextLength},
		{"refused", refuses(400, `{"error":{"code":"content_policy_violation"}}`), "a:refused", 0, "a:refused", broker.OutcomeFailed, backend.ReasonRefused},
		{"auth", refuses(401, ``), "a:auth b", 0, "a:auth", broker.OutcomeFailed, backend.ReasonAuth},
		{"quota", refuses(402, ``), "a:quota b", 0, "a:quota", broker.OutcomeFailed, backend.ReasonQuota},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Run("with a fallback", func(t *testing.T) {
				bubble(t, func(w *world) {
					res, l := runPool(w, tt.play, answers(0, 0, healthy))
					if got := attempts(res); got != tt.with {
						t.Errorf("attempts %q, want %q", got, tt.with)
					}
					want := broker.OutcomeUsable
					if !strings.HasSuffix(tt.with, "a") && !strings.HasSuffix(tt.with, "b") {
						want = tt.outcome
					}
					if res.Outcome != want || (want == broker.OutcomeUsable) != (res.Text == healthy && res.Whole) {
						t.Errorf("outcome %s, text %.40q, whole %v, want %s", res.Outcome, res.Text, res.Whole, want)
					}
					// Pauses before another try are jittered.
					if over := res.EndedAt - tt.ended; over < 0 || over > 200*time.Millisecond {
						t.Errorf("ended at %v, want about %v", res.EndedAt, tt.ended)
					}
					l.check()
				})
			})
			t.Run("alone", func(t *testing.T) {
				bubble(t, func(w *world) {
					res, l := runPool(w, tt.play)
					if got := attempts(res); got != tt.alone {
						t.Errorf("attempts %q, want %q", got, tt.alone)
					}
					if res.Outcome != tt.outcome || res.Reason != tt.reason {
						t.Errorf("outcome %s (%s), want %s (%s)", res.Outcome, res.Reason, tt.outcome, tt.reason)
					}
					if res.Outcome != broker.OutcomeUsable && res.Text != "" {
						t.Errorf("text %q of an outcome that is not usable", res.Text)
					}
					if res.EndedAt > 10*second+100*time.Millisecond {
						t.Errorf("ended at %v", res.EndedAt)
					}
					l.check()
					for _, a := range l.settled {
						if a.Usage.Known == "" || a.CostMicro() < 0 {
							t.Errorf("attempt %d: usage %+v cost %d", a.Number, a.Usage, a.CostMicro())
						}
					}
				})
			})
		})
	}
}

// A backend that closes a kept connection as a call goes out on it is called
// once more, at once, and is not thought ill of; on a connection of the call's
// own it has broken off, and so has one that does it again.
func TestKeptConnectionIsClosed(t *testing.T) {
	for _, tt := range []struct {
		name    string
		closes  []int // calls, from 0
		want    string
		state   string
		outcome broker.Outcome
	}{
		{"once", []int{1}, "a:reset a", broker.BackendClosed, broker.OutcomeUsable},
		{"and the fresh one too", []int{1, 2}, "a:reset a:reset", broker.BackendOpen, broker.OutcomeFailed}, //nolint:dupword // the two attempts
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(w *world) {
				cfg := w.backend("a", func(o *out, n int) {
					if !slices.Contains(tt.closes, n) {
						answers(0, 0, "The answer.")(o, n)
					} else if c, _, err := http.NewResponseController(o.w).Hijack(); err == nil {
						_ = c.Close()
					}
				})
				r := w.runner(Config{
					Backends:         []Backend{{Caller: w.client(cfg), P95: 500 * time.Millisecond, Price: fixed(backend.Price{InputMicroPerMTok: 1e6})}},
					FailureThreshold: 1, OpenFor: time.Hour,
				})
				if res, err := r.Run(w.t.Context(), job(10*second), Hooks{}); err != nil || res.Outcome != broker.OutcomeUsable {
					w.t.Fatal(res, err)
				}
				synctest.Wait()
				l := newLedger(w.t)
				res, err := r.Run(w.t.Context(), job(10*second), l.hooks())
				if got := attempts(res); err != nil || got != tt.want || res.Outcome != tt.outcome || res.EndedAt != 0 {
					w.t.Errorf("%s, %s after %v, %v", got, res.Outcome, res.EndedAt, err)
				}
				if s := r.Upstreams()[0].State(); s.State != tt.state {
					w.t.Errorf("backend is %s", s.State)
				}
				// It may have worked on what it was sent.
				l.check()
				if len(l.settled) != 2 || l.settled[0].Usage.Known != unknown {
					w.t.Errorf("booked %+v", l.settled)
				}
			})
		})
	}
}

// runPool runs one job of 10 s against a pool of backends a, b, c.
func runPool(w *world, plays ...reply) (Result, *ledger) {
	w.t.Helper()
	var bs []Backend
	for i, play := range plays {
		cfg := w.backend(string(rune('a'+i)), play)
		cfg.Stall = 4 * second
		bs = append(bs, Backend{Caller: w.client(cfg), P95: 500 * time.Millisecond, Price: fixed(backend.Price{InputMicroPerMTok: 1e6, OutputMicroPerMTok: 3e6})})
	}
	l := newLedger(w.t)
	res, err := w.runner(Config{Backends: bs, OpenFor: time.Hour}).Run(w.t.Context(), job(10*second), l.hooks())
	if err != nil {
		w.t.Fatal(err)
	}
	return res, l
}

// A backend that asks to be left alone is not called by other jobs meanwhile.
func TestRetryAfterHoldsForAll(t *testing.T) {
	bubble(t, func(w *world) {
		a := w.backend("a", func(o *out, n int) {
			if n == 0 {
				o.w.Header().Set("Retry-After", "5")
				o.status(429, ``)
				return
			}
			answers(0, 0, "a")(o, n)
		})
		b := w.backend("b", answers(0, 0, "b"))
		r := w.runner(Config{Backends: []Backend{{Caller: w.client(a), P95: second}, {Caller: w.client(b), P95: second}}})
		for range 5 {
			// 4 s: too short to wait for 5.
			res, err := r.Run(w.t.Context(), job(4*second), Hooks{})
			if err != nil || res.Outcome != broker.OutcomeUsable || res.Text != "b" {
				t.Fatalf("%+v %v", res, err)
			}
		}
		if n := len(w.calls("a")); n != 1 {
			t.Errorf("called %d times while it asked to be left alone", n)
		}
		if s := r.Upstreams()[0].State(); s.State != broker.BackendHeld || s.RetryInMS != 5000 || s.Why != "rate_limited" {
			t.Errorf("%+v", s)
		}
		time.Sleep(5 * second)
		res, _ := r.Run(w.t.Context(), job(4*second), Hooks{})
		if res.Text != "a" {
			t.Errorf("answered by %s", res.Backend)
		}
	})
}

// down: the breaker keeps later jobs away. flap: after 60 s the backend is well
// and a probe brings it back.
func TestFlap(t *testing.T) {
	bubble(t, func(w *world) {
		var states []string
		a := w.backend("a", func(o *out, n int) {
			if time.Since(w.start) < 60*second {
				o.status(503, ``)
				return
			}
			answers(100*time.Millisecond, 0, "a")(o, n)
		})
		b := w.backend("b", answers(100*time.Millisecond, 0, "b"))
		r := w.runner(Config{
			Backends: []Backend{{Caller: w.client(a), P95: second}, {Caller: w.client(b), P95: second}},
			OnState:  func(name, s, why string) { states = append(states, fmt.Sprintf("%s %s %s", name, s, why)) },
		})
		for range 20 {
			res, err := r.Run(w.t.Context(), job(10*second), Hooks{})
			if err != nil || res.Outcome != broker.OutcomeUsable || res.Text != "b" {
				t.Fatalf("%+v %v", res, err)
			}
			time.Sleep(2900 * time.Millisecond)
		}
		// Three calls to open it, then one about every ten seconds.
		if n := len(w.calls("a")); n < 3+4 || n > 3+6 {
			t.Errorf("the dead backend was called %d times in 60 s by 20 jobs", n)
		}
		time.Sleep(12 * second)
		for range 3 {
			res, _ := r.Run(w.t.Context(), job(10*second), Hooks{})
			if res.Text != "a" {
				t.Errorf("served by %q after the backend was well again", res.Text)
			}
		}
		if s := r.Upstreams()[0].State(); s.State != broker.BackendClosed {
			t.Errorf("%+v", s)
		}
		if len(states) < 3 || states[0] != "a open upstream_error" || !strings.HasPrefix(states[len(states)-1], "a closed") {
			t.Errorf("states %q", states)
		}
	})
}

// A dead backend costs later jobs nothing.
func TestDeadBackendIsFreeForLaterJobs(t *testing.T) {
	bubble(t, func(w *world) {
		r := w.runner(Config{Backends: []Backend{
			{Caller: w.client(w.backend("a", silent)), P95: second},
			{Caller: w.client(w.backend("b", answers(100*time.Millisecond, 0, "b"))), P95: second},
		}, OpenFor: time.Hour})
		for i := range 6 {
			res, _ := r.Run(w.t.Context(), job(10*second), Hooks{})
			want := 6100 * time.Millisecond
			if i >= 3 {
				want = 100 * time.Millisecond
			}
			if res.EndedAt != want {
				t.Errorf("job %d took %v, want %v", i, res.EndedAt, want)
			}
		}
	})
}

// A key that is refused takes the backend out at once; a probe brings it back.
func TestAuth(t *testing.T) {
	bubble(t, func(w *world) {
		bad := true
		a := w.backend("a", func(o *out, n int) {
			if bad {
				o.status(401, ``)
				return
			}
			answers(0, 0, "a")(o, n)
		})
		loud := 0
		r := w.runner(Config{
			Backends: []Backend{{Caller: w.client(a), P95: second}},
			OnState: func(_, s, why string) {
				if s == broker.BackendOut && why == "auth" {
					loud++
				}
			},
		})
		res, _ := r.Run(w.t.Context(), job(10*second), Hooks{})
		if res.Outcome != broker.OutcomeFailed || res.Reason != backend.ReasonAuth || res.EndedAt != 0 {
			t.Errorf("%+v", res)
		}
		for range 3 {
			res, _ = r.Run(w.t.Context(), job(10*second), Hooks{})
			if res.Outcome != broker.OutcomeExpired || res.Reason != ReasonNoBackend || res.EndedAt != 0 {
				t.Errorf("%+v", res)
			}
		}
		if n := len(w.calls("a")); n != 1 || loud != 1 {
			t.Errorf("called %d times, told %d times", n, loud)
		}
		l := newLedger(t)
		if err := r.Probe(w.t.Context(), r.Upstreams()[0], "probe-1", l.hooks()); err == nil {
			t.Error("the probe of a backend that refuses the key went well")
		}
		bad = false
		if err := r.Probe(w.t.Context(), r.Upstreams()[0], "probe-2", l.hooks()); err != nil {
			t.Error(err)
		}
		l.check()
		if len(l.settled) != 2 {
			t.Errorf("%d probes booked", len(l.settled))
		}
		if res, _ = r.Run(w.t.Context(), job(10*second), Hooks{}); res.Outcome != broker.OutcomeUsable {
			t.Errorf("%+v", res)
		}
	})
}

func TestContextLengthSparesTheSameModel(t *testing.T) {
	bubble(t, func(w *world) {
		long := refuses(400, `{"error":{"code":"context_length_exceeded"}}`)
		a, b, c := w.backend("a", long), w.backend("b", long), w.backend("c", answers(0, 0, "c"))
		b.Model = a.Model
		var bs []Backend
		for _, cfg := range []backend.Config{a, b, c} {
			bs = append(bs, Backend{Caller: w.client(cfg), P95: second})
		}
		res, _ := w.runner(Config{Backends: bs}).Run(w.t.Context(), job(10*second), Hooks{})
		if attempts(res) != "a:context_length c" {
			t.Error(attempts(res))
		}
	})
}
