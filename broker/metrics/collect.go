package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// family is a metric whose values are read when Prometheus asks for them.
type family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func gauge(name, help string, labels ...string) family {
	return family{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue}
}

// The help of what every replica reads from the store ends in isShared.
const isShared = " Shared by all replicas: max, not sum."

func sharedGauge(name, help string, labels ...string) family {
	return gauge(name, help+isShared, labels...)
}

func sharedCounter(name, help string, labels ...string) family {
	return family{prometheus.NewDesc(name, help+isShared, labels, nil), prometheus.CounterValue}
}

// give reports one value, with the values of the family's labels in their order.
type give func(f family, v float64, labels ...string)

// collector reads its families at each scrape. It leaves out what cannot be
// read: leeway_store_up says why.
type collector struct {
	families []family
	read     func(ctx context.Context, value give)
}

// collect adds families that are read at each scrape.
func (m *Metrics) collect(read func(ctx context.Context, value give), families ...family) {
	m.registry.MustRegister(&collector{families, read})
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range c.families {
		ch <- f.desc
	}
}

// scrapeTimeout bounds the reads of one collector.
const scrapeTimeout = 2 * time.Second

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	c.read(ctx, func(f family, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(f.desc, f.kind, v, labels...)
	})
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
