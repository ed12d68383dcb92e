package metrics

import "github.com/prometheus/client_golang/prometheus"

var (
	descFailed = prometheus.NewDesc("leeway_background_failed",
		"1 once a background loop of this process has failed: it is then not ready.", nil, nil)
	descFingerprint = prometheus.NewDesc("leeway_config_fingerprint",
		"1, with a fingerprint of the pools and classes this process goes by. Processes that differ show different ones.",
		[]string{"fingerprint"}, nil)
)

// process collects how this process is.
type process struct {
	failed      func() bool
	fingerprint func() string
}

// Process adds how the process itself is: whether one of its background loops
// has failed, and the fingerprint of its configuration.
func (m *Metrics) Process(failed func() bool, fingerprint func() string) {
	m.registry.MustRegister(&process{failed, fingerprint})
}

func (p *process) Describe(ch chan<- *prometheus.Desc) {
	ch <- descFailed
	ch <- descFingerprint
}

func (p *process) Collect(ch chan<- prometheus.Metric) {
	failed := 0.0
	if p.failed() {
		failed = 1
	}
	ch <- prometheus.MustNewConstMetric(descFailed, prometheus.GaugeValue, failed)
	ch <- prometheus.MustNewConstMetric(descFingerprint, prometheus.GaugeValue, 1, p.fingerprint())
}
