// Package metrics exposes Leeway's numbers to Prometheus under the articles'
// names.
//
// Two kinds stand side by side. What a process counts itself (decisions,
// rejects, slack, first byte, queue wait) differs per replica and is summed.
// What is shared (the ledgers, outcomes, queue age, in flight, waiting) is read
// from the store at each scrape, carries the same value on every replica, and
// is to be taken with max, not sum. A killed process loses none of it.
package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"leeway/broker"
	"leeway/broker/reconcile"
	"leeway/slackgate"
)

// buckets for durations in milliseconds, from a fast reject to a long wait.
var buckets = []float64{5, 10, 25, 50, 100, 250, 500, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 10000, 15000, 20000, 30000, 60000, 300000, 1800000}

// slackBuckets go below zero: a job may arrive without slack.
var slackBuckets = append([]float64{-60000, -10000, -1000, 0}, buckets...)

// Metrics are one process's metrics.
type Metrics struct {
	registry *prometheus.Registry
	// decisions, predicted and slack are looked up once: every submission
	// counts in them.
	decisions [slackgate.NumPaths]prometheus.Counter
	predicted [slackgate.NumPaths]prometheus.Observer
	slack     prometheus.Observer
	rejects   *prometheus.CounterVec
	firstByte *prometheus.HistogramVec
	queueWait *prometheus.HistogramVec
	mended    *prometheus.CounterVec
}

// New returns the metrics of a process. Every label value that can occur is
// there from the start, so that a rate over a counter's first event is right.
func New() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		version.NewCollector("leeway"),
	)
	decisions := m.counts("job_decision_total", "Submissions decided, by the path they were given. Per replica: sum.", "path")
	m.rejects = m.counts("job_reject_total", "Submissions not admitted, by reason. Per replica: sum.", "reason")
	m.mended = m.counts("leeway_mended_total",
		"What crashes and lost messages had left and the reconciler has mended, by what it was. Per process: sum.", "what")
	slack := m.durations("job_remaining_slack_ms",
		"Slack left at a stage of the job's life, in milliseconds. Per replica: sum.", slackBuckets, "stage")
	m.firstByte = m.durations("job_first_byte_ms",
		"Time from the first backend call to the first answer text, in milliseconds. Per worker: sum.", buckets, "path")
	predicted := m.durations("job_predicted_wait_ms",
		"Wait for a worker that was predicted at admission, in milliseconds; 0 under the seed rule, which predicts nothing. Per replica: sum.", buckets, "path")
	m.queueWait = m.durations("job_queue_wait_ms",
		"Time from admission to the claim by a worker, in milliseconds. Per worker: sum.", buckets, "path")
	for _, p := range []slackgate.Path{slackgate.Reject, slackgate.Paid, slackgate.Free} {
		m.decisions[p] = decisions.WithLabelValues(p.String())
	}
	for _, r := range slackgate.Reasons {
		if r != slackgate.ReasonPaid && r != slackgate.ReasonFree {
			m.rejects.WithLabelValues(string(r))
		}
	}
	for _, what := range reconcile.Mendings {
		m.mended.WithLabelValues(string(what))
	}
	for _, p := range slackgate.Paths {
		m.firstByte.WithLabelValues(p.String())
		m.predicted[p] = predicted.WithLabelValues(p.String())
		m.queueWait.WithLabelValues(p.String())
	}
	m.slack = slack.WithLabelValues("admit")
	return m
}

// counts adds counters with one label.
func (m *Metrics) counts(name, help, label string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	m.registry.MustRegister(v)
	return v
}

// durations adds histograms of milliseconds with one label.
func (m *Metrics) durations(name, help string, bounds []float64, label string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: bounds}, []string{label})
	m.registry.MustRegister(v)
	return v
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// Decided counts a decision.
func (m *Metrics) Decided(_ *broker.Submission, v *broker.Verdict) {
	m.decisions[v.Path].Inc()
	if v.Admitted() {
		m.predicted[v.Path].Observe(float64(v.PredictedWaitMS))
	} else {
		m.rejects.WithLabelValues(string(v.Reason)).Inc()
	}
	m.slack.Observe(float64(v.SlackMS))
}

// Claimed notes how long a job waited for its worker.
func (m *Metrics) Claimed(path slackgate.Path, queueWaitMS int64) {
	m.queueWait.WithLabelValues(path.String()).Observe(float64(queueWaitMS))
}

// FirstByte notes how long the first answer text took.
func (m *Metrics) FirstByte(path slackgate.Path, ms int64) {
	m.firstByte.WithLabelValues(path.String()).Observe(float64(ms))
}

// Mended counts what the reconciler has mended.
func (m *Metrics) Mended(what reconcile.Mending, n int64) {
	m.mended.WithLabelValues(string(what)).Add(float64(n))
}
