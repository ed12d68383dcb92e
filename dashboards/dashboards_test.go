package dashboards

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// TestFresh holds that what is committed is what the code makes.
func TestFresh(t *testing.T) {
	files, err := Files(RunbooksURL)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.FromSlash(name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the code makes: run go generate ./dashboards", name)
		}
	}
	committed, err := filepath.Glob(filepath.FromSlash(dashboardsPath + "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range committed {
		if files[filepath.ToSlash(name)] == nil {
			t.Errorf("nothing makes %s", name)
		}
	}
}

// file is a dashboard as Grafana reads it, as far as tests look at it.
type file struct {
	UID, Title, Description string
	Editable                *bool
	Templating              struct {
		List []struct{ Name, Type, Query string }
	}
	Panels []filePanel
}

type filePanel struct {
	ID                       int
	Title, Type, Description string
	GridPos                  struct{ X, Y, W, H int }
	Datasource               struct{ Type, UID string }
	FieldConfig              struct {
		Defaults struct{ Unit string }
	}
	Targets []struct {
		Expr, RefID string
		Datasource  struct{ Type, UID string }
	}
}

func committed(t *testing.T) map[string]file {
	t.Helper()
	names, err := filepath.Glob(filepath.FromSlash(dashboardsPath + "*.json"))
	if err != nil || len(names) != 3 {
		t.Fatalf("%v %v, want three dashboards", names, err)
	}
	out := map[string]file{}
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var f file
		if err := json.Unmarshal(raw, &f); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out[strings.TrimSuffix(filepath.Base(name), ".json")] = f
	}
	return out
}

var (
	counter    = regexp.MustCompile(`\b(?:job|leeway)_\w+_(?:total|bucket)\b`)
	underARate = regexp.MustCompile(`(?:rate|increase)\((?:job|leeway)_\w+_(?:total|bucket)(?:\{[^}]*\})?\[\$__rate_interval\]\)`)
)

func TestDashboards(t *testing.T) {
	uids := map[string]string{}
	for name, f := range committed(t) {
		if f.UID == "" || f.Title == "" || f.Description == "" || uids[f.UID] != "" {
			t.Errorf("%s: uid %q, title %q, description %q; uid also of %q", name, f.UID, f.Title, f.Description, uids[f.UID])
		}
		uids[f.UID] = name
		if f.Editable == nil || *f.Editable {
			t.Errorf("%s can be edited by hand", name)
		}
		if len(f.Templating.List) != 1 || f.Templating.List[0].Name != "datasource" || f.Templating.List[0].Type != "datasource" || f.Templating.List[0].Query != "prometheus" {
			t.Errorf("%s: variables %+v, want the datasource alone", name, f.Templating.List)
		}
		if len(f.Panels) == 0 || f.Panels[0].Title != "Usable beside success" || len(f.Panels[0].Targets) != 2 {
			t.Errorf("%s does not begin with usable beside success", name)
		}
		titles := map[string]bool{}
		for i := range f.Panels {
			checkPanel(t, name, &f.Panels[i])
			if titles[f.Panels[i].Title] {
				t.Errorf("%s has two panels called %s", name, f.Panels[i].Title)
			}
			titles[f.Panels[i].Title] = true
		}
	}
}

func checkPanel(t *testing.T, board string, p *filePanel) {
	t.Helper()
	if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" {
		t.Errorf("%s: title %q, description %q, unit %q", board, p.Title, p.Description, p.FieldConfig.Defaults.Unit)
	}
	if p.Datasource.UID != "${datasource}" || p.Datasource.Type != "prometheus" {
		t.Errorf("%s: %s: datasource %+v", board, p.Title, p.Datasource)
	}
	if len(p.Targets) == 0 {
		t.Errorf("%s: %s asks nothing", board, p.Title)
	}
	for _, q := range p.Targets {
		if q.Datasource.UID != "${datasource}" {
			t.Errorf("%s: %s: query's datasource %+v", board, p.Title, q.Datasource)
		}
		if c, r := counter.FindAllString(q.Expr, -1), underARate.FindAllString(q.Expr, -1); len(c) != len(r) {
			t.Errorf("%s: %s: a counter is not under a rate over $__rate_interval: %s", board, p.Title, q.Expr)
		}
	}
}

