package ledger

import (
	"fmt"
	"strings"

	"leeway/broker"
	"leeway/slackgate"
)

// ItemBudgets is the item of a report on budgets.
const ItemBudgets = "budgets"

// MostHeld is how many reservations a check looks at one by one.
const MostHeld = 20_000

// MostSpenders is how many producers and classes have sums of their own in a
// day. The store's scripts hold the same number.
const MostSpenders = 1000

// Sums of a budget are named after what they are charged to.
const (
	classField    = "c:"
	producerField = "p:"
)

// ClassField names the sums of a class.
func ClassField(class string) string { return classField + class }

// ProducerField names the sums of a producer.
func ProducerField(producer string) string { return producerField + producer }

// BudgetBooks is what the store says of budgets at one instant.
type BudgetBooks struct {
	// Reserved and Spent are the sums by field, Spent those of today.
	Reserved, Spent map[string]int64
	// Held counts the jobs for which something is reserved; HeldSums are the
	// sums of their reservations. HeldSums is nil where there were more than
	// MostHeld.
	Held     int64
	HeldSums map[string]int64
	// Orphans are jobs that hold a reservation although they are not
	// unfinished in paid.
	Orphans []string
}

// spentBy adds what a row cost to the sums of its day.
func (b *Balance) spentBy(r *broker.SpendRow) {
	if b.books.Budgets == nil || r.CostMicro <= 0 || dayOf(IDTimeMS(r.ID)) != dayOf(b.books.NowMS) {
		return
	}
	b.spentToday[ClassField(r.Class)] += r.CostMicro
	b.spentToday[ProducerField(r.Producer)] += r.CostMicro
}

func dayOf(ms int64) int64 { return ms / slackgate.DayMS }

// budgets: what is reserved is the sum of what unfinished jobs hold, and what
// was spent today is the sum of today's rows.
func (b *Balance) budgets() {
	q := b.books.Budgets
	if q == nil {
		b.items[ItemBudgets].Detail = "budgets were not looked at"
		return
	}
	for _, id := range q.Orphans {
		b.problemf(ItemBudgets, "job %s holds a reservation and is not unfinished in paid", id)
	}
	var total int64
	for f, n := range q.Reserved {
		if n < 0 {
			b.problemf(ItemBudgets, "%s: %d micro-units are reserved", f, n)
		}
		if strings.HasPrefix(f, classField) {
			total += n
		}
	}
	some := ""
	if q.HeldSums == nil && q.Held > 0 {
		some = "; there are too many to look at each"
	} else {
		b.equal("reserved", q.Reserved, "what jobs hold is", q.HeldSums)
	}
	first := b.books.Spend.First // empty where the archive has taken every row
	if b.books.whole(Spend) || first != "" && dayOf(IDTimeMS(first)) < dayOf(b.books.NowMS) {
		rows := b.spentToday
		if len(q.Spent) >= MostSpenders { // names beyond have no sum
			rows = map[string]int64{}
			for f := range q.Spent {
				rows[f] = b.spentToday[f]
			}
		}
		b.equal("spent today", q.Spent, "today's rows cost", rows)
	} else {
		some += "; not all of today's rows are here to sum"
	}
	b.items[ItemBudgets].Detail = fmt.Sprintf("what is reserved is what unfinished jobs hold, what is spent today is the sum of its rows: %d micro-units reserved for %d jobs%s",
		total, q.Held, some)
}

func (b *Balance) equal(what string, is map[string]int64, other string, want map[string]int64) {
	for f, n := range is {
		if n != want[f] {
			b.problemf(ItemBudgets, "%s: %d micro-units are %s, %s %d", f, n, what, other, want[f])
		}
	}
	for f, n := range want {
		if _, ok := is[f]; !ok && n != 0 {
			b.problemf(ItemBudgets, "%s: nothing is %s, %s %d", f, what, other, n)
		}
	}
}
