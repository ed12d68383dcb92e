package app_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/slackgate"
)

// Both kinds of process show each configured budget, with what a job in service
// has reserved and then with what it cost; names that are not configured make
// no series.
func TestBudgetGauges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		cfg.Producers = map[string]config.Producer{"team": {BudgetMicroPerDay: new(int64(1_000_000))}, "other": {}}
		cfg.Classes = config.Classes{"summary": {BudgetMicroPerDay: new(int64(2_000_000))}}
		w := start(t, cfg, labs)
		budgets := func() map[string]string {
			t.Helper()
			var pages [2]map[string]string
			for i, metrics := range []http.Handler{w.api.MetricsHandler(), w.worker.MetricsHandler()} {
				rec := httptest.NewRecorder()
				metrics.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
				page, err := io.ReadAll(rec.Body)
				must(t, err)
				pages[i] = map[string]string{}
				for line := range strings.Lines(string(page)) {
					if series, v, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && strings.HasPrefix(series, "leeway_budget_") {
						pages[i][series+"}"] = v
					}
				}
			}
			for series, v := range pages[0] {
				if pages[1][series] != v {
					t.Errorf("%s is %s for the API and %q for the worker", series, v, pages[1][series])
				}
			}
			return pages[0]
		}
		producer, ofClass := `{name="team",scope="producer"}`, `{name="summary",scope="class"}`
		got := budgets()
		if len(got) != 6 || got["leeway_budget_cap_micro"+producer] != "1e+06" || got["leeway_budget_cap_micro"+ofClass] != "2e+06" ||
			got["leeway_budget_spent_micro"+producer] != "0" || got["leeway_budget_reserved_micro"+ofClass] != "0" {
			t.Errorf("at the start: %v", got)
		}
		v := w.submit(&client.Job{Text: document, Producer: "team"})
		if v.Path != slackgate.Paid {
			t.Fatalf("%+v", v)
		}
		stranger := w.submit(&client.Job{Text: document, Producer: "made up"})
		got = budgets()
		if r := got["leeway_budget_reserved_micro"+producer]; r == "0" || r == "" || r == got["leeway_budget_reserved_micro"+ofClass] {
			t.Errorf("with two jobs in service, one of them a stranger's: %v", got)
		}
		w.wait(v.JobID)
		w.wait(stranger.JobID)
		got = budgets()
		if s := got["leeway_budget_spent_micro"+producer]; len(got) != 6 || s == "0" || s == "" || got["leeway_budget_reserved_micro"+producer] != "0" {
			t.Errorf("with both ended: %v", got)
		}
	})
}
