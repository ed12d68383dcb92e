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
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"leeway/broker"
	"leeway/broker/redisstore"
	"leeway/broker/shard"
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
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		rejects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "job_reject_total", Help: "Submissions not admitted, by reason. Per replica: sum.",
		}, []string{"reason"}),
		firstByte: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "job_first_byte_ms", Help: "Time from the first backend call to the first answer text, in milliseconds. Per worker: sum.",
			Buckets: buckets,
		}, []string{"path"}),
		queueWait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "job_queue_wait_ms", Help: "Time from admission to the claim by a worker, in milliseconds. Per worker: sum.",
			Buckets: buckets,
		}, []string{"path"}),
		mended: mendedVec(),
	}
	decisions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "job_decision_total", Help: "Submissions decided, by the path they were given. Per replica: sum.",
	}, []string{"path"})
	slack := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "job_remaining_slack_ms", Help: "Slack left at a stage of the job's life, in milliseconds. Per replica: sum.",
		Buckets: slackBuckets,
	}, []string{"stage"})
	predicted := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "job_predicted_wait_ms", Help: "Wait for a worker that was predicted at admission, in milliseconds; 0 under the seed rule, which predicts nothing. Per replica: sum.",
		Buckets: buckets,
	}, []string{"path"})
	m.registry.MustRegister(
		decisions, m.rejects, slack, m.firstByte, predicted, m.queueWait, m.mended,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		version.NewCollector("leeway"),
	)
	for _, p := range []slackgate.Path{slackgate.Reject, slackgate.Paid, slackgate.Free} {
		m.decisions[p] = decisions.WithLabelValues(p.String())
	}
	for _, r := range slackgate.Reasons {
		if r != slackgate.ReasonPaid && r != slackgate.ReasonFree {
			m.rejects.WithLabelValues(string(r))
		}
	}
	for _, p := range slackgate.Paths {
		m.firstByte.WithLabelValues(p.String())
		m.predicted[p] = predicted.WithLabelValues(p.String())
		m.queueWait.WithLabelValues(p.String())
	}
	m.slack = slack.WithLabelValues("admit")
	return m
}

// Share adds what is read from the store at each scrape.
func (m *Metrics) Share(s *shard.Store, policy func() [slackgate.NumPaths]redisstore.PoolPolicy) {
	m.registry.MustRegister(&shared{store: s, policy: policy}, &ledgers{s})
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// Decided counts a decision.
func (m *Metrics) Decided(_ *broker.Job, v *broker.Verdict) {
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

// shared collects what all replicas see alike.
type shared struct {
	store  *shard.Store
	policy func() [slackgate.NumPaths]redisstore.PoolPolicy
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help+" Shared by all replicas: max, not sum.", labels, nil)
}

var (
	descUp       = prometheus.NewDesc("leeway_store_up", "1 if the store answered this scrape.", nil, nil)
	descQueueAge = desc("job_queue_age_ms", "How long the oldest waiting job has waited, in milliseconds.", "path")
	descInFlight = desc("job_inflight", "Admitted and unfinished jobs.", "path")
	descWaiting  = desc("job_waiting", "Jobs waiting for a worker.", "path")
	descRunning  = desc("job_running", "Jobs in service.", "path")
	descCapacity = desc("job_pool_capacity", "Slots of living workers, at most the pool's limit.", "path")
	descSmallest = desc("job_smallest_slack_ms", "Slack of the most urgent waiting job, in milliseconds; absent with nothing waiting.", "path")
	descMiss     = desc("job_deadline_miss_total", "Deadline misses.", "path")
	descCause    = desc("job_deadline_miss_cause_total", "Deadline misses by cause.", "path", "cause")
	descSpend    = desc("job_token_spend_total", "Tokens that cost money, in and out.", "path")
	descTokens   = desc("job_tokens_total", "Tokens, whether or not they cost money.", "path", "kind")
	descOutcome  = desc("job_outcome_total", "Ended jobs by outcome: usable stands beside every other.", "path", "outcome")
	descCost     = desc("job_cost_micro_total", "Cost booked, in micro-units of the currency.", "path", "currency")
	descAttempts = desc("job_attempt_total", "Backend calls settled in the spend ledger, by how their tokens are known.", "path", "known")
)

func (c *shared) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descUp, descQueueAge, descInFlight, descWaiting, descRunning, descCapacity, descSmallest, descMiss,
		descCause, descSpend, descTokens, descOutcome, descCost, descAttempts,
	} {
		ch <- d
	}
}

// scrapeTimeout bounds a scrape's reads together.
const scrapeTimeout = 2 * time.Second

func (c *shared) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	st, err := c.store.State(ctx, c.policy())
	var totals broker.Totals
	if err == nil {
		totals, err = c.store.Totals(ctx)
	}
	if err != nil {
		ch <- prometheus.MustNewConstMetric(descUp, prometheus.GaugeValue, 0)
		return
	}
	ch <- prometheus.MustNewConstMetric(descUp, prometheus.GaugeValue, 1)
	for _, path := range slackgate.Paths {
		c.collectPool(ctx, ch, path, &st.Pools[path])
		c.collectTotals(ch, path.String(), totals)
	}
	reject := slackgate.Reject.String()
	ch <- counter(descMiss, totals["miss:"+reject], reject)
	for k, n := range totals {
		parts := strings.Split(k, ":")
		if len(parts) == 3 && parts[0] == "cost_micro" {
			ch <- counter(descCost, n, parts[1], parts[2])
		}
	}
}

func (c *shared) collectPool(ctx context.Context, ch chan<- prometheus.Metric, path slackgate.Path, p *slackgate.PoolState) {
	name := path.String()
	gauge := func(d *prometheus.Desc, v int64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), name)
	}
	gauge(descQueueAge, p.QueueAgeMS)
	gauge(descInFlight, int64(p.InFlight()))
	gauge(descWaiting, int64(p.Waiting))
	gauge(descRunning, int64(p.Running))
	gauge(descCapacity, int64(p.Capacity))
	if slack, ok, err := c.store.SmallestSlackMS(ctx, path); err == nil && ok {
		gauge(descSmallest, slack)
	}
}

func (c *shared) collectTotals(ch chan<- prometheus.Metric, path string, t broker.Totals) {
	ch <- counter(descMiss, t["miss:"+path], path)
	ch <- counter(descSpend, t["spend_tokens:"+path], path)
	for _, kind := range []string{"input", "output"} {
		ch <- counter(descTokens, t["tokens:"+path+":"+kind], path, kind)
	}
	for _, o := range broker.Outcomes {
		ch <- counter(descOutcome, t["outcome:"+path+":"+string(o)], path, string(o))
	}
	for _, k := range broker.Causes {
		if k != broker.CauseNoSlack {
			ch <- counter(descCause, t["miss_cause:"+path+":"+string(k)], path, string(k))
		}
	}
	for _, k := range []broker.Known{broker.KnownReported, broker.KnownEstimated, broker.KnownUnknown} {
		ch <- counter(descAttempts, t["known:"+path+":"+string(k)], path, string(k))
	}
}

func counter(d *prometheus.Desc, v int64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}
