package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"leeway/broker/measure"
	"leeway/slackgate"
)

var (
	descP95 = desc("leeway_first_byte_p95_ms",
		"95th percentile of the first byte of a pool or backend, declared and as the gate believes it, in milliseconds.", "subject", "source")
	descHoldP95 = desc("leeway_hold_p95_ms",
		"95th percentile of the time to the last byte of a pool or backend, declared and as the gate believes it, in milliseconds.", "subject", "source")
	descSamples = desc("leeway_latency_samples", "Calls in the window that the first byte's p95 was read from.", "subject")
	descState   = desc("leeway_latency_state", "1 for the state that the first byte's p95 is in.", "subject", "state")
)

// measured collects what is believed about latencies.
type measured struct{ meter *measure.Meter }

// Measured adds what a meter believes. Subjects come from configuration, so
// their number is bounded.
func (m *Metrics) Measured(meter *measure.Meter) { m.registry.MustRegister(&measured{meter}) }

func (c *measured) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descP95, descHoldP95, descSamples, descState} {
		ch <- d
	}
}

func (c *measured) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, s := range c.meter.Subjects() {
		b := c.meter.Get(s.Name)
		gauge(descP95, b.Declared.FirstByte.P95MS, s.Name, "declared")
		gauge(descP95, b.FirstByte.P95MS, s.Name, "measured")
		gauge(descHoldP95, b.Declared.Hold.P95MS, s.Name, "declared")
		gauge(descHoldP95, b.Hold.P95MS, s.Name, "measured")
		gauge(descSamples, float64(b.FirstByte.Samples), s.Name)
		for _, st := range []slackgate.State{slackgate.Declared, slackgate.Floored, slackgate.Measured, slackgate.NotIdentified} {
			v := 0.0
			if st == b.FirstByte.State {
				v = 1
			}
			gauge(descState, v, s.Name, st.String())
		}
	}
}