// TestTwoLedgers holds that spend and misses never share a panel on any
// dashboard, and stand left and right on their own.
func TestTwoLedgers(t *testing.T) {
	spend := regexp.MustCompile(`job_token_spend|job_cost|spend_tokens|job_attempt`)
	miss := regexp.MustCompile(`deadline_miss|leeway:misses`)
	for name, f := range committed(t) {
		for _, p := range f.Panels {
			var all strings.Builder
			for _, q := range p.Targets {
				all.WriteString(q.Expr + "\n")
			}
			s, m := spend.MatchString(all.String()), miss.MatchString(all.String())
			if s && m {
				t.Errorf("%s: %s shows both ledgers", name, p.Title)
			}
			if name == "ledgers" && (s && p.GridPos.X != 0 || m && p.GridPos.X != halfWidth) {
				t.Errorf("%s: %s stands at %d", name, p.Title, p.GridPos.X)
			}
		}
	}
}

// TestOnePage holds that one rule pages and all others are notices.
func TestOnePage(t *testing.T) {
	rules, err := readRules()
	if err != nil {
		t.Fatal(err)
	}
	var pages []string
	recorded := map[string]string{}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Record != "" {
				recorded[r.Record] = r.Expr
				continue
			}
			switch r.Labels["severity"] {
			case "page":
				pages = append(pages, r.Alert)
			case "notice":
			default:
				t.Errorf("%s has severity %q", r.Alert, r.Labels["severity"])
			}
			for _, a := range []string{"summary", "description", "runbook_url"} {
				if r.Annotations[a] == "" {
					t.Errorf("%s has no %s", r.Alert, a)
				}
			}
			if want := "{{ $externalLabels.runbooks }}/" + r.Alert + ".md"; r.Annotations["runbook_url"] != want {
				t.Errorf("%s: runbook_url %q, want %q", r.Alert, r.Annotations["runbook_url"], want)
			}
			if r.Labels["severity"] == "page" {
				checkPage(t, &r, recorded)
			}
		}
	}
	if len(pages) != 1 || pages[0] != "LeewaySpendFallsWhileMissesRise" {
		t.Errorf("pages: %v", pages)
	}
}

// checkPage follows a paging rule down to the metrics it reads: none is on the
// cost panel, and those by path are read for paid and free alone.
func checkPage(t *testing.T, page *rule, recorded map[string]string) {
	t.Helper()
	if page.For == "" || page.For == "0s" {
		t.Error("the page waits for nothing")
	}
	for _, a := range []string{"queue_age", "slack_at_admission"} {
		if page.Annotations[a] == "" {
			t.Errorf("the page does not carry %s", a)
		}
	}
	costs := map[string]bool{}
	for _, p := range committed(t)["ledgers"].Panels {
		for _, q := range p.Targets {
			if p.Title == "Spend: cost" {
				for _, m := range regexp.MustCompile(`job_\w+`).FindAllString(q.Expr, -1) {
					costs[m] = true
				}
			}
		}
	}
	if !costs["job_cost_micro_total"] {
		t.Fatalf("the cost panel reads %v", costs)
	}
	seen := map[string]bool{}
	todo := []string{page.Expr}
	for len(todo) > 0 {
		expr := todo[0]
		todo = todo[1:]
		for _, m := range regexp.MustCompile(`leeway:[\w:]+`).FindAllString(expr, -1) {
			if recorded[m] == "" {
				t.Errorf("the page reads %s, which nothing records", m)
			}
			if !seen[m] {
				seen[m] = true
				todo = append(todo, recorded[m])
			}
		}
		for _, m := range regexp.MustCompile(`(job_\w+)(\{[^}]*\})?`).FindAllStringSubmatch(expr, -1) {
			seen[m[1]] = true
			if costs[m[1]] || strings.Contains(m[1], "cost") {
				t.Errorf("the page reads the cost panel's %s", m[1])
			}
			if m[2] != `{path=~"paid|free"}` {
				t.Errorf("the page reads %s%s", m[1], m[2])
			}
		}
	}
	if !seen["job_token_spend_total"] || !seen["job_deadline_miss_total"] {
		t.Errorf("the page reads %v", seen)
	}
}

