package metrics

import (
	"context"
	"strings"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/broker/ledger"
	"leeway/broker/store"
	"leeway/broker/wire"
	"leeway/slackgate"
)

var (
	costDiffers = sharedCounter("job_cost_difference_total", "Attempts whose backend reported another cost than its price makes of the tokens: either the price list is wrong or the bill is.", "backend")
	balanced    = sharedGauge("leeway_ledger_balanced", "1 if outcomes, misses and numbers of rows agree; `leeway ledgers check` holds every row against the rest.")
	overdue     = sharedGauge("leeway_ledger_overdue_rows", "Spend rows that are open although their attempt must have been over for a while.")
	rows        = sharedGauge("leeway_ledger_rows", "Rows of a ledger in Redis.", "ledger")
	overRows    = sharedGauge("leeway_ledger_over_rows", "Rows of a ledger in Redis beyond keep.ledger_rows: the archive does not keep up, and Redis grows.", "ledger")
	oldest      = sharedGauge("leeway_ledger_oldest_ms", "When the oldest row of a ledger in Redis was booked, as milliseconds since 1970; absent for an empty ledger.", "ledger")
	archiveLag  = sharedGauge("leeway_archive_lag_rows", "Rows that are booked and not archived; absent without an archive.", "ledger")
	archivedAt  = sharedGauge("leeway_archive_last_success_ms", "When the archive last had every row or took a batch, as milliseconds since 1970; absent without an archive.")
)

// ledgers adds what the store says of the two ledgers and their archive.
func (m *Metrics) ledgers(s store.Store, cfg func() *config.Config) {
	m.collect(func(ctx context.Context, value give) {
		books, err := s.Overview(ctx)
		if err != nil {
			return
		}
		value(balanced, bit(books.Balanced))
		value(overdue, float64(books.Overdue))
		for _, k := range []ledger.Kind{ledger.Spend, ledger.Misses} {
			e := books.Ledgers[k]
			value(rows, float64(e.Rows), string(k))
			value(overRows, float64(e.OverRows), string(k))
			if e.OldestAtMS > 0 {
				value(oldest, float64(e.OldestAtMS), string(k))
			}
			if books.Archive != nil {
				value(archiveLag, float64(books.Archive.LagRows[k]), string(k))
			}
		}
		if books.Archive != nil {
			value(archivedAt, float64(books.Archive.LastSuccessAtMS))
		}
		for _, path := range slackgate.Paths {
			for _, b := range cfg().Pool(path).Backends {
				books.Totals["cost_difference:"+b.Name] += 0 // there from the start
			}
		}
		for name, n := range books.Totals {
			if backend, ok := strings.CutPrefix(name, "cost_difference:"); ok {
				value(costDiffers, float64(n), backend)
			}
		}
	}, costDiffers, balanced, overdue, rows, overRows, oldest, archiveLag, archivedAt)
}

var (
	budgetCap      = sharedGauge("leeway_budget_cap_micro", "What may be spent on paid in a day (UTC), in micro-units of the prices' currency.", "scope", "name")
	budgetSpent    = sharedGauge("leeway_budget_spent_micro", "What of a budget is spent today, in micro-units of the prices' currency.", "scope", "name")
	budgetReserved = sharedGauge("leeway_budget_reserved_micro", "What of a budget is kept for unfinished jobs, at the most that they may cost, in micro-units of the prices' currency.", "scope", "name")
)

// Budgets adds how far budgets are used. Scopes are two, and names are those of
// configured classes and producers: at most 64 and 1000 (config.MaxClasses and
// config.MaxProducers), whatever names submissions carry.
func (m *Metrics) Budgets(read func(ctx context.Context) (*wire.BudgetsAnswer, error)) {
	m.collect(func(ctx context.Context, value give) {
		all, err := read(ctx)
		if err != nil {
			return
		}
		for i := range all.Budgets {
			b := &all.Budgets[i]
			value(budgetCap, float64(b.BudgetMicroPerDay), b.Scope, b.Name)
			value(budgetSpent, float64(b.SpentMicro), b.Scope, b.Name)
			value(budgetReserved, float64(b.ReservedMicro), b.Scope, b.Name)
		}
	}, budgetCap, budgetSpent, budgetReserved)
}

var (
	deliveries     = sharedCounter("webhook_deliveries_total", "Attempts at telling producers the ends of their jobs, by result: delivered; failed, to be tried again; given_up; dropped, as too many waited.", "producer", "result")
	webhookWaiting = sharedGauge("webhook_waiting", "Ends of jobs that a producer's webhook is yet to be told of.", "producer")
)

// Webhooks adds the numbers of the producers that have a webhook.
func (m *Metrics) Webhooks(s store.Store, producers func() []string) {
	m.collect(func(ctx context.Context, value give) {
		names := producers()
		if len(names) == 0 {
			return
		}
		waiting, err := s.WebhooksWaiting(ctx, names)
		if err != nil {
			return
		}
		totals, err := s.Totals(ctx)
		if err != nil {
			return
		}
		for _, name := range names {
			value(webhookWaiting, float64(waiting[name]), name)
			for _, r := range broker.WebhookResults {
				value(deliveries, float64(totals["webhook:"+string(r)+":"+name]), name, string(r))
			}
		}
	}, deliveries, webhookWaiting)
}
