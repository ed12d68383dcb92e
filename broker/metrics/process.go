package metrics

import "github.com/prometheus/client_golang/prometheus"

var (
	descFailed = prometheus.NewDesc("leeway_background_failed",
		"1 once a background loop of this process has failed: it is then not ready.", nil, nil)
	descFingerprint = prometheus.NewDesc("leeway_config_fingerprint",
		"1, with a fingerprint of the pools and classes this process goes by. Processes that differ show different ones.",
		[]string{"fingerprint"}, nil)
	descRecheck = prometheus.NewDesc("leeway_recheck",
		"1 while a job's slack is checked again before a backend is called; 0 only in a lab whose configuration says so.", nil, nil)
	descKnee = prometheus.NewDesc("leeway_knee_expired",
		"1 if the backend's measured knee is out of date; absent for a backend that has none.", []string{"backend"}, nil)
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
}

// process collects how this process is.
type process struct{ Process }

// Process adds how the process itself is.
func (m *Metrics) Process(p Process) { m.registry.MustRegister(&process{p}) }

func (p *process) Describe(ch chan<- *prometheus.Desc) {
	ch <- descFailed
	ch <- descFingerprint
	ch <- descRecheck
	ch <- descKnee
}

func (p *process) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(descFailed, prometheus.GaugeValue, bit(p.Failed()))
	ch <- prometheus.MustNewConstMetric(descFingerprint, prometheus.GaugeValue, 1, p.Fingerprint())
	ch <- prometheus.MustNewConstMetric(descRecheck, prometheus.GaugeValue, bit(p.Recheck()))
	for backend, expired := range p.Knees() {
		ch <- prometheus.MustNewConstMetric(descKnee, prometheus.GaugeValue, bit(expired), backend)
	}
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
