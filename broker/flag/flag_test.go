package flag

import (
	"testing"

	"leeway/slackgate"
)

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name  Name
		value string
		ok    bool
	}{
		{AdmitFree, "0", true}, {AdmitFree, "1", true}, {AdmitFree, "true", true}, {AdmitFree, "2", false}, {AdmitFree, "", false},
		{Reserve, "0", true}, {Reserve, "604800000", true}, {Reserve, "604800001", false}, {Reserve, "-1", false}, {Reserve, "1.5", false},
		{FreeCut, "unset", true}, {FreeCut, "0", true}, {FreeCut, "3s", false},
		{GatePolicy, "seed", true}, {GatePolicy, "predictive", true}, {GatePolicy, "open", false},
		{Drain(slackgate.Free), "1", false}, {"NOBODY", "1", false},
	} {
		if err := tt.name.Check(tt.value); (err == nil) != tt.ok {
			t.Errorf("%s=%q: %v", tt.name, tt.value, err)
		}
	}
}

func TestApply(t *testing.T) {
	start := Values{AdmitPaid: true, AdmitFree: true, Fallback: true, ReserveMS: 100}
	apply := func(class string, nowMS int64, entries ...Entry) Values {
		return NewTable(1, entries).Apply(start, class, nowMS)
	}
	closed := Entry{Name: AdmitFree, Value: "0"}
	if v := apply("a", 1, closed); v.AdmitFree || !v.AdmitPaid {
		t.Errorf("closed for all: %+v", v)
	}
	if v := apply("b", 1, Entry{Name: AdmitFree, Class: "a", Value: "0"}); !v.AdmitFree {
		t.Errorf("closed for another class: %+v", v)
	}
	if v := apply("a", 1, closed, Entry{Name: AdmitFree, Class: "a", Value: "1"}); v.AdmitFree {
		t.Error("a class's own value reopened what is closed for all")
	}
	for _, tt := range []struct {
		nowMS int64
		open  bool
	}{{9, false}, {10, true}} { // until is the first instant at which it no longer holds
		if v := apply("a", tt.nowMS, Entry{Name: AdmitFree, Value: "0", UntilAtMS: 10}); v.AdmitFree != tt.open {
			t.Errorf("at %d ms: open %v", tt.nowMS, v.AdmitFree)
		}
	}
	if v := apply("a", 1, Entry{Name: Drain(slackgate.Paid), Value: "1"}); v.AdmitPaid || !v.AdmitFree {
		t.Errorf("paid drained: %+v", v)
	}
	if v := apply("a", 1, Entry{Name: AdmitPaid, Value: "?"}, Entry{Name: FreeCut, Value: "?"}, Entry{Name: Reserve, Value: "?"}); v.AdmitPaid ||
		v.FreeCutMS == nil || *v.FreeCutMS != 0 || v.ReserveMS != 100 {
		t.Errorf("unreadable values must close: %+v", v)
	}
}

func TestValidUntil(t *testing.T) {
	table := NewTable(1, []Entry{{Name: AdmitFree, Value: "0", UntilAtMS: 50}, {Name: AdmitPaid, Value: "1"}, {Name: Reserve, Value: "1", UntilAtMS: 20}})
	for _, tt := range []struct{ nowMS, want int64 }{{0, 20}, {19, 20}, {20, 50}, {50, 0}} {
		if got := table.ValidUntilAtMS(tt.nowMS); got != tt.want {
			t.Errorf("at %d: %d; want %d", tt.nowMS, got, tt.want)
		}
	}
}
