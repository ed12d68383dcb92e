package metrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"leeway/broker/redisstore"
	"leeway/broker/shard"
)

// webhooks collects what became of webhooks, and what waits.
type webhooks struct {
	store     *shard.Store
	producers func() []string
}

var (
	descDeliveries = desc("webhook_deliveries_total", "Attempts at telling producers the ends of their jobs, by result: delivered; failed, to be tried again; given_up; dropped, as too many waited.", "producer", "result")
	descUntold     = desc("webhook_waiting", "Ends of jobs that a producer's webhook is yet to be told of.", "producer")
)

// Webhooks adds the numbers of the producers that have a webhook.
func (m *Metrics) Webhooks(s *shard.Store, producers func() []string) {
	m.registry.MustRegister(&webhooks{s, producers})
}

func (c *webhooks) Describe(ch chan<- *prometheus.Desc) {
	ch <- descDeliveries
	ch <- descUntold
}

func (c *webhooks) Collect(ch chan<- prometheus.Metric) {
	names := c.producers()
	if len(names) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	waiting, err := c.store.WebhooksWaiting(ctx, names)
	if err != nil {
		return // leeway_store_up says so
	}
	totals, err := c.store.Totals(ctx)
	if err != nil {
		return
	}
	for _, name := range names {
		ch <- prometheus.MustNewConstMetric(descUntold, prometheus.GaugeValue, float64(waiting[name]), name)
		for _, r := range redisstore.WebhookResults {
			ch <- counter(descDeliveries, totals["webhook:"+string(r)+":"+name], name, string(r))
		}
	}
}
