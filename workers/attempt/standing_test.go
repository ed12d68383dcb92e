package attempt

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"leeway/broker"
	"leeway/rehearsal/lab"
	"leeway/workers/backend"
)

// probing completes cfg with somebody who probes what is in doubt, and notes
// the states that are told.
func probing(t *testing.T, r **Runner, cfg Config) (Config, func() []string) {
	var mu sync.Mutex
	var states []string
	cfg.OnState = func(name, s, why string) {
		mu.Lock()
		defer mu.Unlock()
		states = append(states, strings.TrimSpace(name+" "+s+" "+why))
	}
	cfg.Doubt = func(u *Upstream) {
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 30*second)
			defer cancel()
			_ = (*r).Probe(ctx, u, "probe", Hooks{})
		}()
	}
	return cfg, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(states)
	}
}

func fails(reason backend.Reason, status int) step {
	return step{err: &backend.Error{Reason: reason, Status: status}}
}

// What jobs met raises a doubt, and a probe decides.
func TestStanding(t *testing.T) {
	down, no := fails(backend.ReasonConnect, 0), fails(backend.ReasonBadRequest, 400)
	field := step{err: &backend.Error{Reason: backend.ReasonUnsupported, Status: 400, Advice: "leave out options.seed"}}
	well := step{first: 100 * time.Millisecond}
	told := func(reason backend.Reason, after time.Duration) step {
		return step{err: &backend.Error{Reason: reason, Status: 403, RetryAfter: after}}
	}
	tests := []struct {
		name   string
		steps  []step // of the calls and the probes
		jobs   int
		states []string // that were told
		end    string
	}{
		{"two jobs that failed are no doubt", []step{down, down, well}, 2, nil, broker.BackendClosed},
		{"one job that failed twice is one", []step{fails(backend.ReasonUpstreamError, 500)}, 2, nil, broker.BackendClosed},
		{"three that failed, and the probe is answered", []step{down, down, down, well}, 3, []string{"a half_open connect", "a closed connect"}, broker.BackendClosed},
		{"three that failed, and the probe too", []step{down}, 3, []string{"a half_open connect", "a open connect"}, broker.BackendOpen},
		{"three that failed, and nothing comes of the probe", []step{down, down, down, {silent: true}}, 3, []string{"a half_open connect"}, broker.BackendOpen},
		{"three that failed, and the key is refused", []step{down, down, down, fails(backend.ReasonAuth, 401)}, 3, []string{"a half_open connect", "a out auth"}, broker.BackendOut},
		{"three that failed, and the probe is refused, which no job was", []step{down, down, down, no}, 3, []string{"a half_open connect", "a open connect"}, broker.BackendOpen},
		{"three that were refused, and the probe is answered", []step{no, no, no, well}, 3, nil, broker.BackendClosed},
		{"three that were refused, and the probe too", []step{no}, 3, []string{"a out bad_request"}, broker.BackendOut},
		{"refused and served by turns", []step{no, no, well, no, no, well, no, no}, 8, nil, broker.BackendClosed},
		{"one refused for a field, and the probe is answered", []step{field, well}, 1, nil, broker.BackendClosed},
		{"one refused for a field, and the probe too", []step{field}, 1, []string{"a out unsupported: leave out options.seed"}, broker.BackendOut},
		{"one refused for a field, and the probe fails otherwise", []step{field, down}, 1, []string{"a open connect"}, broker.BackendOpen},
		{"a text that is too long", []step{fails(backend.ReasonContextLength, 413)}, 5, nil, broker.BackendClosed},
		{"the key is refused", []step{fails(backend.ReasonAuth, 401)}, 1, []string{"a out auth"}, broker.BackendOut},
		{"out of credit, and the probe is answered", []step{fails(backend.ReasonQuota, 402), well}, 1, []string{"a half_open quota", "a closed quota"}, broker.BackendClosed},
		{"out of credit", []step{fails(backend.ReasonQuota, 402)}, 1, []string{"a half_open quota", "a open quota"}, broker.BackendOpen},
		{"asked to be left alone", []step{told(backend.ReasonRateLimited, time.Hour)}, 1, []string{"a held rate_limited"}, broker.BackendHeld},
		{"a firewall that says when to come back", []step{told(backend.ReasonBadRequest, time.Hour)}, 1, nil, broker.BackendClosed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var r *Runner
				a := &script{name: "a", steps: tt.steps}
				cfg, states := probing(t, &r, scripted(a))
				r, _ = NewRunner(cfg)
				for range tt.jobs {
					_, _ = r.Run(t.Context(), job(10*second), Hooks{})
				}
				time.Sleep(2 * second)
				if got := r.Upstreams()[0].State().State; got != tt.end {
					t.Errorf("the backend is %s, want %s", got, tt.end)
				}
				if d := cmp.Diff(tt.states, states()); d != "" && (len(tt.states) > 0 || len(states()) > 0) {
					t.Errorf("states told (-want +got):\n%s", d)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

// A job that comes while a probe is under way waits for what it shows, and for
// no longer than that.
func TestDoubtIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := fails(backend.ReasonConnect, 0)
		var r *Runner
		cfg, _ := probing(t, &r, scripted(&script{name: "a", steps: []step{down, down, down, {first: 250 * time.Millisecond}, {}}}))
		r, _ = NewRunner(cfg)
		for range 3 {
			_, _ = r.Run(t.Context(), job(10*second), Hooks{})
		}
		res, _ := r.Run(t.Context(), job(2*second), Hooks{})
		if res.Outcome != broker.OutcomeUsable || res.EndedAt != 300*time.Millisecond {
			t.Errorf("%s after %v, want usable after 300 ms", res.Outcome, res.EndedAt)
		}
	})
}

// A job that was refused tries who may be called, and waits for nobody.
func TestRefusedWaitsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &script{name: "a", steps: []step{fails(backend.ReasonBadRequest, 400)}}
		r, _ := NewRunner(scripted(a, &script{name: "b"}))
		r.Upstreams()[1].Hold(2*second, "told by another worker")
		res, _ := r.Run(t.Context(), job(10*second), Hooks{})
		if res.Outcome != broker.OutcomeFailed || res.Reason != backend.ReasonBadRequest || res.EndedAt != 0 {
			t.Errorf("%s (%s) after %v", res.Outcome, res.Reason, res.EndedAt)
		}
		time.Sleep(2 * second)
		if res, _ = r.Run(t.Context(), job(10*second), Hooks{}); res.Outcome != broker.OutcomeUsable || res.Backend != "b" {
			t.Errorf("%s by %s", res.Outcome, res.Backend)
		}
	})
}

