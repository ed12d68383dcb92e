package dashboards

import (
	"embed"
	"fmt"
	"maps"
	"strings"

	"github.com/goccy/go-yaml"
)

//go:embed prometheus/rules.yaml
var rulesFS embed.FS

// ruleFile is a Prometheus rule file.
type ruleFile struct {
	Groups []ruleGroup `yaml:"groups"`
}

type ruleGroup struct {
	Name     string `yaml:"name"`
	Interval string `yaml:"interval"`
	Rules    []rule `yaml:"rules"`
}

// rule is a recording rule or an alert.
type rule struct {
	Record      string            `yaml:"record"`
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func readRules() (*ruleFile, error) {
	raw, err := rulesFS.ReadFile(rulesFile)
	if err != nil {
		return nil, err
	}
	var f ruleFile
	if err := yaml.UnmarshalWithOptions(raw, &f, yaml.DisallowUnknownField()); err != nil {
		return nil, err
	}
	return &f, nil
}

// What follows is Grafana's file format for provisioned alerts.
type (
	grafanaFile struct {
		APIVersion int            `yaml:"apiVersion"`
		Groups     []grafanaGroup `yaml:"groups"`
	}
	grafanaGroup struct {
		OrgID    int           `yaml:"orgId"`
		Name     string        `yaml:"name"`
		Folder   string        `yaml:"folder"`
		Interval string        `yaml:"interval"`
		Rules    []grafanaRule `yaml:"rules"`
	}
	grafanaRule struct {
		UID          string            `yaml:"uid"`
		Title        string            `yaml:"title"`
		Condition    string            `yaml:"condition"`
		For          string            `yaml:"for"`
		NoDataState  string            `yaml:"noDataState"`
		ExecErrState string            `yaml:"execErrState"`
		DashboardUID string            `yaml:"dashboardUid,omitempty"`
		PanelID      int               `yaml:"panelId,omitempty"`
		Labels       map[string]string `yaml:"labels"`
		Annotations  map[string]string `yaml:"annotations"`
		Data         []grafanaQuery    `yaml:"data"`
	}
	grafanaQuery struct {
		RefID             string         `yaml:"refId"`
		DatasourceUID     string         `yaml:"datasourceUid"`
		RelativeTimeRange timeRange      `yaml:"relativeTimeRange"`
		Model             map[string]any `yaml:"model"`
	}
	timeRange struct {
		From int `yaml:"from"`
		To   int `yaml:"to"`
	}
)

// datasourceUID is the Prometheus of grafana/provisioning/datasources: an alert
// has no dashboard whose variable could name one.
const datasourceUID = "leeway-prometheus"

// lookBack is the seconds an alert's queries look back; they are instant, but
// Grafana refuses an empty range.
const lookBack = 600

// pagePanel is the panel that shows the page's condition: the misses against
// their baseline, with the spend on its left.
const pagePanel = 6

// pageContext are what the page shows beside its condition.
var pageContext = []struct{ ref, annotation, expr, unit string }{
	{"QueueAge", "queue_age", `max(job_queue_age_ms{path="free"})`, "free %s ms"},
	{
		"Slack", "slack_at_admission",
		`histogram_quantile(0.5, sum by (le) (rate(job_remaining_slack_ms_bucket{stage="admit"}[5m])))`, "median %s ms",
	},
}

// alerts are Grafana's alerts: the same expressions, delays and severities as
// the Prometheus rules, whose recording rules they read.
func alerts(runbooks string) ([]byte, error) {
	rules, err := readRules()
	if err != nil {
		return nil, err
	}
	out := grafanaFile{APIVersion: 1}
	for _, g := range rules.Groups {
		group := grafanaGroup{OrgID: 1, Name: g.Name, Folder: "Leeway", Interval: g.Interval}
		for i := range g.Rules {
			if g.Rules[i].Alert != "" {
				group.Rules = append(group.Rules, grafanaAlert(&g.Rules[i], runbooks))
			}
		}
		if len(group.Rules) > 0 {
			out.Groups = append(out.Groups, group)
		}
	}
	raw, err := yaml.MarshalWithOptions(out, yaml.Indent(2), yaml.IndentSequence(true))
	if err != nil {
		return nil, err
	}
	head := "# Made from " + rulesFile + " by `go generate ./dashboards`. DO NOT EDIT.\n"
	return append([]byte(head), raw...), nil
}

func grafanaAlert(r *rule, runbooks string) grafanaRule {
	out := grafanaRule{
		UID: kebab(r.Alert), Title: r.Alert, Condition: "Fires",
		For: r.For,
		// No series is how a Prometheus expression says that all is well. That
		// Prometheus itself is away is the error.
		NoDataState: "OK", ExecErrState: "Error",
		Labels: r.Labels,
		Annotations: map[string]string{
			"summary":     grafanaTemplate(r.Annotations["summary"]),
			"description": grafanaTemplate(r.Annotations["description"]),
			"runbook_url": runbooks + "/" + r.Alert + ".md",
		},
		Data: []grafanaQuery{ask("A", r.Expr), last("Value", "A"), threshold("Fires", "Value")},
	}
	if out.For == "" {
		out.For = "0s"
	}
	if r.Labels["severity"] == "page" {
		out.DashboardUID, out.PanelID = "leeway-ledgers", pagePanel
		for _, c := range pageContext {
			out.Data = append(out.Data, ask(c.ref+"Now", c.expr), last(c.ref, c.ref+"Now"))
			out.Annotations[c.annotation] = fmt.Sprintf(c.unit, `{{ printf "%.0f" .Values.`+c.ref+`.Value }}`)
		}
	}
	return out
}

// grafanaTemplate is a Prometheus annotation as Grafana takes it.
func grafanaTemplate(s string) string {
	return strings.NewReplacer(
		`$value | printf "%.2f"`, `printf "%.2f" .Values.Value.Value`,
		`$value`, `printf "%.0f" .Values.Value.Value`,
		`$labels.`, `.Labels.`,
	).Replace(s)
}

func ask(ref, expr string) grafanaQuery {
	return grafanaQuery{ref, datasourceUID, timeRange{lookBack, 0}, map[string]any{
		"refId": ref, "expr": expr, "instant": true, "range": false,
	}}
}

// expression is one of Grafana's own.
func expression(ref, kind, of string, more map[string]any) grafanaQuery {
	m := map[string]any{
		"refId": ref, "type": kind, "expression": of,
		"datasource": map[string]any{"type": "__expr__", "uid": "__expr__"},
	}
	maps.Copy(m, more)
	return grafanaQuery{ref, "__expr__", timeRange{lookBack, 0}, m}
}

func last(ref, of string) grafanaQuery {
	return expression(ref, "reduce", of, map[string]any{"reducer": "last"})
}

// threshold holds for every series there is: in a Prometheus rule a series is
// an alert, whatever its value. No value of ours is negative.
func threshold(ref, of string) grafanaQuery {
	return expression(ref, "threshold", of, map[string]any{
		"conditions": []any{map[string]any{"evaluator": map[string]any{"type": "gt", "params": []any{-1}}}},
	})
}

// kebab is LeewayAbsent as leeway-absent.
func kebab(s string) string {
	var b strings.Builder
	for i, r := range s {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('-')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}
