package broker

// MaxPage bounds a page of a ledger.
const MaxPage = 1000

// Page is one page of a ledger.
type Page[T any] struct {
	Rows []T `json:"rows"`
	// Next is the cursor of the next page; empty at the end. With a filter a
	// page may hold fewer rows than asked for, even none, and still have a
	// next one.
	Next string `json:"next_cursor,omitempty"`
	// OldestAtMS is when the oldest row that is kept was booked; 0 for an
	// empty ledger. What was booked before is in the archive, if there is one.
	OldestAtMS int64 `json:"reaches_back_to_ms"`
	// Unreadable are rows of this page, whatever was asked for, that cannot be
	// read: they stand for nobody, and stop nobody.
	Unreadable []Unreadable `json:"unreadable,omitempty"`
}

// Unreadable is a row of a ledger that this program cannot read: it was spoilt
// in the store, or a later version wrote it.
type Unreadable struct {
	// ID is the row's place in the ledger, of an open row "<job>/<attempt>".
	ID string `json:"id"`
	// Why is the reader's error, Raw the row as it stands in the store.
	Why string `json:"why"`
	Raw string `json:"-"`
}

// NewestList is one of the lists of the newest.
type NewestList string

// The lists.
const (
	NewestJobs    NewestList = "recent"
	NewestBatches NewestList = "batches"
)

// Listed is an id in a list of the newest.
type Listed struct {
	ID string
	// AtMS is when it was listed.
	AtMS int64
	// After is the cursor of those that come after it.
	After string
}
