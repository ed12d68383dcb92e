package report

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"leeway/broker"
	"leeway/rehearsal/drill"
	"leeway/slackgate"
)

// simulated is a drill's evidence, from the simulator.
func simulated(t *testing.T, name string, recheckOff bool) *drill.Evidence {
	t.Helper()
	p, err := drill.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	p.RecheckOff = recheckOff
	p, _ = p.WithoutContrast()
	r, err := drill.Simulate(context.Background(), p, 1)
	if err != nil {
		t.Fatal(err)
	}
	r.Judge(p)
	r.Compare(p)
	return &drill.Evidence{
		Format: drill.Format, Plan: p, Against: "the simulator", Clock: "virtual",
		StartedAt: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC), Runs: []*drill.Run{r},
	}
}

// The plain report says what is declared before, and thresholds first.
func TestText(t *testing.T) {
	e := simulated(t, "free-held", false)
	var out bytes.Buffer
	e.LeftOut = []string{"the moon"}
	Header(&out, e)
	Text(&out, e, e.Runs[0])
	s := out.String()
	at := 0
	for _, want := range []string{
		"drill free-held", "deadline 15000 ms", "gate predictive", "at 52 s: fault lab-free slow after 12000 ms", "threshold", "left out   the moon",
		"\nthresholds\n", "✓ rejected_percent.rise >= 2", "\ntotals\n", "beside", "never summed", "\ndistributions, ms\n",
		"own arrivals and service times", "no schedule beats", "what was done", "simulated:",
	} {
		i := strings.Index(s[at:], want)
		if i < 0 {
			t.Fatalf("%q does not come, or too early, in\n%s", want, s)
		}
		at += i
	}
}

// What nothing could be promised is told apart from what was refused, each with
// what was said.
func TestUndecided(t *testing.T) {
	e := simulated(t, "free-held", false)
	r := e.Runs[0]
	r.Jobs = []drill.Job{{Reason: slackgate.ReasonNoSlack}, {Reason: slackgate.ReasonPoolDown}, {Reason: slackgate.ReasonPoolDown}}
	r.Metrics["rejected"], r.Metrics["undecided"] = 1, 2
	var text, html bytes.Buffer
	Text(&text, e, r)
	for _, want := range []string{"rejected      1   reject_no_slack 1\n", "undecided     2   pool_down 2\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	if err := HTML(&html, e); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(html.String(), "undecided: pool_down 2</span>") {
		t.Error("the page does not say why")
	}
}

// A threshold that does not hold is crossed out, in text and in HTML.
func TestCrossed(t *testing.T) {
	e := simulated(t, "free-held", false)
	e.Plan.Thresholds[0].Value = 1e6
	e.Runs[0].Judge(e.Plan)
	if e.Passed() {
		t.Fatal("passed")
	}
	var text, html bytes.Buffer
	Text(&text, e, e.Runs[0])
	if !strings.Contains(text.String(), "✗ queue_age_free_max_ms >= 1000000") {
		t.Errorf("not crossed out:\n%s", text.String())
	}
	if err := HTML(&html, e); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(html.String(), `<td class="no">✗</td><td>queue_age_free_max_ms &gt;= 1000000</td>`) {
		t.Error("not crossed out in HTML")
	}
}

// One file, with no script and nothing from elsewhere, whatever a plan is
// called.
func TestHTMLSelfContained(t *testing.T) {
	e := simulated(t, "free-slow", false)
	e.Plan.About = `<script>alert(1)</script>`
	e.Runs[0].Done[0].What = `<img src=x>`
	var out bytes.Buffer
	if err := HTML(&out, e); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<script", "<img", "http://", "https://", "<link", "@import"} {
		if strings.Contains(out.String(), bad) {
			t.Errorf("the page holds %s", bad)
		}
	}
	if n := strings.Count(out.String(), "<svg "); n != 3 {
		t.Errorf("%d charts, want 3", n)
	}
}

