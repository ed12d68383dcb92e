package bench

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestRatiosPairTheRounds(t *testing.T) {
	// The machine halves its speed in the last round: the ratio stays.
	m := Ratios("x", []float64{50, 60, 25}, []float64{100, 100, 50})
	if m.Ratio != 0.5 || m.Spread != [2]float64{0.5, 0.6} || m.Value != 50 || m.Base != 100 || m.Rounds != 3 {
		t.Fatalf("%+v", m)
	}
	if m := Values("y", "ms", []float64{4, 2}); m.Ratio != 0 || m.Value != 3 || m.Spread != [2]float64{2, 4} {
		t.Fatalf("%+v", m)
	}
}

func TestRoundsCompareProcessorTimeToo(t *testing.T) {
	m := Rounds("x", []Taken{{50, CPU{30, 10}}, {10, CPU{40, 4}}}, []Taken{{100, CPU{15, 5}}, {100, CPU{16, 6}}})
	if m.Ratio != 0.3 || m.CPURatio != 0.5 || m.CPU != [2]CPU{{35, 7}, {15.5, 5.5}} {
		t.Fatalf("%+v", m)
	}
}

func TestCostsAreRoundsTheOtherWayRound(t *testing.T) {
	m := Costs("x", []Taken{{40, CPU{30, 10}}, {60, CPU{36, 4}}}, []Taken{{100, CPU{15, 5}}, {90, CPU{16, 4}}})
	if m.Ratio != 2 || m.CPURatio != 2 || m.CPU != [2]CPU{{33, 7}, {15.5, 4.5}} || m.Value != 50 || m.Base != 95 {
		t.Fatalf("%+v", m)
	}
}

func TestQuantile(t *testing.T) {
	v := []float64{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, 0.5: 3, 0.8: 5, 1: 5} {
		if got := Quantile(v, q); got != want {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
	if Quantile(nil, 0.5) != 0 {
		t.Error("of none")
	}
}

func TestCheck(t *testing.T) {
	r := Report{Measures: []Measure{{Name: "rate", Ratio: 0.5, Value: 1000}, {Name: "time", Value: 7}, {Name: "cpu", Ratio: 0.1, CPURatio: 0.6}}}
	limit := func(x float64) *float64 { return &x }
	for name, c := range map[string]struct {
		floor Floor
		want  string
	}{
		"at the floor":     {Floor{Name: "rate", Least: limit(0.5)}, ""},
		"below the floor":  {Floor{Name: "rate", Least: limit(0.51)}, "came to 0.50; the floor is 0.51"},
		"processor time":   {Floor{Name: "cpu", Least: limit(0.6)}, ""},
		"at the ceiling":   {Floor{Name: "time", Most: limit(7)}, ""},
		"over the ceiling": {Floor{Name: "time", Most: limit(6.9)}, "came to 7.00; the ceiling is 6.90"},
		"not measured":     {Floor{Name: "gone", Most: limit(1)}, "was not measured"},
	} {
		err := r.Check([]Floor{c.floor})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReportAsTableAndJSON(t *testing.T) {
	r := Report{Machine: "two cores", Measures: []Measure{Ratios("gated / bare", []float64{60}, []float64{100}), Values("dispatch p50", "ms", []float64{6})}}
	var table, doc bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"two cores", "gated / bare", "0.60", "dispatch p50", "6.00"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("%q is missing:\n%s", want, table.String())
		}
	}
	if err := r.WriteJSON(&doc); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(doc.Bytes(), &back); err != nil || len(back.Measures) != 2 || back.Measures[0] != r.Measures[0] {
		t.Fatalf("%+v %v", back, err)
	}
}
