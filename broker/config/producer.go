package config

import (
	"cmp"
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
	// over all replicas, refused and invalid ones too; a line of a batch is one. 0: no
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
	all := c.Limits.TextBytes
	return min(all, cmp.Or(c.Producers[producer].TextBytes, all))
}

// LineBytes is how long one submission of a producer may be as it is sent.
func (c *Config) LineBytes(producer string) int64 {
	l := Limits{TextBytes: c.TextLimit(producer)}
	return l.LineBytes()
}

// LinesLimit is how many lines a producer's batch may have.
func (c *Config) LinesLimit(producer string) int {
	all := c.Limits.BatchLines
	return min(all, cmp.Or(c.Producers[producer].BatchLines, all))
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
	var set []string
	for n, p := range c.Producers {
		if p.BudgetMicroPerDay != nil {
			set = append(set, "producers."+n)
		}
	}
	for n, cl := range c.Classes {
		if cl.BudgetMicroPerDay != nil {
			set = append(set, "classes."+n)
		}
	}
	if len(set) == 0 {
		return ""
	}
	return slices.Min(set) + ".budget_micro_per_day"
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
	for _, b := range c.backends() {
		for _, p := range b.tariff() {
			costs := p.InputMicroPerMTok > 0 || p.CachedMicroPerMTok > 0 || p.OutputMicroPerMTok > 0 || p.CallMicro > 0
			if costs && !yield(p.Currency) {
				return
			}
		}
	}
}

func (c *Config) completeProducers() error {
	if err := atMost("producers", len(c.Producers), MaxProducers); err != nil {
		return err
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
	if p.SubmissionsPerS > 0 {
		orDefault(&p.Burst, max(1, int64(p.SubmissionsPerS)))
	}
	hasKey := slices.ContainsFunc(c.Access.Producers, func(k Key) bool { return k.Name == n })
	return cmp.Or(
		named("producers", n),
		checkf(hasKey || len(c.Access.Producers) == 0, at, "access.producers has no key of that name"),
		c.checkClasses(at+".classes", p.Classes),
		within(at+".submissions_per_s", p.SubmissionsPerS, 0, MaxSubmissionsPerS),
		checkf(p.SubmissionsPerS == 0 || p.SubmissionsPerS >= 0.001, at+".submissions_per_s", "%v is less than one in 1000 s", p.SubmissionsPerS),
		checkf(p.SubmissionsPerS > 0 || p.Burst == 0, at+".burst", "needs submissions_per_s"),
		within(at+".burst", p.Burst, 0, MaxSubmissionsPerS),
		within(at+".max_in_flight", p.MaxInFlight, 0, MaxProducerInFlight),
		within(at+".text_bytes", p.TextBytes, 0, MaxTextBytesHard),
		within(at+".batch_lines", p.BatchLines, 0, 10_000_000),
		checkBudget(at, p.BudgetMicroPerDay),
		p.Webhook.check(at+".webhook"),
	)
}

func (c *Config) checkClasses(field string, classes []string) error {
	for _, class := range classes {
		if _, ok := c.Classes[class]; !ok {
			return broker.Fieldf(field, "%q is not among the classes", class)
		}
	}
	return nil
}

func checkBudget(at string, micro *int64) error {
	if micro == nil {
		return nil
	}
	return within(at+".budget_micro_per_day", *micro, 0, slackgate.MaxBudgetMicro)
}
