package runbooks_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"leeway/runbooks"
)

// pages are all pages but the list, by file name.
func pages(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if name != "README.md" {
			out[name] = string(raw)
		}
	}
	return out
}

// TestOneToOne holds that each alert has a page and each page of an alert's
// name an alert.
func TestOneToOne(t *testing.T) {
	rules, err := os.ReadFile("../dashboards/prometheus/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := pages(t)
	alerts := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(string(rules), -1) {
		alerts[m[1]] = true
		if !strings.HasPrefix(all[m[1]+".md"], "# "+m[1]+"\n") {
			t.Errorf("alert %s has no page of its name", m[1])
		}
	}
	if len(alerts) < 8 {
		t.Errorf("alerts: %v", alerts)
	}
	for name := range all {
		if alert := strings.TrimSuffix(name, ".md"); strings.HasPrefix(alert, "Leeway") && !alerts[alert] {
			t.Errorf("page %s has no alert", name)
		}
	}
}

// sections are what a page has, in this order.
var sections = []string{"Meaning", "Impact", "Diagnosis", "Mitigation", "When not to act", "Escalation"}

var (
	heading = regexp.MustCompile(`(?m)^## (.+)$`)
	link    = regexp.MustCompile(`\]\(([^)]+\.md)\)`)
)

func TestPages(t *testing.T) {
	list, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range pages(t) {
		var got []string
		for _, m := range heading.FindAllStringSubmatch(text, -1) {
			if slices.Contains(sections, m[1]) {
				got = append(got, m[1])
			}
		}
		if !slices.Equal(got, sections) {
			t.Errorf("%s has sections %v", name, got)
		}
		mitigation := between(text, "## Mitigation", "## When not to act")
		if !strings.Contains(mitigation, "Undo") && !strings.Contains(strings.ToLower(mitigation), "undo") {
			t.Errorf("%s: mitigation names no undo", name)
		}
		// What a step sets, its page clears: half asleep nobody looks elsewhere.
		for _, m := range regexp.MustCompile(`leeway flags set (\w+)=`).FindAllStringSubmatch(text, -1) {
			if !strings.Contains(text, "leeway flags clear "+m[1]) {
				t.Errorf("%s sets %s and does not clear it", name, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`leeway drain (\w+)`).FindAllStringSubmatch(text, -1) {
			pool := m[1]
			if pool == "all" {
				pool = "paid"
			}
			if !strings.Contains(text, "leeway resume "+pool) {
				t.Errorf("%s drains %s and does not resume it", name, pool)
			}
		}
		if !strings.Contains(string(list), "("+name+")") {
			t.Errorf("README.md does not list %s", name)
		}
	}
	all := pages(t)
	all["README.md"] = string(list)
	for name, text := range all {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if _, ok := all[m[1]]; !ok {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			}
		}
	}
}

func between(s, from, to string) string {
	_, s, _ = strings.Cut(s, from)
	s, _, _ = strings.Cut(s, to)
	return s
}

// TestSaid holds what the pages must say, whoever edits them.
func TestSaid(t *testing.T) {
	all := pages(t)
	for name, wants := range map[string][]string{
		"LeewaySpendFallsWhileMissesRise.md": {
			"Slack first, then queue age, then utilization last", "enlarge the free pool or add hosts because CPU looks idle",
			"reopen free to bring misses down", "SIGKILL paid workers", "not a recovery signal",
		},
		"drain.md":         {"SIGKILL paid workers", "Free before paid"},
		"incident-note.md": {"Reject ratio", "NOT the recovery signal"},
		"drill.md": {
			"lab values", "8 jobs a second for 90 s", "15 s", "2 workers, first byte p95 1200 ms", "1 worker, first byte p95 4000 ms",
			"| below limit | any | greater than paid p95 | send paid |", "| at limit | under 3 s | greater than free p95 plus age | send free |",
			"| at limit | 3 s or more | any | reject, 429 |", "| any | any | zero or less | reject, 429 |",
		},
		"LeewayKneeExpired.md": {"extrapolate a free tier's throughput"},
		"rollback.md":          {"first_byte_p95_ms", "DNS", "units"},
	} {
		for _, want := range wants {
			if !strings.Contains(strings.Join(strings.Fields(all[name]), " "), want) {
				t.Errorf("%s does not say %q", name, want)
			}
		}
	}
}

func TestHandler(t *testing.T) {
	for _, tt := range []struct {
		path, begins string
		status       int
	}{
		{"/runbooks/LeewaySpendFallsWhileMissesRise.md", "# LeewaySpendFallsWhileMissesRise\n", http.StatusOK},
		{"/runbooks/", "# Runbooks\n", http.StatusOK},
		{"/runbooks/no-such.md", "", http.StatusNotFound},
		{"/runbooks/runbooks.go", "", http.StatusNotFound},
		{"/runbooks/../runbooks.go", "", http.StatusNotFound},
	} {
		rec := httptest.NewRecorder()
		runbooks.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, tt.path, http.NoBody))
		body, _ := io.ReadAll(rec.Body)
		if rec.Code != tt.status || !strings.HasPrefix(string(body), tt.begins) {
			t.Errorf("%s: %d %.40s", tt.path, rec.Code, body)
		}
		if ct := rec.Header().Get("Content-Type"); tt.status == http.StatusOK && ct != "text/plain; charset=utf-8" {
			t.Errorf("%s: Content-Type %s", tt.path, ct)
		}
	}
}
