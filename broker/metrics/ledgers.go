package metrics

import (
	"context"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"leeway/broker/ledger"
	"leeway/broker/shard"
)

var (
	descCostDiffers = desc("job_cost_difference_total", "Attempts whose backend reported another cost than its price makes of the tokens: either the price list is wrong or the bill is.", "backend")
	descBalanced    = desc("leeway_ledger_balanced", "1 if outcomes, misses and numbers of rows agree; `leeway ledgers check` holds every row against the rest.")
	descOverdue     = desc("leeway_ledger_overdue_rows", "Spend rows that are open although their attempt must have been over for a while.")
	descRows        = desc("leeway_ledger_rows", "Rows of a ledger in Redis.", "ledger")
	descOverRows    = desc("leeway_ledger_over_rows", "Rows of a ledger in Redis beyond keep.ledger_rows: the archive does not keep up, and Redis grows.", "ledger")
	descOldest      = desc("leeway_ledger_oldest_ms", "When the oldest row of a ledger in Redis was booked, as milliseconds since 1970; absent for an empty ledger.", "ledger")
	descLag         = desc("leeway_archive_lag_rows", "Rows that are booked and not archived; absent without an archive.", "ledger")
	descArchivedAt  = desc("leeway_archive_last_success_ms", "When the archive last had every row or took a batch, as milliseconds since 1970; absent without an archive.")
)

// ledgers collects what the store says of the two ledgers and their archive.
type ledgers struct{ store *shard.Store }

func (c *ledgers) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descCostDiffers, descBalanced, descOverdue, descRows, descOverRows, descOldest, descLag, descArchivedAt} {
		ch <- d
	}
}

func (c *ledgers) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	books, err := c.store.Books(ctx)
	if err != nil {
		return // leeway_store_up says so
	}
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	balanced := int64(0)
	if books.Balanced {
		balanced = 1
	}
	gauge(descBalanced, balanced)
	gauge(descOverdue, books.Overdue)
	for _, k := range []ledger.Kind{ledger.Spend, ledger.Misses} {
		e := books.Ledgers[k]
		gauge(descRows, e.Rows, string(k))
		gauge(descOverRows, e.OverRows, string(k))
		if e.OldestMS > 0 {
			gauge(descOldest, e.OldestMS, string(k))
		}
		if books.Archive != nil {
			gauge(descLag, books.Archive.LagRows[k], string(k))
		}
	}
	if books.Archive != nil {
		gauge(descArchivedAt, books.Archive.LastSuccessMS)
	}
	for name, n := range books.Totals {
		if backend, ok := strings.CutPrefix(name, "cost_difference:"); ok {
			ch <- counter(descCostDiffers, n, backend)
		}
	}
}
