package metrics

import "github.com/prometheus/client_golang/prometheus"

var (
	descFailed = prometheus.NewDesc("leeway_background_failed",
		"1 once a background loop of this process has failed: it is then not ready.", nil, nil)
	descFingerprint = prometheus.NewDesc("leeway_config_fingerprint",
		"1, with a fingerprint of the pools and classes this process goes by. Processes that differ show different ones.",
		[]string{"fingerprint"}, nil)
	descKnee = prometheus.NewDesc("leeway_knee_expired",
		"1 if the backend's measured knee is out of date; absent for a backend that has none.", []string{"backend"}, nil)
)

// process collects how this process is.
type process struct {
	failed      func() bool
	fingerprint func() string
	knees       func() map[string]bool
}

// Process adds how the process itself is: whether one of its background loops
// has failed, the fingerprint of its configuration, and which of the measured
// knees in it are out of date.
func (m *Metrics) Process(failed func() bool, fingerprint func() string, knees func() map[string]bool) {
	m.registry.MustRegister(&process{failed, fingerprint, knees})
}

func (p *process) Describe(ch chan<- *prometheus.Desc) {
	ch <- descFailed
	ch <- descFingerprint
	ch <- descKnee
}

func (p *process) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(descFailed, prometheus.GaugeValue, bit(p.failed()))
	ch <- prometheus.MustNewConstMetric(descFingerprint, prometheus.GaugeValue, 1, p.fingerprint())
	for backend, expired := range p.knees() {
		ch <- prometheus.MustNewConstMetric(descKnee, prometheus.GaugeValue, bit(expired), backend)
	}
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
