// Package flag holds the on-call's levers: values set at run time that win over
// the configuration until they are cleared or expire, over all replicas at
// once, for every class or for one.
package flag

import (
	"slices"
	"strconv"
	"strings"

	"leeway/broker"
	"leeway/slackgate"
)

// Name is a flag's name, as in the environment.
type Name string

// The flags.
const (
	AdmitFree     Name = "ADMIT_FREE"
	AdmitPaid     Name = "ADMIT_PAID"
	FreeCut       Name = "FREE_QUEUE_AGE_CUT_MS"
	Reserve       Name = "RESERVE_MS"
	Fallback      Name = "FALLBACK_ENABLED"
	GatePolicy    Name = "GATE_POLICY"
	drainPrefix        = "DRAIN_"
	maxMS              = 7 * 24 * 3600 * 1000
	unsetCut           = "unset"
	classMark          = "@"
	MaxReason          = 500 // bytes of the words given for a change
	MaxNameBytes       = 64
	MaxExpiryMS        = 30 * 24 * 3600 * 1000
	MinExpiryMS        = 1000
	MaxValueBytes      = 32
)

// Names lists the flags an operator may set.
var Names = []Name{AdmitFree, AdmitPaid, FreeCut, Reserve, Fallback, GatePolicy}

// Drain is the flag that stands for a pool being drained. It is set by the
// drain routes alone.
func Drain(p slackgate.Path) Name { return Name(drainPrefix + strings.ToUpper(p.String())) }

// Parse checks a name from outside.
func Parse(s string) (Name, error) {
	if n := Name(s); slices.Contains(Names, n) {
		return n, nil
	}
	return "", broker.Fieldf("name", "is not one of %v", Names)
}

// Check reports whether a flag may have a value.
func (n Name) Check(value string) error {
	switch n {
	case AdmitFree, AdmitPaid, Fallback:
		if _, err := parseBool(value); err != nil {
			return broker.Fieldf("value", "%s is 0 or 1", n)
		}
	case FreeCut, Reserve:
		if n == FreeCut && value == unsetCut {
			return nil
		}
		if v, err := strconv.ParseInt(value, 10, 64); err != nil || v < 0 || v > maxMS {
			return broker.Fieldf("value", "%s is a number of milliseconds in 0..%d", n, maxMS)
		}
	case GatePolicy:
		var r slackgate.Rule
		if r.UnmarshalText([]byte(value)) != nil {
			return broker.Fieldf("value", "%s is predictive or seed", n)
		}
	default:
		return broker.Fieldf("name", "is not one of %v", Names)
	}
	return nil
}

func parseBool(s string) (bool, error) {
	switch s {
	case "1", "true":
		return true, nil
	case "0", "false":
		return false, nil
	}
	return false, strconv.ErrSyntax
}

// Entry is a value set at run time.
type Entry struct {
	Name  Name   `json:"name"`
	Class string `json:"class,omitempty"` // empty: every class
	Value string `json:"value"`
	// By, Reason and AtMS say who set it, why and when.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason"`
	AtMS   int64  `json:"at_ms"`
	// UntilAtMS is when it ends by itself; 0: when it is cleared.
	UntilAtMS int64 `json:"until_ms,omitempty"`
}

// Key is the entry's place in the store.
func (e *Entry) Key() string { return Key(e.Name, e.Class) }

// Key is where the value of a flag for a class is kept.
func Key(n Name, class string) string {
	if class == "" {
		return string(n)
	}
	return string(n) + classMark + class
}

// live reports whether the entry holds at nowMS.
func (e *Entry) live(nowMS int64) bool { return e.UntilAtMS == 0 || nowMS < e.UntilAtMS }

// Table is all entries as read from the store at one moment. It is read-only.
type Table struct {
	// Version changes with every change of an entry.
	Version int64
	entries map[string]*Entry
}

// NewTable returns a table of entries.
func NewTable(version int64, entries []Entry) *Table {
	t := &Table{Version: version, entries: make(map[string]*Entry, len(entries))}
	for i := range entries {
		t.entries[entries[i].Key()] = &entries[i]
	}
	return t
}

// ValidUntilAtMS is when the first live entry expires: decisions made from the
// table hold until then. 0: no entry expires.
func (t *Table) ValidUntilAtMS(nowMS int64) int64 {
	var until int64
	for _, e := range t.entries {
		if e.UntilAtMS > nowMS && (until == 0 || e.UntilAtMS < until) {
			until = e.UntilAtMS
		}
	}
	return until
}

