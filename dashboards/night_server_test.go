//go:build server

package dashboards

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"leeway/dashboards/stagetest"
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

// compressed are the rules with minutes made seconds, for a night that lasts
// two minutes. Each replacement must find something.
func compressed(t *testing.T) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.FromSlash(rulesFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range [][2]string{
		{"interval: 30s", "interval: 1s"},
		{"[5m]", "[10s]"},
		{"for: 5m", "for: 5s"},
		{">= 60", ">= 30"},
		{"> 0.02", "> 0.6"}, // six misses in ten seconds
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

// begin starts everything under eight jobs a second and waits for a baseline.
func begin(t *testing.T, policy string) *night {
	t.Helper()
	n := &night{t: t}
	n.Stage = stagetest.Start(t, "..", stagetest.Settings{
		// Free is as fast as declared: what goes wrong is the wait for it.
		Policy: policy, FreeMS: 550, FreeP95: 600, Rules: compressed(t),
	})
	n.began = time.Now()
	n.Flood(125*time.Millisecond, func(i int) string { return fmt.Sprintf("producer-%d", i) })
	n.wait(2*time.Minute, "a baseline", func() error { return n.holds(`leeway:spend_tokens:baseline7d`) })
	return n
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

func (n *night) alert(state string) func() error {
	return func() error {
		alerts, err := n.Alerts()
		if err != nil {
			return err
		}
		a, ok := alerts[page]
		if ok && a.State == state || !ok && state == "" {
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
// gate: the paid backend goes, jobs wait in free for longer than they have,
// spend falls and misses rise. The page pends and fires, free is closed, misses
// stop, the page resolves. Then every panel of every dashboard must have had
// something to show.
func TestNight(t *testing.T) {
	n := begin(t, "seed")
	if err := n.alert("")(); err != nil {
		t.Errorf("while all is well: %v", err)
	}
	before := n.series()

	n.Paid.Fault("down")
	n.wait(time.Minute, "the page pends", n.alert("pending"))
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
	spent, _ := n.now(`leeway:spend_tokens:rate5m`)
	base, _ := n.now(`leeway:spend_tokens:baseline7d`)
	misses, _ := n.now(`leeway:misses:rate5m`)
	t.Logf("misses a second: %.1f; tokens a second: %.1f of a baseline of %.1f", misses, spent, base)
	rejects, _ := n.now(`sum(rate(job_decision_total{path="reject"}[10s]))`)

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
	t.Logf("rejects a second: %.1f, then %.1f; tokens a second: %.1f, then %.1f", rejects, rejectsAfter, spent, spentAfter)
	if rejectsAfter <= rejects {
		t.Errorf("rejects went from %v to %v a second", rejects, rejectsAfter)
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
}

// names checks that every metric a rule reads is on a page of some process.
func (n *night) names() {
	n.t.Helper()
	raw, err := rulesFS.ReadFile(rulesFile)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`\b(?:job|leeway)_\w+\b`).FindAllString(string(raw), -1) {
		if err := n.holds(m); err != nil && !slices.Contains(later, m) {
			n.t.Errorf("a rule reads %s, which no process shows", m)
		}
	}
}
