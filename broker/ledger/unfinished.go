package ledger

import (
	"fmt"

	"leeway/broker"
)

// ItemUnfinished is the item of a report on each producer's unfinished jobs, by
// which its share and its limit are counted.
const ItemUnfinished = "unfinished"

// Listed is a page of a producer's unfinished jobs in one pool, held against
// the jobs' records at one instant.
type Listed struct {
	Pool, Producer string
	// Jobs is how many were looked at. Gone is how many of them have no record:
	// nobody knows whose they are, and they are forgotten an hour after they
	// were due.
	Jobs, Gone int64
	// Ended are those that are not unfinished, not in that pool or not of that
	// producer.
	Ended []string
}

type listedSums struct{ jobs, gone int64 }

// Listed takes in a page of a producer's unfinished jobs.
func (b *Balance) Listed(l *Listed) {
	b.listed.jobs += l.Jobs
	b.listed.gone += l.Gone
	for _, id := range l.Ended {
		b.problemf(ItemUnfinished, "job %s counts as unfinished in %s for producer %q, and is not", id, l.Pool, l.Producer)
	}
}

// unfinished: each unfinished job on record is among its producer's.
func (b *Balance) unfinished() {
	jobs := 0
	for i := range b.records {
		r := &b.records[i]
		if r.State == broker.StateDone {
			continue
		}
		jobs++
		if r.Unlisted {
			b.problemf(ItemUnfinished, "job %s is unfinished and not among its producer's in its place", r.ID)
		}
	}
	some := ""
	if b.listed.gone > 0 {
		some = fmt.Sprintf(", %d of them without a record", b.listed.gone)
	}
	b.items[ItemUnfinished].Detail = fmt.Sprintf("each producer's unfinished jobs are those on record: %d on record, %d counted%s",
		jobs, b.listed.jobs, some)
}
