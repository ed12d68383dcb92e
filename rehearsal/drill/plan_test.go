package drill

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// Every built-in plan can be read, is listed once and is named as its file.
func TestPlans(t *testing.T) {
	files, err := planFiles.ReadDir("plans")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(order) {
		t.Errorf("%d plan files, %d listed", len(files), len(order))
	}
	for i, p := range Plans() {
		if p.Name != order[i] || p.About == "" {
			t.Errorf("plan %s: named %q, about %q", order[i], p.Name, p.About)
		}
	}
	if _, err := Named("../plan"); err == nil || !strings.Contains(err.Error(), "declared") {
		t.Errorf("an unknown drill: %v; want the names there are", err)
	}
}

const goodPlan = `
name: mine
class: {deadline_ms: 1000, reserve_ms: 0}
paid: {slots: 1, p95_ms: 100, labs: [{name: lab-paid, first_byte: "fixed:90ms"}]}
arrivals: [{count: 3}]
thresholds: [usable >= 1]
`

// A plan that is wrong is refused with what is wrong.
func TestBadPlans(t *testing.T) {
	if _, err := ParsePlan([]byte(goodPlan)); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ old, new, want string }{
		{"name: mine", "name: Mine!", "name"},
		{"name: mine", "name: mine\ncolour: red", "colour"},
		{"deadline_ms: 1000", "deadline_ms: 0", "deadline_ms"},
		{"reserve_ms: 0", "reserve_ms: 1000", "reserve_ms"},
		{"slots: 1", "slots: -1", "paid.slots"},
		{"slots: 1", "slots: 0", "no slots"},
		{"p95_ms: 100", "p95_ms: 0", "p95_ms"},
		{"fixed:90ms", "fixed:soon", "first_byte"},
		{"{count: 3}", "{count: 3, per_second: 2}", "arrivals[0]"},
		{"{count: 3}", "{count: 20001}", "arrivals[0]"},
		{"{count: 3}", "{per_second: 100, for_ms: 600000}", "arrivals[0]"},
		{"{count: 3}", "{per_second: 1, for_ms: 9000000}", "arrivals[0]"},
		{"{count: 3}", "{count: 1, for_ms: 1000}", "every_ms"},
		{"{count: 3}", "{per_second: 0.1, for_ms: 1000}", "none"},
		{"[usable >= 1]", "[]", "thresholds"},
		{"usable >= 1", "usable > 1", "usable > 1"},
		{"usable >= 1", "beauty >= 1", "beauty"},
		{"usable >= 1", "answered.lab-free.after >= 1", "answered"},
		{"thresholds", "events: [{at_ms: 0, do: dance}]\nthresholds", "dance"},
		{"thresholds", "events: [{at_ms: 0, do: fault, on: lab-free, fault: slow}]\nthresholds", "lab-free"},
		{"thresholds", "events: [{at_ms: 0, do: flag, on: COLOUR, value: '1'}]\nthresholds", "name"},
		{"thresholds", "events: [{at_ms: 9, do: kill-worker}, {at_ms: 8, do: add-worker}]\nthresholds", "events[1]"},
		{"thresholds", "contrast: lab-free\nthresholds", "contrast"},
	} {
		doc := strings.Replace(goodPlan, row.old, row.new, 1)
		if _, err := ParsePlan([]byte(doc)); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v; want an error that names %s", row.new, err, row.want)
		}
	}
}

// Thresholds hold on both sides of their number as they say.
func TestThreshold(t *testing.T) {
	for _, row := range []struct {
		threshold        string
		below, at, above bool
	}{
		{"usable >= 180", false, true, true},
		{"usable <= 180", true, true, false},
		{"usable == 180", false, true, false},
	} {
		th, err := ParseThreshold(row.threshold)
		if err != nil || th.String() != row.threshold {
			t.Errorf("%s: %v, %v", row.threshold, th, err)
		}
		if th.Holds(179) != row.below || th.Holds(180) != row.at || th.Holds(181) != row.above {
			t.Errorf("%s: 179 %t, 180 %t, 181 %t", row.threshold, th.Holds(179), th.Holds(180), th.Holds(181))
		}
	}
}

// FuzzParsePlan: no plan from outside panics or asks for more than the bounds.
func FuzzParsePlan(f *testing.F) {
	f.Add([]byte(goodPlan))
	for _, name := range order {
		doc, err := planFiles.ReadFile("plans/" + name + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(doc)
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		p, err := ParsePlan(doc)
		if err != nil {
			return
		}
		jobs, err := p.Schedule()
		if err != nil || len(jobs) == 0 || len(jobs) > MaxJobs {
			t.Errorf("a plan with %d jobs, %v", len(jobs), err)
		}
	})
}

// FuzzReadEvidence: no file of evidence panics.
func FuzzReadEvidence(f *testing.F) {
	p, err := ParsePlan([]byte(goodPlan))
	if err != nil {
		f.Fatal(err)
	}
	e := Evidence{Format: Format, Plan: p, Runs: []*Run{{Metrics: map[string]float64{"usable": 3}}}}
	var buf bytes.Buffer
	if err := e.Write(&buf); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	f.Add([]byte(`{"format":1,"plan":{},"runs":[null]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		e, err := decodeEvidence(bytes.NewReader(doc))
		if err != nil {
			return
		}
		if _, err := json.Marshal(e); err != nil {
			t.Error(err)
		}
	})
}
