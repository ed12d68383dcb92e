package ledger

import (
	"bytes"
	"strings"
	"testing"

	"leeway/broker"
	"leeway/slackgate"
)

func FuzzParseField(f *testing.F) {
	for _, s := range []string{"s:attempts:paid:summary:lab:p", "m:empty:free:c:b:", "s:cost.USD:paid:c:b:a:b:c", "", "s::paid:c:b:p", "x:a:paid:c:b:p", "s:a:gold:c:b:p", "s:a:paid:c:b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if field, ok := ParseField(s); ok && field.String() != s {
			t.Errorf("%q reads as %+v, which is written %q", s, field, field.String())
		}
	})
}

func TestField(t *testing.T) {
	for s, want := range map[string]bool{
		"s:attempts:paid:summary:lab:p": true, "m:empty:reject:summary::": true, "s:input:free:c:b:a:b|c": true,
		"s:input:free:c:b": false, "s::free:c:b:p": false, "t:input:free:c:b:p": false, "s:input:gold:c:b:p": false, "": false,
	} {
		if f, ok := ParseField(s); ok != want || (ok && f.String() != s) {
			t.Errorf("%q: %+v, %v", s, f, ok)
		}
	}
}

func TestCompareIDs(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"1-1", "1-1", 0}, {"1-1", "1-2", -1}, {"1-10", "1-9", 1}, {"2-0", "10-0", -1}, {"9223372036854775807-0", "1-0", 1},
	} {
		if got := CompareIDs(tt.a, tt.b); got != tt.want {
			t.Errorf("%s and %s: %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
	for id, want := range map[string]int64{"1764460800000-3": 1764460800000, "": 0, "x-1": 0, "-1": 0} {
		if got := IDTimeMS(id); got != want {
			t.Errorf("%q: %d, want %d", id, got, want)
		}
	}
}

func TestFilter(t *testing.T) {
	paid, free := slackgate.Paid, slackgate.Free
	spend := broker.SpendRow{Path: paid, Class: "c", Producer: "p", Backend: "b", Usage: broker.Usage{Known: broker.KnownReported}}
	miss := broker.MissRow{Path: paid, Class: "c", Producer: "p", Backend: "b", Cause: broker.CauseEmpty, Outcome: broker.OutcomeEmpty}
	for _, tt := range []struct {
		f           Filter
		spend, miss bool
	}{
		{Filter{}, true, true},
		{Filter{Path: &paid, Class: "c", Producer: "p", Backend: "b"}, true, true},
		{Filter{Path: &free}, false, false},
		{Filter{Class: "d"}, false, false},
		{Filter{Producer: "P"}, false, false},
		{Filter{Backend: "c"}, false, false},
		{Filter{Known: broker.KnownUnknown}, false, true},
		{Filter{Cause: broker.CauseFailed}, true, false},
		{Filter{Outcome: broker.OutcomeLate}, true, false},
	} {
		if s, m := tt.f.WantsSpend(&spend), tt.f.WantsMiss(&miss); s != tt.spend || m != tt.miss {
			t.Errorf("%+v: spend %v, miss %v", tt.f, s, m)
		}
	}
}

func TestRollup(t *testing.T) {
	r := Rollup{Kind: Spend, Step: ByHour, Group: []string{"path", "producer"}}
	r.Add(59, map[string]string{"s:attempts:paid:c:b:p": "2", "s:cost.USD:paid:c:b:p": "7", "s:attempts:paid:c:b2:p": "1", "m:empty:paid:c:b:p": "9"})
	r.Add(60, map[string]string{"s:attempts:paid:c:b:p": "4", "nonsense": "1", "s:attempts:free:c:b:p": "x"})
	got := r.Take()
	if len(got) != 2 || got[0].AtMS != 0 || got[0].Attempts != 3 || got[0].CostMicro["USD"] != 7 || got[0].Backend != "" || got[1].AtMS != hourMS || got[1].Attempts != 4 {
		t.Errorf("%+v", got)
	}
	if r.Len() != 0 {
		t.Error("taken sums are still there")
	}
}

func TestWriter(t *testing.T) {
	row := broker.SpendRow{ID: "1-1", JobID: "j", Attempt: 1, Path: slackgate.Paid, Producer: `=HYPERLINK("x")`, Model: "a,\"b\"\nc", ReportedCostMicro: new(int64(5))}
	var buf bytes.Buffer
	w, err := NewWriter(&buf, CSV, SpendHeader)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(&row, func() []string { return SpendRecord(&row) }); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if got := buf.String(); !strings.Contains(got, `"'=HYPERLINK(""x"")"`) || !strings.Contains(got, "\"a,\"\"b\"\"\nc\"") {
		t.Errorf("%s", got)
	}
	if len(SpendRecord(&row)) != len(SpendHeader) || len(MissRecord(&broker.MissRow{})) != len(MissHeader) ||
		len(SumRecord(&Sum{SpendSum: &SpendSum{}})) != len(SumHeader(Spend)) || len(SumRecord(&Sum{MissSum: &MissSum{}})) != len(SumHeader(Misses)) {
		t.Error("records and headers differ in length")
	}
}

func TestSeries(t *testing.T) {
	got := Series(broker.Totals{"miss:reject": 1, "miss_cause:reject:arrived_without_slack": 1, "cost_micro:paid:USD": 5, "admitted:paid": 9, "outcome:free:usable": 2})
	want := map[string]int64{`job_deadline_miss_total{path="reject"}`: 1, `job_cost_micro_total{currency="USD",path="paid"}`: 5, `job_outcome_total{outcome="usable",path="free"}`: 2}
	if len(got) != len(want) {
		t.Errorf("%v", got)
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s is %d, want %d", k, got[k], v)
		}
	}
}

// Rows that were open when the check began may be settled by the time it reads
// the ledger. One that is open to the last and settled as well is not right.
func TestBalanceOfOpenRows(t *testing.T) {
	row := broker.SpendRow{ID: "5-0", JobID: "j", Attempt: 1, Path: slackgate.Paid, Currency: "USD", Usage: broker.Usage{Known: broker.KnownReported}}
	for _, tt := range []struct {
		name          string
		settled, open bool
		want          int
	}{
		{"settled meanwhile, before the ledger was read", true, false, 0},
		{"settled meanwhile, after it", false, false, 0},
		{"open", false, true, 0},
		{"open and settled", true, true, 1},
	} {
		b := NewBalance()
		b.Records([]Record{{ID: "j", Attempts: 1, State: broker.StateRunning, AcceptedAtMS: 1}}, false)
		b.Open([]broker.SpendRow{row})
		b.Books(&Books{NowMS: 6, Totals: broker.Totals{}})
		if tt.settled {
			b.Spend(&row)
		}
		still := []broker.SpendRow{}
		if tt.open {
			still = append(still, row)
		}
		b.StillOpen(still)
		for _, item := range b.Report().Items {
			if item.Name == ItemAttempts && item.Found != tt.want {
				t.Errorf("%s: %d problems with attempts, want %d: %v", tt.name, item.Found, tt.want, item)
			}
		}
	}
}
