package ledger

import (
	"math"

	"leeway/broker"
	"leeway/slackgate"
)

// Filter says which rows a reader wants. The zero filter wants all.
type Filter struct {
	// FromMS and ToMS bound the instant a row was booked: from the first,
	// up to and without the second. ToMS 0: no end.
	FromMS, ToMS int64
	// Path is reject, paid or free; nil: any.
	Path *slackgate.Path
	// Empty texts match anything.
	Class, Producer, Backend string
	// Known is for spend rows.
	Known broker.Known
	// Cause and Outcome are for miss rows.
	Cause   broker.Cause
	Outcome broker.Outcome
}

// End is the instant before which rows are wanted.
func (f *Filter) End() int64 {
	if f.ToMS == 0 {
		return math.MaxInt64
	}
	return f.ToMS
}

func (f *Filter) labels(l *Labels) bool {
	return (f.Path == nil || *f.Path == l.Path) && is(f.Class, l.Class) && is(f.Producer, l.Producer) && is(f.Backend, l.Backend)
}

// WantsSpend reports whether a spend row is wanted; its time is the page's
// business.
func (f *Filter) WantsSpend(r *broker.SpendRow) bool {
	return f.labels(&Labels{r.Path, r.Class, r.Backend, r.Producer}) && is(f.Known, r.Known)
}

// WantsMiss reports whether a miss row is wanted; its time is the page's
// business.
func (f *Filter) WantsMiss(r *broker.MissRow) bool {
	return f.labels(&Labels{r.Path, r.Class, r.Backend, r.Producer}) && is(f.Cause, r.Cause) && is(f.Outcome, r.Outcome)
}

func is[T ~string](want, got T) bool { return want == "" || want == got }
