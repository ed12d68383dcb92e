package metrics

import (
	"context"
	"slices"

	"leeway/broker"
	"leeway/broker/measure"
	"leeway/slackgate"
)

var (
	failed      = gauge("leeway_background_failed", "1 once a background loop of this process has failed: it is then not ready.")
	fingerprint = gauge("leeway_config_fingerprint",
		"1, with a fingerprint of the pools and classes this process goes by. Processes that differ show different ones.", "fingerprint")
	recheck = gauge("leeway_recheck",
		"1 while a job's slack is checked again before a backend is called; 0 only in a lab whose configuration says so.")
	storeSafe = gauge("leeway_store_safe",
		"1 if Redis keeps what is promised on it; 0 while its settings may drop or forget it, as /readyz and the log say. Looked at each minute.")
	kneeExpired = gauge("leeway_knee_expired",
		"1 if the backend's measured knee is out of date; absent for a backend that has none.", "backend")
)

// Process is how a process is. All functions are required.
type Process struct {
	// Failed reports whether one of its background loops has failed.
	Failed func() bool
	// Fingerprint is that of its configuration.
	Fingerprint func() string
	// Recheck reports whether it checks slack again before a backend call.
	Recheck func() bool
	// Knees tells of each backend whose knee was measured whether that is out
	// of date.
	Knees func() map[string]bool
	// Risks are what Redis's settings put at risk.
	Risks func() []string
}

// Process adds how the process itself is.
func (m *Metrics) Process(p Process) {
	m.collect(func(_ context.Context, value give) {
		value(failed, bit(p.Failed()))
		value(fingerprint, 1, p.Fingerprint())
		value(recheck, bit(p.Recheck()))
		value(storeSafe, bit(len(p.Risks()) == 0))
		for backend, expired := range p.Knees() {
			value(kneeExpired, bit(expired), backend)
		}
	}, failed, fingerprint, recheck, storeSafe, kneeExpired)
}

var backendState = gauge("leeway_backend_state", "1 for the state that a backend is in as this worker sees it. Per worker: max.", "backend", "state")

// Backends adds what a worker knows of its backends. Names come from
// configuration, so their number is bounded; a state outside the closed set is
// left out.
func (m *Metrics) Backends(states func() []broker.BackendState) {
	m.collect(func(_ context.Context, value give) {
		// A backend that stands in both pools has a breaker in each: it is in a
		// state if it is so in either.
		in := map[string][]string{}
		for _, s := range states() {
			in[s.Backend] = append(in[s.Backend], s.State)
		}
		for name, now := range in {
			for _, state := range broker.BackendStates {
				value(backendState, bit(slices.Contains(now, state)), name, state)
			}
		}
	}, backendState)
}

var (
	firstByteP95 = sharedGauge("leeway_first_byte_p95_ms",
		"95th percentile of the first byte of a pool or backend, declared and as the gate believes it, in milliseconds.", "subject", "source")
	holdP95 = sharedGauge("leeway_hold_p95_ms",
		"95th percentile of the time to the last byte of a pool or backend, declared and as the gate believes it, in milliseconds.", "subject", "source")
	samples      = sharedGauge("leeway_latency_samples", "Calls in the window that the first byte's p95 was read from.", "subject")
	latencyState = sharedGauge("leeway_latency_state", "1 for the state that the first byte's p95 is in.", "subject", "state")
)

// Measured adds what a meter believes. Subjects come from configuration, so
// their number is bounded.
func (m *Metrics) Measured(meter *measure.Meter) {
	m.collect(func(_ context.Context, value give) {
		for _, s := range meter.Subjects() {
			b := meter.Get(s.Name)
			value(firstByteP95, b.Declared.FirstByte.P95MS, s.Name, "declared")
			value(firstByteP95, b.FirstByte.P95MS, s.Name, "measured")
			value(holdP95, b.Declared.Hold.P95MS, s.Name, "declared")
			value(holdP95, b.Hold.P95MS, s.Name, "measured")
			value(samples, float64(b.FirstByte.Samples), s.Name)
			for _, st := range []slackgate.State{slackgate.Declared, slackgate.Floored, slackgate.Measured, slackgate.NotIdentified} {
				value(latencyState, bit(st == b.FirstByte.State), s.Name, st.String())
			}
		}
	}, firstByteP95, holdP95, samples, latencyState)
}