// Three texts too long for the model, in the words of any server, leave the
// backend as it is, and each is told so at once.
func TestOverflowIsNoIllness(t *testing.T) {
	for _, k := range lab.FaultKinds() {
		if k.Name != "context-length" {
			continue
		}
		for _, server := range k.Variants {
			t.Run(server, func(t *testing.T) {
				bubble(t, func(w *world) {
					cfg, s := w.labBackend("primary", lab.Config{}, lab.FaultModelPrefix+k.Name+"."+server)
					var r *Runner
					c, states := probing(w.t, &r, Config{Backends: []Backend{{Caller: w.client(cfg), P95: 500 * time.Millisecond}}})
					r = w.runner(c)
					for i := range 3 {
						j := job(12 * second)
						j.ID = fmt.Sprint("j", i)
						res, _ := r.Run(w.t.Context(), j, Hooks{})
						if res.Reason != backend.ReasonContextLength || res.EndedAt > second {
							t.Errorf("%s (%s) after %v", res.Outcome, res.Reason, res.EndedAt)
						}
					}
					calls, _ := s.Attempts(0)
					if len(states()) > 0 || len(calls) != 3 {
						t.Errorf("states %q after %d calls", states(), len(calls))
					}
				})
			})
		}
	}
}

// A probe that is under way is the only one.
func TestOneProbeAtATime(t *testing.T) {
	bubble(t, func(w *world) {
		r := w.runner(Config{Backends: []Backend{{Caller: w.client(w.backend("a", func(o *out, _ int) {
			o.sleep(second)
			o.status(http.StatusOK, `{}`)
		})), P95: second}}})
		go func() { _ = r.Probe(w.t.Context(), r.Upstreams()[0], "p1", Hooks{}) }()
		synctest.Wait()
		if err := r.Probe(w.t.Context(), r.Upstreams()[0], "p2", Hooks{}); !errors.Is(err, ErrProbing) {
			t.Errorf("a second probe: %v", err)
		}
		time.Sleep(2 * second)
	})
}
