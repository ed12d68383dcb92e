package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"leeway/broker"
)

var descBackend = prometheus.NewDesc("leeway_backend_state",
	"1 for the state that a backend is in as this worker sees it. Per worker: max.", []string{"backend", "state"}, nil)

// backendStates is the closed set of the states of a backend.
var backendStates = []string{"closed", "open", "half_open", "held", "out"}

// backends collects whether backends may be called.
type backends struct{ states func() []broker.BackendState }

// Backends adds what a worker knows of its backends. Names come from
// configuration, so their number is bounded; a state outside the closed set is
// left out.
func (m *Metrics) Backends(states func() []broker.BackendState) {
	m.registry.MustRegister(&backends{states})
}

func (c *backends) Describe(ch chan<- *prometheus.Desc) { ch <- descBackend }

func (c *backends) Collect(ch chan<- prometheus.Metric) {
	// A backend that stands in both pools has a breaker in each: it is in a
	// state if it is so in either.
	in := map[string][]string{}
	for _, s := range c.states() {
		in[s.Backend] = append(in[s.Backend], s.State)
	}
	for name, now := range in {
		for _, state := range backendStates {
			v := 0.0
			if slices.Contains(now, state) {
				v = 1
			}
			ch <- prometheus.MustNewConstMetric(descBackend, prometheus.GaugeValue, v, name, state)
		}
	}
}
