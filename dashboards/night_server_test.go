//go:build server

package dashboards

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"leeway/rehearsal/stagetest"
)

// TestRules runs promtool's unit tests of the rules.
func TestRules(t *testing.T) {
	for _, args := range [][]string{
		{"check", "rules", rulesFile},
		{"test", "rules", "prometheus/rules_test.yaml"},
		{"check", "config", "prometheus/prometheus.yaml"},
	} {
		if out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// The article's night in compressed time. What a job sees goes at a fifth of its
// time, what an alert sees at a thirtieth: windows, the time a rule must hold,
// and the half hour that makes a baseline.
const (
	jobsFaster  = 5
	rulesFaster = 30
)

// compressed are the rules in compressed time. Each replacement must find
// something.
func compressed(t *testing.T) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.FromSlash(rulesFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range [][2]string{
		{"interval: 30s", "interval: 1s"}, // so that 60 samples are a minute
		{"[5m]", "[10s]"},
		{"for: 5m", "for: 10s"},
		{"> 0.02", "> 0.6"}, // six misses in a window
	} {
		if !bytes.Contains(raw, []byte(r[0])) {
			t.Fatalf("the rules have no %s", r[0])
		}
		raw = bytes.ReplaceAll(raw, []byte(r[0]), []byte(r[1]))
	}
	return raw
}

// night is a deployment under load whose night has begun.
type night struct {
	*stagetest.Stage

	t     *testing.T
	began time.Time
}

const page = "LeewaySpendFallsWhileMissesRise"

// The article's numbers: the lab's, and those on the pager.
const (
	deadlineMS, reserveMS = 15_000, 2_000
	paidP95MS, freeP95MS  = 1_200, 4_000
	freeCutMS             = 3_000
	spentMS               = 4_000 // of a job's time, before it is submitted
	slackMS               = deadlineMS - reserveMS - spentMS
	pagerP99MS            = 47_000
	pagerAgeMS            = 38_000
)

// article turns a compressed time into the article's, and says it in seconds.
func article(ms float64) string { return fmt.Sprintf("%.1f s", ms*jobsFaster/1000) }

// begin starts everything under a load that paid carries alone, and waits for a
// baseline.
func begin(t *testing.T, policy string, recheckOff bool) *night {
	t.Helper()
	n := &night{t: t}
	cut := 0
	if policy == "seed" {
		cut = freeCutMS / jobsFaster
	}
	n.Stage = stagetest.Start(t, "..", stagetest.Settings{
		Policy: policy, FreeCutMS: cut, RecheckOff: recheckOff, Rules: compressed(t),
		DeadlineMS: deadlineMS / jobsFaster, ReserveMS: reserveMS / jobsFaster, SpentMS: spentMS / jobsFaster,
		PaidP95: paidP95MS / jobsFaster, FreeP95: freeP95MS / jobsFaster,
		// A p95 is what nineteen of twenty stay below, the way there and back
		// included.
		PaidMS: paidP95MS / jobsFaster * 9 / 10, FreeMS: freeP95MS / jobsFaster * 95 / 100,
	})
	n.began = time.Now()
	// 1.3 jobs a second at the article's pace.
	n.Flood(150*time.Millisecond, n.producer)
	n.wait(3*time.Minute, "a baseline", func() error { return n.holds(`leeway:spend_tokens:baseline7d`) })
	return n
}

// producer names the n-th job's producer.
func (n *night) producer(i int) string { return fmt.Sprintf("producer-%d", i) }

// batch is 02:14: paid goes while the nightly batch comes in, 8 jobs a second
// at the article's pace.
func (n *night) batch() {
	n.Paid.Fault("down")
	n.Flood(time.Second/(8*jobsFaster), n.producer)
}

// pager is what the article's pager says, in compressed time: the 99th
// percentile of what a job took from its producer's point of view, and the age
// of free's queue. jobs is how many have ended.
func (n *night) pager(since time.Time) (p99, ageMS float64, jobs int) {
	n.t.Helper()
	var took []float64
	for _, p := range []*stagetest.Process{n.API, n.Worker} {
		for line := range strings.Lines(p.Output()) {
			var l struct {
				Time    time.Time `json:"time"`
				Msg     string    `json:"msg"`
				Path    string    `json:"path"`
				Elapsed float64   `json:"elapsed_ms"`
			}
			if json.Unmarshal([]byte(line), &l) == nil && l.Msg == "job" && l.Path != "reject" && l.Time.After(since) {
				took = append(took, l.Elapsed+spentMS/jobsFaster)
			}
		}
	}
	_, raw, err := stagetest.Get("http://" + n.APIAddr + "/v1/gate")
	if err != nil {
		n.t.Fatal(err)
	}
	var g struct {
		Pools map[string]struct {
			QueueAgeMS float64 `json:"queue_age_ms"`
		} `json:"pools"`
	}
	if err := json.Unmarshal(raw, &g); err != nil {
		n.t.Fatal(err)
	}
	if len(took) == 0 {
		return 0, g.Pools["free"].QueueAgeMS, 0
	}
	slices.Sort(took)
	return took[(len(took)*99+99)/100-1], g.Pools["free"].QueueAgeMS, len(took)
}

func (n *night) wait(within time.Duration, what string, cond func() error) {
	n.t.Helper()
	begun := time.Now()
	stagetest.Eventually(n.t, within, what, cond)
	n.t.Logf("%5.1f s: %s, after %.1f s", time.Since(n.began).Seconds(), what, time.Since(begun).Seconds())
}

// now is the sum of an expression's series now; false for none.
func (n *night) now(expr string) (float64, bool) {
	got, err := n.Ask(expr, time.Now(), time.Now())
	if err != nil {
		n.t.Fatal(err)
	}
	sum := 0.0
	for _, v := range got {
		sum += v[len(v)-1]
	}
	return sum, len(got) > 0
}

func (n *night) holds(expr string) error {
	if _, ok := n.now(expr); !ok {
		return fmt.Errorf("%s gives nothing", expr)
	}
	return nil
}

// alert asks that the page be in one of the states; none is an empty one.
func (n *night) alert(states ...string) func() error {
	return func() error {
		alerts, err := n.Alerts()
		if err != nil {
			return err
		}
		a := alerts[page] // none: no state
		if slices.Contains(states, a.State) {
			return nil
		}
		return fmt.Errorf("the page is %q; misses %v, spend %v", a.State, first(n.now(`leeway:misses:rate5m`)), first(n.now(`leeway:spend_tokens:rate5m`)))
	}
}

func first(v float64, _ bool) float64 { return v }

// leeway runs the command-line tool as on-call does.
func (n *night) leeway(args ...string) string {
	n.t.Helper()
	cmd := exec.CommandContext(n.t.Context(), filepath.Join(n.Bin, "leeway"), args...)
	cmd.Env = append(os.Environ(), "LEEWAY_API=http://"+n.APIAddr)
	out, err := cmd.CombinedOutput()
	if err != nil {
		n.t.Fatalf("leeway %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestNight plays the article's incident in compressed time under the article's
// gate with the re-check off: the paid backend goes, jobs wait in free for
// longer than they have, spend falls and misses rise, until the pager says what
// the article's says. The page pends and fires, free is closed, misses stop, the
// page resolves. Then every panel of every dashboard must have had something to
// show.
func TestNight(t *testing.T) {
	n := begin(t, "seed", true)
	if err := n.alert("")(); err != nil {
		t.Errorf("while all is well: %v", err)
	}
	if misses, _ := n.now(`leeway:misses:rate5m`); misses > 0 {
		t.Errorf("%v misses a second while all is well", misses)
	}
	base, _ := n.now(`leeway:spend_tokens:baseline7d`)
	rejectsBefore, _ := n.now(`sum(rate(job_decision_total{path="reject"}[10s]))`)
	before := n.series()

	broken := time.Now()
	n.batch()
	n.wait(time.Minute, "the pager says 47 s against 15 s, and a queue age of 38 s", func() error {
		p99, age, jobs := n.pager(broken)
		if p99 < pagerP99MS/jobsFaster || age < pagerAgeMS/jobsFaster {
			return fmt.Errorf("p99 %s, queue age %s", article(p99), article(age))
		}
		spent, _ := n.now(`leeway:spend_tokens:rate5m`)
		t.Logf("p99 of %d jobs %s against 15 s, queue age on free %s, tokens a second %.1f of a baseline of %.1f", jobs, article(p99), article(age), spent, base)
		return nil
	})
	n.wait(time.Minute, "the page pends", n.alert("pending", "firing"))
	n.wait(time.Minute, "the page fires", n.alert("firing"))
	alerts, err := n.Alerts()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"queue_age", "slack_at_admission", "runbook_url"} {
		t.Logf("%s: %s", a, alerts[page].Annotations[a])
		if v := alerts[page].Annotations[a]; v == "" || strings.Contains(v, "unknown") {
			t.Errorf("the page carries %s %q", a, v)
		}
	}
	slack, _ := n.now(`sum(rate(job_remaining_slack_ms_sum{stage="admit"}[10s])) / sum(rate(job_remaining_slack_ms_count{stage="admit"}[10s]))`)
	spent, _ := n.now(`leeway:spend_tokens:rate5m`)
	misses, _ := n.now(`leeway:misses:rate5m`)
	rejects, _ := n.now(`sum(rate(job_decision_total{path="reject"}[10s]))`)
	p99, age, _ := n.pager(broken)
	t.Logf("when it fires: p99 %s, queue age %s, slack at admission %s, misses a second %.2f, rejects %.1f, tokens %.1f of a baseline of %.1f",
		article(p99), article(age), article(slack), misses, rejects, spent, base)
	if slack < 0.9*slackMS/jobsFaster || slack > slackMS/jobsFaster {
		t.Errorf("slack at admission %s; the article's pager has 9 s", article(slack))
	}
	if spent > 0.1*base {
		t.Errorf("tokens a second %v of a baseline of %v: not near zero", spent, base)
	}

	t.Logf("leeway flags set ADMIT_FREE=0:\n%s", n.leeway("flags", "set", "ADMIT_FREE=0", "--reason", "misses rise while spend falls", "--for", "30m"))
	n.wait(time.Minute, "misses stop", func() error {
		if v, ok := n.now(`sum(max by (path) (increase(job_deadline_miss_total{path=~"paid|free"}[3s])))`); !ok || v > 0 {
			return fmt.Errorf("%v in 3 s", v)
		}
		return nil
	})
	n.wait(time.Minute, "the page resolves", n.alert(""))
	spentAfter, _ := n.now(`leeway:spend_tokens:rate5m`)
	rejectsAfter, _ := n.now(`sum(rate(job_decision_total{path="reject"}[10s]))`)
	t.Logf("rejects a second: %.1f while all is well, %.1f, then %.1f; tokens a second: %.1f, then %.1f", rejectsBefore, rejects, rejectsAfter, spent, spentAfter)
	// With nearly everything refused already, what the flag adds is less than
	// the noise of two windows.
	if rejectsAfter <= rejectsBefore || rejectsAfter < 0.9*rejects {
		t.Errorf("rejects went from %v by %v to %v a second", rejectsBefore, rejects, rejectsAfter)
	}
	if spentAfter < spent-1 {
		t.Errorf("spend went from %v to %v tokens a second", spent, spentAfter)
	}

	n.Paid.Fault("")
	n.leeway("flags", "clear", "ADMIT_FREE", "--reason", "paid is back")
	n.wait(time.Minute, "spend is back", func() error { return n.holds(`leeway:spend_tokens:rate5m > leeway:spend_tokens:baseline7d / 2`) })

	for key := range n.series() {
		if name, _, _ := strings.Cut(key, "{"); !before[key] && !slices.Contains(passing, name) {
			t.Errorf("a night of as many producers as jobs has made series %s", key)
		}
	}
	n.panels()
	n.names()
}

// panels asks what every panel asks.
func (n *night) panels() {
	n.t.Helper()
	asked := 0
	for name, f := range committed(n.t) {
		for _, p := range f.Panels {
			for _, q := range p.Targets {
				asked++
				expr := strings.ReplaceAll(q.Expr, "$__rate_interval", "10s")
				got, err := n.Ask(expr, n.began, time.Now())
				if err != nil {
					n.t.Errorf("%s: %s: %v", name, p.Title, err)
				} else if len(got) == 0 {
					n.t.Errorf("%s: %s: no data for %s", name, p.Title, expr)
				}
			}
		}
	}
	n.t.Logf("%d queries of panels gave data", asked)
}

// passing are metrics that are there only while there is something to say.
var passing = []string{
	"job_smallest_slack_ms",   // while a job waits
	"leeway_ledger_oldest_ms", // once a ledger has a row
	"job_cost_micro_total",    // once a call in a configured currency is booked on a path
}

// series are the names and labels on both processes' pages.
func (n *night) series() map[string]bool {
	n.t.Helper()
	out := map[string]bool{}
	for _, addr := range []string{n.APIMetrics, n.WorkerMetrics} {
		_, page, err := stagetest.Get("http://" + addr + "/metrics")
		if err != nil {
			n.t.Fatal(err)
		}
		for line := range strings.Lines(string(page)) {
			if key, _, ok := strings.Cut(line, " "); ok && key != "#" {
				out[key] = true
			}
		}
	}
	if len(out) < 100 {
		n.t.Fatalf("series: %v", out)
	}
	return out
}

// later are metrics that a deployment may be without, and whose notice is then
// silent.
var later = []string{
	"job_cost_difference_total", // until a backend reports another cost
	"leeway_knee_expired",       // without a measured knee
	"webhook_deliveries_total",  // without a producer that has a webhook
}

// names checks that every metric a rule reads is on a page of some process.
func (n *night) names() {
	n.t.Helper()
	raw, err := rulesFS.ReadFile(rulesFile)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`\b(?:job|leeway|webhook)_\w+\b`).FindAllString(string(raw), -1) {
		if err := n.holds(m); err != nil && !slices.Contains(later, m) {
			n.t.Errorf("a rule reads %s, which no process shows", m)
		}
	}
}