// An effect smaller than the spread of repeated runs is noise and has no
// figure; one that is larger has one, with the floor beside it.
func TestCompareNoise(t *testing.T) {
	side := func(usable ...float64) *drill.Evidence {
		p, err := drill.Named("declared")
		if err != nil {
			t.Fatal(err)
		}
		e := &drill.Evidence{Plan: p}
		for _, u := range usable {
			e.Runs = append(e.Runs, &drill.Run{Metrics: map[string]float64{"usable": u}})
		}
		return e
	}
	for _, row := range []struct {
		a, b *drill.Evidence
		want string
	}{
		{side(190, 194), side(192, 196), "within noise (floor ±4)"},
		{side(190, 190), side(190, 190), "no difference"},
		{side(190, 194), side(194, 198), "within noise (floor ±4)"}, // 4 against 4
		{side(190, 194), side(195, 199), "+5 (floor ±4)"},
		{side(190, 194), side(170, 172), "-21 (floor ±3)"},
		{side(190), side(192, 194), "+3 (one run: noise unknown)"},
	} {
		var out bytes.Buffer
		Compare(&out, "a.json", row.a, "b.json", row.b)
		if !strings.Contains(out.String(), row.want) {
			t.Errorf("want %s in\n%s", row.want, out.String())
		}
	}
}

// A live run in which something of everything went wrong, to the letter.
func TestTextOfALiveRun(t *testing.T) {
	p, err := drill.Named("attempt-counted")
	if err != nil {
		t.Fatal(err)
	}
	r := &drill.Run{
		Jobs: []drill.Job{
			{Path: slackgate.Paid, Reason: slackgate.ReasonPaid, Outcome: broker.OutcomeUsable, Backend: "lab-hedge", Attempts: 2, FirstByteMS: 900, AnswerMS: 1100, ElapsedMS: 1080},
			{AtMS: 40, Path: slackgate.Paid, Reason: slackgate.ReasonPaid, Outcome: broker.OutcomeEmpty, Cause: broker.CauseEmpty, FirstByteMS: -1, ElapsedMS: 1200, OverMS: -300},
			{Reason: slackgate.ReasonNoSlack, ToldMS: 2.6}, {Reason: slackgate.ReasonPoolDown, ToldMS: 3.4}, {Reason: slackgate.ReasonGateUnavailable},
		},
		Done: []drill.Done{
			{AtMS: 20, What: "fault lab-slow slow", Breaks: true},
			{AtMS: 5020, What: "heal lab-slow", Mends: true, Error: "connection refused"},
		},
		Spend: []drill.SpendSum{
			{Path: slackgate.Paid, Attempts: 3, Unknown: 1, InputTokens: 300, OutputTokens: 90, CostMicro: map[string]int64{"USD": 120, "EUR": 7}},
			{Path: slackgate.Free},
		},
		Misses: []drill.MissSum{{Path: slackgate.Paid, Cause: broker.CauseEmpty, Count: 1}},
		Direct: &drill.Direct{Backend: "lab-slow", Callers: 8, OK: 7, InTime: 1, P50MS: 3004, LastMS: 3100},
		Checks: []drill.Check{{OK: true, Detail: "no flag of the drill is still set"}, {Detail: "spend is 3, counted 4", Before: true}},
	}
	r.Judge(p)
	r.Machine = &drill.Machine{SendP99MS: 250}
	p.Thresholds = append(p.Thresholds, drill.Threshold{Metric: "beauty", Op: ">=", Value: 1})
	r.Verdicts = append(r.Verdicts, drill.Verdict{Threshold: p.Thresholds[len(p.Thresholds)-1]})
	r.Compared = []drill.Compared{{Name: "this run", Usable: new(1.0), Late: new(0.0), Note: "as it was"}, {Name: "no schedule beats", Usable: new(2.0)}}
	var out bytes.Buffer
	Text(&out, &drill.Evidence{Plan: p, Clock: "real"}, r)
	const golden = "testdata/live.txt"
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("%s: want -, got +\n%s", golden, diff)
	}
}
