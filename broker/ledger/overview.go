package ledger

import "leeway/broker"

// Overview is what can be said of the books without reading a row.
type Overview struct {
	// Balanced is set when they are; see [Books.Balanced].
	Balanced bool
	// Overdue are the spend rows that are open although their attempt must have
	// been over for a while.
	Overdue int64
	Totals  broker.Totals
	Ledgers map[Kind]InStore
	// Archive is how far the archive has come; nil without one.
	Archive *ArchiveState
}

// InStore is what of a ledger is in the store.
type InStore struct {
	Rows int64
	// OverRows is how many are there beyond what stays, with an archive that does
	// not keep up.
	OverRows int64
	// OldestAtMS is when the oldest was booked; 0 for an empty ledger.
	OldestAtMS int64
}

// Add makes the overview that of two stores together.
func (o *Overview) Add(more *Overview) {
	o.Balanced = o.Balanced && more.Balanced
	o.Overdue += more.Overdue
	o.Totals.Add(more.Totals)
	for k, m := range more.Ledgers {
		sum := o.Ledgers[k]
		sum.Rows += m.Rows
		sum.OverRows += m.OverRows
		if m.OldestAtMS > 0 && (sum.OldestAtMS == 0 || m.OldestAtMS < sum.OldestAtMS) {
			sum.OldestAtMS = m.OldestAtMS
		}
		o.Ledgers[k] = sum
	}
	switch {
	case more.Archive == nil:
	case o.Archive == nil:
		o.Archive = more.Archive
	default:
		o.Archive.LastSuccessAtMS = min(o.Archive.LastSuccessAtMS, more.Archive.LastSuccessAtMS)
		for k, n := range more.Archive.LagRows {
			o.Archive.LagRows[k] += n
		}
	}
}
