package config

import (
	"maps"
	"slices"

	"leeway/broker"
	"leeway/slackgate"
)

// Limits of what may be said of producers.
const (
	MaxProducers        = 1000
	MaxSubmissionsPerS  = 100_000
	MaxProducerInFlight = 1_000_000
)

// Producers by name: what the key of that name, or without keys a submission
// that gives that name, is limited to.
type Producers map[string]Producer

// Producer is what one producer may do. What is left out is not limited beyond
// what holds for everybody.
type Producer struct {
	// Classes are those it may submit to. Defaults to all.
	Classes []string `yaml:"classes"`
	// MaxInFlight bounds its admitted and unfinished jobs. 0: no limit.
	MaxInFlight int64 `yaml:"max_in_flight"`
	// SubmissionsPerS is how many submissions a second it may make on average,
	// over all replicas and refused ones too; a line of a batch is one. 0: no
	// limit. Burst is how many at once. Defaults to those of a second, at
	// least 1.
	SubmissionsPerS float64 `yaml:"submissions_per_s"`
	Burst           int64   `yaml:"burst"`
	// TextBytes and BatchLines stand before those of limits where they are
	// smaller. 0: those of limits.
	TextBytes  int64 `yaml:"text_bytes"`
	BatchLines int   `yaml:"batch_lines"`
	// BudgetMicroPerDay caps what its jobs may cost in a day, in micro-units.
	// Left out: no cap.
	BudgetMicroPerDay *int64 `yaml:"budget_micro_per_day"`
	// Webhook is told the end of each of its jobs. Defaults to none.
	Webhook *Webhook `yaml:"webhook"`
}

// Quota is what a producer may submit, as the gate takes it.
func (c *Config) Quota(producer string) slackgate.Quota {
	p := c.Producers[producer]
	return slackgate.NewQuota(p.SubmissionsPerS, p.Burst, p.MaxInFlight)
}

// MayUse reports whether a producer may submit to a class.
func (c *Config) MayUse(producer, class string) bool {
	own := c.Producers[producer].Classes
	return len(own) == 0 || slices.Contains(own, class)
}

// TextLimit is the longest text that a producer may submit, in bytes.
func (c *Config) TextLimit(producer string) int64 {
	return smaller(c.Limits.TextBytes, c.Producers[producer].TextBytes)
}

// LineBytes is how long one submission of a producer may be as it is sent.
func (c *Config) LineBytes(producer string) int64 {
	l := c.Limits
	l.TextBytes = c.TextLimit(producer)
	return l.LineBytes()
}

// LinesLimit is how many lines a producer's batch may have.
func (c *Config) LinesLimit(producer string) int {
	return smaller(c.Limits.BatchLines, c.Producers[producer].BatchLines)
}

// smaller is a, or own where that is set and smaller.
func smaller[T int | int64](a, own T) T {
	if own > 0 && own < a {
		return own
	}
	return a
}

// Budget is a cap as the gate takes it.
func Budget(microPerDay *int64) slackgate.Budget {
	if microPerDay == nil {
		return slackgate.Budget{}
	}
	return slackgate.Budget{Set: true, CapMicro: *microPerDay}
}

// Budgets are the caps that bind a producer's jobs of a class.
func (c *Config) Budgets(producer, class string) (b [slackgate.NumBudgets]slackgate.Budget) {
	b[slackgate.ProducerBudget] = Budget(c.Producers[producer].BudgetMicroPerDay)
	b[slackgate.ClassBudget] = Budget(c.Classes[class].BudgetMicroPerDay)
	return b
}

// Budgeted reports whether any cap is set.
func (c *Config) Budgeted() bool { return c.budgetField() != "" }

// budgetField is the path of the first budget in the file; empty without one.
func (c *Config) budgetField() string {
	for _, n := range slices.Sorted(maps.Keys(c.Producers)) {
		if c.Producers[n].BudgetMicroPerDay != nil {
			return "producers." + n + ".budget_micro_per_day"
		}
	}
	for _, n := range slices.Sorted(maps.Keys(c.Classes)) {
		if c.Classes[n].BudgetMicroPerDay != nil {
			return "classes." + n + ".budget_micro_per_day"
		}
	}
	return ""
}

