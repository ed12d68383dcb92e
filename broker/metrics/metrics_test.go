package metrics

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"leeway/broker"
	"leeway/slackgate"
)

// scrape is what Prometheus gets.
func scrape(t *testing.T, m *Metrics) []byte {
	t.Helper()
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	if rec.Code != http.StatusOK {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	return rec.Body.Bytes()
}

// value reads one series of a page; -1 if it is not there.
func value(page []byte, series string) string {
	for line := range bytes.Lines(page) {
		if rest, ok := bytes.CutPrefix(line, []byte(series+" ")); ok {
			return string(bytes.TrimSpace(rest))
		}
	}
	return "absent"
}

// TestBackends holds what a worker shows of its backends: exactly one state
// of each is 1, and a name in both pools is in both pools' states.
func TestBackends(t *testing.T) {
	states := []broker.BackendState{
		{Path: slackgate.Paid, Backend: "one", State: "closed"},
		{Path: slackgate.Paid, Backend: "two", State: "out"},
		{Path: slackgate.Free, Backend: "both", State: "open"},
		{Path: slackgate.Paid, Backend: "both", State: "closed"},
		{Path: slackgate.Paid, Backend: "odd", State: "no such state"},
	}
	m := New()
	m.Backends(func() []broker.BackendState { return states })
	page := scrape(t, m)
	for _, tt := range []struct {
		backend string
		in      []string
	}{
		{"one", []string{"closed"}},
		{"two", []string{"out"}},
		{"both", []string{"closed", "open"}},
		{"odd", nil},
	} {
		for _, s := range broker.BackendStates {
			want := "0"
			if slices.Contains(tt.in, s) {
				want = "1"
			}
			if got := value(page, `leeway_backend_state{backend="`+tt.backend+`",state="`+s+`"}`); got != want {
				t.Errorf("%s in %s: %s, want %s", tt.backend, s, got, want)
			}
		}
	}
	if bytes.Contains(page, []byte("no such state")) {
		t.Error("a state outside the closed set became a label")
	}
}

// TestPredictedWait holds that what was promised is counted, and a refusal is
// not.
func TestPredictedWait(t *testing.T) {
	m := New()
	for _, r := range []slackgate.Result{
		{Path: slackgate.Free, Reason: slackgate.ReasonFree, PredictedWaitMS: 1500},
		{Path: slackgate.Free, Reason: slackgate.ReasonFree},
		{Path: slackgate.Reject, Reason: slackgate.ReasonNoSlack, PredictedWaitMS: 40_000},
	} {
		m.Decided(&broker.Submission{}, &broker.Verdict{Result: r})
	}
	page := scrape(t, m)
	for series, want := range map[string]string{
		`job_predicted_wait_ms_count{path="free"}`:            "2",
		`job_predicted_wait_ms_sum{path="free"}`:              "1500",
		`job_predicted_wait_ms_count{path="paid"}`:            "0",
		`job_decision_total{path="reject"}`:                   "1",
		`job_reject_total{reason="reject_no_slack"}`:          "1",
		`job_remaining_slack_ms_count{stage="admit"}`:         "3",
		`job_predicted_wait_ms_bucket{path="free",le="1000"}`: "1",
		`job_predicted_wait_ms_bucket{path="free",le="1500"}`: "2",
	} {
		if got := value(page, series); got != want {
			t.Errorf("%s: %s, want %s", series, got, want)
		}
	}
}

// TestLint holds what a process shows to Prometheus's own rules, but for the
// unit: milliseconds are the articles' and this product's contract.
func TestLint(t *testing.T) {
	m := New()
	m.Backends(func() []broker.BackendState { return []broker.BackendState{{Backend: "one", State: "closed"}} })
	problems, err := promlint.New(bytes.NewReader(scrape(t, m))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasSuffix(p.Metric, "_ms") && strings.Contains(p.Text, "abbreviated units") {
			continue
		}
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
