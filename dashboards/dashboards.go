// Package dashboards makes what on-call looks at: three Grafana dashboards, and
// Grafana's alerts from the Prometheus rules. What it makes is committed beside
// it; a test says whether it is fresh.
package dashboards

import (
	"encoding/json"
	"fmt"
)

//go:generate go run ./gen

// RunbooksURL is where the alerts' pages are unless told otherwise: the API
// serves them beside its metrics.
const RunbooksURL = "http://localhost:9090/runbooks"

// Where the files are, relative to this folder.
const (
	rulesFile      = "prometheus/rules.yaml"
	alertsFile     = "grafana/provisioning/alerting/alerts.yaml"
	dashboardsPath = "grafana/dashboards/"
)

// Files are the generated files by their path below this folder. runbooks is
// the address that the alerts' links begin with.
func Files(runbooks string) (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, b := range []*board{admission(), ledgers(), backends()} {
		d, err := b.build()
		if err != nil {
			return nil, fmt.Errorf("dashboards: %s: %w", b.uid, err)
		}
		raw, err := marshal(&d)
		if err != nil {
			return nil, fmt.Errorf("dashboards: %s: %w", b.uid, err)
		}
		out[dashboardsPath+b.file+".json"] = raw
	}
	raw, err := alerts(runbooks)
	if err != nil {
		return nil, fmt.Errorf("dashboards: alerts: %w", err)
	}
	out[alertsFile] = raw
	return out, nil
}

func marshal(d any) ([]byte, error) {
	raw, err := json.MarshalIndent(d, "", "  ")
	return append(raw, '\n'), err
}
