//go:build server

package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"leeway/rehearsal/proctest"
)

// The article's night in compressed time. What a job sees goes at a fifth of its
// time, what an alert sees at a thirtieth: windows and the time a rule must hold.
// The half hour that makes a baseline goes at a sixtieth.
const (
	jobsFaster  = 5
	rulesFaster = 30
)

// alertRules are those that ship with the dashboards.
func alertRules(t *testing.T) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.FromSlash("../dashboards/prometheus/rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// compressed are the rules in compressed time. Each replacement must find
// something.
func compressed(t *testing.T) []byte {
	t.Helper()
	raw := alertRules(t)
	for _, r := range [][2]string{
		{"interval: 30s", "interval: 500ms"}, // so that 60 samples are half a minute
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
	*watched

	began time.Time
}

const pagingAlert = "LeewaySpendFallsWhileMissesRise"

// The article's numbers: the lab's, and those on the pager.
const (
	deadlineMS, reserveMS = 15_000, 2_000
	paidP95MS, freeP95MS  = 1_200, 4_000
	freeCutMS             = 3_000
	spentMS               = 4_000 // of a job's time, before it is submitted
	slackMS               = deadlineMS - reserveMS - spentMS
	jobMS                 = (deadlineMS - spentMS) / jobsFaster
	pagerP99MS            = 47_000
	pagerAgeMS            = 38_000
)

// article turns a compressed time into the article's, and says it in seconds.
func article(ms float64) string { return fmt.Sprintf("%.1f s", ms*jobsFaster/1000) }

// begin starts everything under a load that paid carries alone, and waits for a
// baseline.
func begin(t *testing.T, policy string, recheckOff bool) *night {
	t.Helper()
	s := quick()
	s.Policy, s.Budget = policy, 1_000_000_000_000
	if policy == "seed" {
		s.FreeCutMS = freeCutMS / jobsFaster
	}
	s.DeadlineMS, s.ReserveMS = deadlineMS/jobsFaster, reserveMS/jobsFaster
	s.PaidP95, s.FreeP95 = paidP95MS/jobsFaster, freeP95MS/jobsFaster
	// A p95 is what nineteen of twenty stay below, the way there and back
	// included.
	s.PaidMS, s.FreeMS = s.PaidP95*9/10, s.FreeP95*95/100
	if recheckOff {
		s.More = "lab: {recheck_off: true}\n"
	}
	n := &night{watched: watch(t, s, compressed(t))}
	n.began = time.Now()
	// 1.3 jobs a second at the article's pace.
	n.flood(150*time.Millisecond, jobMS, producer)
	n.wait(3*time.Minute, "a baseline", func() error { return n.holds(`leeway:spend_tokens:baseline7d`) })
	return n
}

// producer names the n-th job's producer.
func producer(i int) string { return fmt.Sprintf("producer-%d", i) }

// batch is 02:14: paid goes while the nightly batch comes in, 8 jobs a second
// at the article's pace.
func (n *night) batch() {
	n.labs["lab-paid"].fault("down", 0)
	n.flood(time.Second/(8*jobsFaster), jobMS, producer)
}

// pager is what the article's pager says, in compressed time: the 99th
// percentile of what a job took from its producer's point of view, and the age
// of free's queue. jobs is how many have ended.
func (n *night) pager(since time.Time) (p99, ageMS float64, jobs int) {
	n.t.Helper()
	var took []float64
	for _, p := range []*process{n.api, n.workers[0]} {
		for _, l := range p.lines() {
			at, err := time.Parse(time.RFC3339Nano, l["time"].(string))
			if err == nil && l["msg"] == "job" && l["path"] != "reject" && at.After(since) {
				took = append(took, l["elapsed_ms"].(float64)+spentMS/jobsFaster)
			}
		}
	}
	raw := call(n.t, http.MethodGet, n.client.Base+"/v1/gate", "", "").body
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
	proctest.Eventually(n.t, within, what, cond)
	n.t.Logf("%5.1f s: %s, after %.1f s", time.Since(n.began).Seconds(), what, time.Since(begun).Seconds())
}

// now is the sum of an expression's series now; false for none.
func (n *night) now(expr string) (float64, bool) {
	got, err := n.ask(expr, time.Now(), time.Now())
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
func (n *night) pages(states ...string) func() error {
	return func() error {
		alerts, err := n.alerts()
		if err != nil {
			return err
		}
		a := alerts[pagingAlert] // none: no state
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
	cmd := exec.CommandContext(n.t.Context(), filepath.Join(n.bin, "leeway"), args...)
	cmd.Env = append(os.Environ(), "LEEWAY_API="+n.client.Base)
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
	t.Parallel()
	n := begin(t, "seed", true)
	if err := n.pages("")(); err != nil {
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
	n.wait(time.Minute, "the page pends", n.pages("pending", "firing"))
	n.wait(time.Minute, "the page fires", n.pages("firing"))
	alerts, err := n.alerts()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"queue_age", "slack_at_admission", "runbook_url"} {
		t.Logf("%s: %s", a, alerts[pagingAlert].Annotations[a])
		if v := alerts[pagingAlert].Annotations[a]; v == "" || strings.Contains(v, "unknown") {
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
	n.wait(time.Minute, "the page resolves", n.pages(""))
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

	n.labs["lab-paid"].fault("", 0)
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
	names, err := filepath.Glob("../dashboards/grafana/dashboards/*.json")
	if err != nil || len(names) != 3 {
		n.t.Fatalf("%v %v, want three dashboards", names, err)
	}
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			n.t.Fatal(err)
		}
		var board struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		if err := json.Unmarshal(raw, &board); err != nil {
			n.t.Fatalf("%s: %v", name, err)
		}
		for _, p := range board.Panels {
			for _, q := range p.Targets {
				asked++
				expr := strings.ReplaceAll(q.Expr, "$__rate_interval", "10s")
				got, err := n.ask(expr, n.began, time.Now())
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
}

// series are the names and labels on both processes' pages.
func (n *night) series() map[string]bool {
	n.t.Helper()
	out := map[string]bool{}
	for _, addr := range []string{n.apiMetrics, n.workerMetrics} {
		page := call(n.t, http.MethodGet, "http://"+addr+"/metrics", "", "").body
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
	"leeway_knee_expired",      // without a measured knee
	"webhook_deliveries_total", // without a producer that has a webhook
}

// names checks that every metric a rule reads is on a page of some process.
func (n *night) names() {
	n.t.Helper()
	for _, m := range regexp.MustCompile(`\b(?:job|leeway|webhook)_\w+\b`).FindAllString(string(alertRules(n.t)), -1) {
		if err := n.holds(m); err != nil && !slices.Contains(later, m) {
			n.t.Errorf("a rule reads %s, which no process shows", m)
		}
	}
}