// Currency is that of the backends that cost something; USD without any.
// Budgets are in it.
func (c *Config) Currency() string {
	for cur := range c.currencies {
		return cur
	}
	return "USD"
}

// currencies calls yield with the currency of each price above zero.
func (c *Config) currencies(yield func(string) bool) {
	for _, path := range slackgate.Paths {
		for _, b := range c.Pool(path).Backends {
			for _, p := range b.tariff() {
				if (p.InputMicroPerMTok > 0 || p.CachedMicroPerMTok > 0 || p.OutputMicroPerMTok > 0 || p.CallMicro > 0) && !yield(p.Currency) {
					return
				}
			}
		}
	}
}

// tariff is every price the backend has at some time.
func (b *Backend) tariff() []Price {
	if len(b.Prices) == 0 {
		return []Price{b.Price}
	}
	out := make([]Price, len(b.Prices))
	for i := range b.Prices {
		out[i] = b.Prices[i].Price
	}
	return out
}

func (c *Config) completeProducers() error {
	if len(c.Producers) > MaxProducers {
		return broker.Fieldf("producers", "more than %d", MaxProducers)
	}
	for n, p := range c.Producers {
		if err := c.completeProducer(n, &p); err != nil {
			return err
		}
		c.Producers[n] = p
	}
	field := c.budgetField()
	if field == "" {
		return nil
	}
	first := c.Currency()
	for cur := range c.currencies {
		if cur != first {
			return broker.Fieldf(field, "the backends' prices are in %s and %s: a budget needs one currency", first, cur)
		}
	}
	return nil
}

func (c *Config) completeProducer(n string, p *Producer) error {
	at := "producers." + n
	if !name.MatchString(n) {
		return broker.Fieldf("producers", "%q: use a-z, 0-9, '.', '_' and '-'", n)
	}
	if len(c.Access.Producers) > 0 && !slices.ContainsFunc(c.Access.Producers, func(k Key) bool { return k.Name == n }) {
		return broker.Fieldf(at, "access.producers has no key of that name")
	}
	for _, cl := range p.Classes {
		if _, ok := c.Classes[cl]; !ok {
			return broker.Fieldf(at+".classes", "%q is not among the classes", cl)
		}
	}
	if !(p.SubmissionsPerS >= 0 && p.SubmissionsPerS <= MaxSubmissionsPerS) {
		return broker.Fieldf(at+".submissions_per_s", "%v is outside 0..%d", p.SubmissionsPerS, MaxSubmissionsPerS)
	}
	if p.SubmissionsPerS > 0 && p.SubmissionsPerS < 0.001 {
		return broker.Fieldf(at+".submissions_per_s", "%v is less than one in 1000 s", p.SubmissionsPerS)
	}
	switch {
	case p.SubmissionsPerS == 0 && p.Burst != 0:
		return broker.Fieldf(at+".burst", "needs submissions_per_s")
	case p.SubmissionsPerS > 0 && p.Burst == 0:
		p.Burst = max(1, int64(p.SubmissionsPerS))
	}
	return firstError(
		within(at+".max_in_flight", p.MaxInFlight, 0, MaxProducerInFlight),
		within(at+".burst", p.Burst, 0, MaxSubmissionsPerS),
		within(at+".text_bytes", p.TextBytes, 0, MaxTextBytesHard),
		within(at+".batch_lines", int64(p.BatchLines), 0, 10_000_000),
		checkBudget(at, p.BudgetMicroPerDay),
		p.Webhook.complete(at+".webhook"),
	)
}

func checkBudget(at string, micro *int64) error {
	if micro == nil {
		return nil
	}
	return within(at+".budget_micro_per_day", *micro, 0, slackgate.MaxBudgetMicro)
}
