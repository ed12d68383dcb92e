// Package ledger is what can be said of the two books without a store: how a
// minute's sums are named, which rows a reader wants, how rows are written out,
// and whether the books balance. Spend and misses stay two books: nothing here
// adds one to the other.
package ledger

import (
	"strconv"
	"strings"

	"leeway/broker"
	"leeway/slackgate"
)

// Kind is one of the two ledgers.
type Kind string

// The ledgers.
const (
	Spend  Kind = "spend"
	Misses Kind = "misses"
)

// OtherProducer is the name under which producers beyond the first
// [MostProducers] of a minute are summed.
const OtherProducer = "other"

// MostProducers is how many producers have sums of their own in a minute. The
// store's scripts hold the same number.
const MostProducers = 200

const (
	minuteMS = 60_000
	hourMS   = 60 * minuteMS
)

// MinuteOf is the number of the minute that holds an instant.
func MinuteOf(ms int64) int64 { return ms / minuteMS }

// MinuteMS is the instant a minute begins.
func MinuteMS(minute int64) int64 { return minute * minuteMS }

// Labels are what a sum is of.
type Labels struct {
	Path     slackgate.Path
	Class    string
	Backend  string
	Producer string
}

// The names of a spend row's sums. Costs and ways of knowing carry the
// currency or the way behind a dot.
const (
	sumAttempts = "attempts"
	sumInput    = "input"
	sumOutput   = "output"
	sumSpent    = "spent"
	sumCost     = "cost."
	sumKnown    = "known."
)

// Field is one number among a minute's sums.
type Field struct {
	Kind Kind
	// Name is what is summed; for misses it is the cause.
	Name string
	Labels
}

// String is the field's name in the store: ledger, what is summed, path, class,
// backend and, because it may hold anything, the producer last.
func (f Field) String() string {
	k := "s:"
	if f.Kind == Misses {
		k = "m:"
	}
	return k + f.Name + ":" + f.Path.String() + ":" + f.Class + ":" + f.Backend + ":" + f.Producer
}

// ParseField reads a field's name; false when it is none of ours.
func ParseField(s string) (f Field, ok bool) {
	p := strings.SplitN(s, ":", 6)
	if len(p) != 6 || p[1] == "" {
		return Field{}, false
	}
	switch p[0] {
	case "s":
		f.Kind = Spend
	case "m":
		f.Kind = Misses
	default:
		return Field{}, false
	}
	if f.Path.UnmarshalText([]byte(p[2])) != nil {
		return Field{}, false
	}
	f.Name, f.Class, f.Backend, f.Producer = p[1], p[3], p[4], p[5]
	return f, true
}

// Sums are a minute's numbers by field name.
type Sums map[string]int64

func (s Sums) add(f Field, n int64) {
	if n != 0 {
		s[f.String()] += n
	}
}

// AddSpend adds what a spend row contributes to its minute. producer is the
// name it is summed under.
func (s Sums) AddSpend(r *broker.SpendRow, producer string) {
	f := Field{Kind: Spend, Labels: Labels{Path: r.Path, Class: r.Class, Backend: r.Backend, Producer: producer}}
	for _, x := range [...]struct {
		name string
		n    int64
	}{
		{sumAttempts, 1},
		{sumInput, r.InputTokens},
		{sumOutput, r.OutputTokens},
		{sumSpent, r.SpentTokens()},
		{sumCost + r.Currency, r.CostMicro},
		{sumKnown + string(r.Known), 1},
	} {
		f.Name = x.name
		s.add(f, x.n)
	}
}

// AddMiss adds a miss row to its minute.
func (s Sums) AddMiss(r *broker.MissRow, producer string) {
	s.add(Field{
		Kind: Misses, Name: string(r.Cause),
		Labels: Labels{Path: r.Path, Class: r.Class, Backend: r.Backend, Producer: producer},
	}, 1)
}

// IDTimeMS is the instant a row was booked, which its id begins with; 0 for
// none.
func IDTimeMS(id string) int64 {
	ms, _, _ := strings.Cut(id, "-")
	n, err := strconv.ParseInt(ms, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// CompareIDs orders the ids of rows: negative when a was booked before b.
func CompareIDs(a, b string) int {
	ams, aseq := splitID(a)
	bms, bseq := splitID(b)
	switch {
	case ams != bms:
		return cmp(ams, bms)
	default:
		return cmp(aseq, bseq)
	}
}

func cmp(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func splitID(id string) (ms, seq uint64) {
	a, b, _ := strings.Cut(id, "-")
	ms, _ = strconv.ParseUint(a, 10, 64)
	seq, _ = strconv.ParseUint(b, 10, 64)
	return ms, seq
}
