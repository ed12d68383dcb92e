package metrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descBudgetCap      = desc("leeway_budget_cap_micro", "What may be spent on paid in a day (UTC), in micro-units of the prices' currency.", "scope", "name")
	descBudgetSpent    = desc("leeway_budget_spent_micro", "What of a budget is spent today, in micro-units of the prices' currency.", "scope", "name")
	descBudgetReserved = desc("leeway_budget_reserved_micro", "What of a budget is kept for unfinished jobs, at the most that they may cost, in micro-units of the prices' currency.", "scope", "name")
)

// Budget is how far a budget is used. Amounts are in micro-units.
type Budget struct {
	// Scope is producer or class, Name which.
	Scope, Name                         string
	CapMicro, SpentMicro, ReservedMicro int64
}

// budgets collects how far budgets are used.
type budgets struct {
	read func(ctx context.Context) ([]Budget, error)
}

// Budgets adds how far budgets are used. Scopes are two, and names are those of
// configured classes and producers: at most 64 and 1000 (config.MaxClasses and
// config.MaxProducers), whatever names submissions carry.
func (m *Metrics) Budgets(read func(ctx context.Context) ([]Budget, error)) {
	m.registry.MustRegister(&budgets{read})
}

func (c *budgets) Describe(ch chan<- *prometheus.Desc) {
	ch <- descBudgetCap
	ch <- descBudgetSpent
	ch <- descBudgetReserved
}

func (c *budgets) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	all, err := c.read(ctx)
	if err != nil {
		return // leeway_store_up says so
	}
	for i := range all {
		b := &all[i]
		for d, v := range map[*prometheus.Desc]int64{
			descBudgetCap: b.CapMicro, descBudgetSpent: b.SpentMicro, descBudgetReserved: b.ReservedMicro,
		} {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), b.Scope, b.Name)
		}
	}
}
