package ledger

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"leeway/broker"
)

// Step is how long the time is that one sum is over.
type Step string

// The steps.
const (
	ByMinute Step = "minute"
	ByHour   Step = "hour"
)

// MS is the step's length; 0 for none of ours.
func (s Step) MS() int64 {
	switch s {
	case ByMinute:
		return minuteMS
	case ByHour:
		return hourMS
	}
	return 0
}

// LabelNames are the labels that sums may be kept apart by.
var LabelNames = []string{"path", "class", "producer", "backend"}

// Sum is what was booked in one step under one set of labels. Labels that sums
// were not kept apart by are empty.
type Sum struct {
	AtMS     int64  `json:"at_ms"`
	Path     string `json:"path,omitempty"`
	Class    string `json:"class,omitempty"`
	Producer string `json:"producer,omitempty"`
	Backend  string `json:"backend,omitempty"`
	*SpendSum
	*MissSum
}

// SpendSum are the sums of spend rows.
type SpendSum struct {
	Attempts     int64 `json:"attempts"`
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	// SpentTokens are those that cost money.
	SpentTokens int64 `json:"spent_tokens"`
	// CostMicro is by currency, Known by how the tokens are known.
	CostMicro map[string]int64 `json:"cost_micro"`
	Known     map[string]int64 `json:"known"`
}

// MissSum are the sums of miss rows.
type MissSum struct {
	Misses int64            `json:"misses"`
	Causes map[string]int64 `json:"causes"`
}

// Rollup sums minutes into steps.
type Rollup struct {
	Kind Kind
	Step Step
	// Group are the labels that sums are kept apart by, of [LabelNames].
	Group  []string
	Filter Filter

	sums map[sumKey]*Sum
}

type sumKey struct {
	at int64
	Labels
	anyPath bool
}

// Add takes in a minute's numbers as the store keeps them. Fields of the other
// ledger, and what was not written by us, are passed over.
func (r *Rollup) Add(minute int64, fields map[string]string) {
	for name, v := range fields {
		f, ok := ParseField(name)
		if !ok || f.Kind != r.Kind || !r.Filter.labels(&f.Labels) || (f.Kind == Misses && !is(r.Filter.Cause, broker.Cause(f.Name))) {
			continue
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			continue
		}
		r.sum(minute, &f).add(&f, n)
	}
}

func (r *Rollup) sum(minute int64, f *Field) *Sum {
	at := MinuteMS(minute)
	at -= at % r.Step.MS()
	k := sumKey{at: at, anyPath: true}
	s := Sum{AtMS: at}
	for _, g := range r.Group {
		switch g {
		case "path":
			k.Path, k.anyPath = f.Path, false
			s.Path = f.Path.String()
		case "class":
			k.Class, s.Class = f.Class, f.Class
		case "producer":
			k.Producer, s.Producer = f.Producer, f.Producer
		case "backend":
			k.Backend, s.Backend = f.Backend, f.Backend
		}
	}
	if r.sums == nil {
		r.sums = map[sumKey]*Sum{}
	}
	if r.sums[k] == nil {
		if r.Kind == Spend {
			s.SpendSum = &SpendSum{CostMicro: map[string]int64{}, Known: map[string]int64{}}
		} else {
			s.MissSum = &MissSum{Causes: map[string]int64{}}
		}
		r.sums[k] = &s
	}
	return r.sums[k]
}

func (s *Sum) add(f *Field, n int64) {
	if f.Kind == Misses {
		s.Misses += n
		s.Causes[f.Name] += n
		return
	}
	switch {
	case f.Name == sumAttempts:
		s.Attempts += n
	case f.Name == sumInput:
		s.InputTokens += n
	case f.Name == sumOutput:
		s.OutputTokens += n
	case f.Name == sumSpent:
		s.SpentTokens += n
	case strings.HasPrefix(f.Name, sumCost):
		s.CostMicro[strings.TrimPrefix(f.Name, sumCost)] += n
	case strings.HasPrefix(f.Name, sumKnown):
		s.Known[strings.TrimPrefix(f.Name, sumKnown)] += n
	}
}

// Len is how many sums there are.
func (r *Rollup) Len() int { return len(r.sums) }

// Take returns the sums in order of time, then labels, and forgets them.
func (r *Rollup) Take() []*Sum {
	out := slices.SortedFunc(maps.Values(r.sums), func(a, b *Sum) int {
		for _, d := range []int{
			cmp(uint64(a.AtMS), uint64(b.AtMS)), strings.Compare(a.Path, b.Path), strings.Compare(a.Class, b.Class),
			strings.Compare(a.Backend, b.Backend), strings.Compare(a.Producer, b.Producer),
		} {
			if d != 0 {
				return d
			}
		}
		return 0
	})
	r.sums = nil
	return out
}