// TestGrafanaAlerts holds Grafana's alerts to the Prometheus rules.
func TestGrafanaAlerts(t *testing.T) {
	raw, err := os.ReadFile(filepath.FromSlash(alertsFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := provisioned(t, raw); err != nil {
		t.Fatal(err)
	}
}

func provisioned(t *testing.T, raw []byte) error {
	t.Helper()
	var f grafanaFile
	if err := yaml.UnmarshalWithOptions(raw, &f, yaml.DisallowUnknownField()); err != nil {
		return err
	}
	rules, err := readRules()
	if err != nil {
		return err
	}
	alerts := map[string]grafanaRule{}
	for _, g := range f.Groups {
		for _, r := range g.Rules {
			alerts[r.Title] = r
		}
	}
	n := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				continue
			}
			n++
			a, ok := alerts[r.Alert]
			if !ok {
				t.Errorf("Grafana has no %s", r.Alert)
				continue
			}
			if a.Data[0].Model["expr"] != r.Expr {
				t.Errorf("%s: Grafana asks %q, Prometheus %q", r.Alert, a.Data[0].Model["expr"], r.Expr)
			}
			if a.For == "" || (r.For != "" && a.For != r.For) {
				t.Errorf("%s: for %q, Prometheus %q", r.Alert, a.For, r.For)
			}
			if a.Labels["severity"] != r.Labels["severity"] {
				t.Errorf("%s: severity %q", r.Alert, a.Labels["severity"])
			}
			checkAlert(t, &a)
		}
	}
	if n != len(alerts) {
		t.Errorf("%d rules and %d alerts of Grafana", n, len(alerts))
	}
	return nil
}

func checkAlert(t *testing.T, a *grafanaRule) {
	t.Helper()
	refs := map[string]bool{}
	for _, q := range a.Data {
		refs[q.RefID] = true
		if q.RelativeTimeRange.From <= q.RelativeTimeRange.To {
			t.Errorf("%s: %s looks back from %d to %d", a.Title, q.RefID, q.RelativeTimeRange.From, q.RelativeTimeRange.To)
		}
		if q.Model["refId"] != q.RefID {
			t.Errorf("%s: refId %v in %s", a.Title, q.Model["refId"], q.RefID)
		}
		if expr, _ := q.Model["expr"].(string); strings.Contains(expr, "$") {
			t.Errorf("%s: a variable in %s", a.Title, expr)
		}
		if of, ok := q.Model["expression"].(string); ok && !refs[of] {
			t.Errorf("%s: %s is of %s, which is not there", a.Title, q.RefID, of)
		}
	}
	if !refs[a.Condition] {
		t.Errorf("%s: condition %s is not there", a.Title, a.Condition)
	}
	for name, text := range a.Annotations {
		if strings.Contains(text, "$") {
			t.Errorf("%s: %s: a dollar that Grafana may take for its environment: %s", a.Title, name, text)
		}
	}
	if a.DashboardUID == "" {
		return
	}
	board := committed(t)["ledgers"]
	if a.DashboardUID != board.UID || board.Panels[a.PanelID-1].ID != a.PanelID || board.Panels[a.PanelID-1].Title != "Misses against their baseline" {
		t.Errorf("%s: panel %d of %s", a.Title, a.PanelID, a.DashboardUID)
	}
}
