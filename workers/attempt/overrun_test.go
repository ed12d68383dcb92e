package attempt

import (
	"testing"
	"time"

	"leeway/broker"
)

// In a lab whose re-check is off a backend is called whatever is left and may
// answer past the deadline; the outcome is still judged by the deadline.
func TestOverrun(t *testing.T) {
	for _, tt := range []struct {
		name           string
		left           time.Duration
		overrun        time.Duration
		outcome        broker.Outcome
		took           time.Duration
		backendsCalled int
	}{
		{"in time", 3 * time.Second, time.Minute, broker.OutcomeUsable, 2 * time.Second, 1},
		{"first byte in the reserve", 2900 * time.Millisecond, time.Minute, broker.OutcomeLate, 2 * time.Second, 1},
		{"less left than the p95", time.Second, time.Minute, broker.OutcomeLate, 2 * time.Second, 1},
		{"past the deadline before the call", -30 * time.Second, time.Minute, broker.OutcomeLate, 2 * time.Second, 1},
		{"the overrun is a bound too: less than the p95 of it", -30 * time.Second, time.Second, broker.OutcomeExpired, 0, 0},
		{"without it nothing is called", time.Second, 0, broker.OutcomeExpired, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(w *world) {
				c := w.client(w.backend("slow", answers(2*time.Second, 0, "A whole answer.")))
				r := w.runner(Config{Backends: []Backend{{Caller: c, P95: 2 * time.Second}}, Overrun: tt.overrun})
				j := job(tt.left)
				j.Reserve = time.Second
				l := newLedger(w.t)
				res, err := r.Run(w.t.Context(), j, l.hooks())
				if err != nil {
					t.Fatal(err)
				}
				l.check()
				if res.Outcome != tt.outcome || res.EndedAt != tt.took || len(w.calls("slow")) != tt.backendsCalled {
					t.Errorf("%s after %v with %d calls, attempts %s; want %s after %v with %d",
						res.Outcome, res.EndedAt, len(w.calls("slow")), attempts(res), tt.outcome, tt.took, tt.backendsCalled)
				}
				c.Close()
			})
		})
	}
}