// Get returns the live entry that holds for a class: its own, else the one for
// every class; nil if neither is set.
func (t *Table) Get(n Name, class string, nowMS int64) *Entry {
	if class != "" {
		if e := t.entries[Key(n, class)]; e != nil && e.live(nowMS) {
			return e
		}
	}
	if e := t.entries[Key(n, "")]; e != nil && e.live(nowMS) {
		return e
	}
	return nil
}

// Live lists the live entries, by key.
func (t *Table) Live(nowMS int64) []Entry {
	var out []Entry
	for _, e := range t.entries {
		if e.live(nowMS) {
			out = append(out, *e)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(a.Key(), b.Key()) })
	return out
}

// Draining reports whether a pool is being drained.
func (t *Table) Draining(p slackgate.Path, nowMS int64) bool {
	return t.Get(Drain(p), "", nowMS) != nil
}

// Values are what holds for a class: what the configuration says, as changed
// by the table.
type Values struct {
	AdmitPaid, AdmitFree bool
	// FreeCutMS is nil when no cut is set: the policy's default holds.
	FreeCutMS *int64
	ReserveMS int64
	Fallback  bool
	Policy    slackgate.Rule
}

// Text is the value of a flag as an operator would set it.
func (v Values) Text(n Name) string {
	bit := func(b bool) string {
		if b {
			return "1"
		}
		return "0"
	}
	switch n {
	case AdmitPaid:
		return bit(v.AdmitPaid)
	case AdmitFree:
		return bit(v.AdmitFree)
	case Fallback:
		return bit(v.Fallback)
	case Reserve:
		return strconv.FormatInt(v.ReserveMS, 10)
	case GatePolicy:
		return v.Policy.String()
	case FreeCut:
		if v.FreeCutMS != nil {
			return strconv.FormatInt(*v.FreeCutMS, 10)
		}
	}
	return unsetCut
}

// Apply returns the values for a class at nowMS. An entry that cannot be read
// is on the safe side: it closes what it would open or close, and changes
// nothing else.
func (t *Table) Apply(start Values, class string, nowMS int64) Values {
	v := start
	set := func(n Name, dst *bool) {
		if e := t.Get(n, class, nowMS); e != nil {
			on, err := parseBool(e.Value)
			*dst = err == nil && on
		}
	}
	// Closing wins: a pool that is closed for every class is closed for each,
	// whatever was set for one before.
	admit := func(n Name, dst *bool) {
		set(n, dst)
		if e := t.Get(n, "", nowMS); e != nil {
			on, err := parseBool(e.Value)
			*dst = *dst && err == nil && on
		}
	}
	admit(AdmitPaid, &v.AdmitPaid)
	admit(AdmitFree, &v.AdmitFree)
	set(Fallback, &v.Fallback)
	if e := t.Get(FreeCut, class, nowMS); e != nil {
		n, err := strconv.ParseInt(e.Value, 10, 64)
		switch {
		case e.Value == unsetCut:
			v.FreeCutMS = nil
		case err != nil || n < 0:
			v.FreeCutMS = new(int64)
		default:
			v.FreeCutMS = &n
		}
	}
	if e := t.Get(Reserve, class, nowMS); e != nil {
		if n, err := strconv.ParseInt(e.Value, 10, 64); err == nil && n >= 0 {
			v.ReserveMS = n
		}
	}
	if e := t.Get(GatePolicy, class, nowMS); e != nil {
		var r slackgate.Rule
		if r.UnmarshalText([]byte(e.Value)) == nil {
			v.Policy = r
		}
	}
	if t.Draining(slackgate.Paid, nowMS) {
		v.AdmitPaid = false
	}
	if t.Draining(slackgate.Free, nowMS) {
		v.AdmitFree = false
	}
	return v
}

// Change is a row of the audit trail.
type Change struct {
	ID     string `json:"id"`
	AtMS   int64  `json:"at_ms"`
	Name   Name   `json:"name"`
	Class  string `json:"class,omitempty"`
	From   string `json:"from"` // empty: not set
	To     string `json:"to"`   // empty: cleared
	By     string `json:"by,omitempty"`
	Reason string `json:"reason"`
	// UntilAtMS is when the new value ends by itself; 0: when it is cleared.
	UntilAtMS int64 `json:"until_ms,omitempty"`
}

// Unreadable stands for a value in the store that nobody can read.
func Unreadable(key string) Entry {
	name, class, _ := strings.Cut(key, classMark)
	return Entry{Name: Name(name), Class: class, Value: "?", Reason: "unreadable value in the store"}
}
