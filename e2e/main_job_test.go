//go:build server

package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// together runs f for 0..n-1 at once and waits for all.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// documents are the texts that ship with the demo.
func documents(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../rehearsal/corpus/texts/*.txt")
	if err != nil || len(files) != 45 {
		t.Fatalf("%d documents: %v", len(files), err)
	}
	out := make([]string, len(files))
	for i, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out[i] = string(raw)
	}
	return out
}

// text is a document that a lab summarises in no time.
const text = "The slack gate admits only what can be answered in time. A reject is told at once. " +
	"Every attempt has one row in the spend ledger. Every miss has one row in the other."

// TestMainJob takes the whole corpus through real processes and holds every
// book against every other.
func TestMainJob(t *testing.T) {
	t.Parallel()
	s := quick()
	// Room for a busy machine: what is tested is the books, not the speed.
	s.PaidP95, s.FreeP95, s.DeadlineMS = 500, 1200, 7000
	d := run(t, s)
	docs := documents(t)
	together(len(docs), func(i int) { d.submit(client.Job{Text: docs[i]}) })
	// Within its reserve: refused, and a miss on path reject.
	if s := d.submit(client.Job{Text: text, DeadlineMS: 400}); s.reason() != slackgate.ReasonDeadline || s.refusal.Status != http.StatusTooManyRequests {
		t.Errorf("a deadline within the reserve: %+v %v", s.refusal, s.err)
	}
	// Not a submission: no line, no row.
	if s, err := tryCall(http.MethodPost, d.client.Base+"/v1/jobs", "application/json", `{"text":"x","deadline":5}`); err != nil || s.status != http.StatusBadRequest || !strings.Contains(string(s.body), `"field":"deadline"`) {
		t.Errorf("an unknown field: %d %s %v", s.status, s.body, err)
	}
	d.settled(30 * time.Second)
	d.audit(rules{})

	reasons := d.book.reasons()
	t.Logf("answers %v, outcomes %v", reasons, d.outcomes())
	if reasons[slackgate.ReasonPaid] == 0 || reasons[slackgate.ReasonFree] == 0 || reasons[slackgate.ReasonNoSlack] == 0 {
		t.Errorf("paid, free and reject were not all seen: %v", reasons)
	}
	for _, s := range d.book.all() {
		if s.err != nil {
			t.Errorf("no answer: %v", s.err)
		}
		if s.admitted() && s.view.Outcome == broker.OutcomeUsable {
			checkSummary(t, s)
		}
	}
	if n := d.outcomes()[broker.OutcomeUsable]; n < 10 {
		t.Errorf("%d usable answers", n)
	}
}

// TestBatch sends a batch with one bad line: the good ones stand, in order.
func TestBatch(t *testing.T) {
	t.Parallel()
	d := run(t, quick())
	line := func(text string) string { return fmt.Sprintf(`{"text":%q}`, text) }
	body := strings.Join([]string{line("One sentence. " + text), `{"text":"x","deadline_ms":-1}`, line("Two sentences. " + text)}, "\n")
	r := call(t, http.MethodPost, d.client.Base+"/v1/jobs/batch", "application/x-ndjson", body)
	var got []struct {
		Line   int           `json:"line"`
		Status int           `json:"status"`
		JobID  string        `json:"job_id"`
		Error  *wire.Problem `json:"error"`
	}
	for l := range strings.Lines(string(r.body)) {
		got = append(got, struct {
			Line   int           `json:"line"`
			Status int           `json:"status"`
			JobID  string        `json:"job_id"`
			Error  *wire.Problem `json:"error"`
		}{})
		if err := json.Unmarshal([]byte(l), &got[len(got)-1]); err != nil {
			t.Fatalf("%v in %q", err, l)
		}
	}
	if len(got) != 3 || got[0].Status != 202 || got[2].Status != 202 || got[0].Line != 1 || got[2].Line != 3 {
		t.Fatalf("verdicts: %s", r.body)
	}
	if got[1].Status != 400 || got[1].Error == nil || got[1].Error.Field != "deadline_ms" {
		t.Errorf("the bad line: %+v", got[1])
	}
	for _, i := range []int{0, 2} {
		d.book.add(&submission{job: client.Job{Text: text}, verdict: &wire.Verdict{JobID: got[i].JobID, Path: slackgate.Paid}})
	}
	d.settled(20 * time.Second)
	d.audit(rules{})
}

// curl runs the real curl where there is one, and does the same by itself
// where there is none: what is tested is the API as a stranger meets it.
func curl(t *testing.T, method, url, body string) string {
	t.Helper()
	path, err := exec.LookPath("curl")
	if err != nil {
		t.Log("no curl here: net/http stands in for it")
		return string(call(t, method, url, "application/json", body).body)
	}
	args := []string{"--silent", "--show-error", "--max-time", "30", "--request", method, url}
	if body != "" {
		args = append(args, "--header", "Content-Type: application/json", "--data-binary", body)
	}
	out, err := exec.Command(path, args...).Output()
	if err != nil {
		t.Fatalf("curl %v: %v", args, err)
	}
	return string(out)
}

// TestNewUserWithCurl submits, sees the verdict, waits for the answer and
// reads the metrics by their published names.
func TestNewUserWithCurl(t *testing.T) {
	t.Parallel()
	d := run(t, quick())
	doc := documents(t)[0]
	body, err := json.Marshal(map[string]any{"text": doc, "deadline_ms": 4000})
	if err != nil {
		t.Fatal(err)
	}
	var v wire.Verdict
	if out := curl(t, http.MethodPost, d.client.Base+"/v1/jobs", string(body)); json.Unmarshal([]byte(out), &v) != nil || v.Path != slackgate.Paid || v.SlackMS <= 0 || v.NeedMS.Paid == nil || *v.NeedMS.Paid <= 0 {
		t.Fatalf("verdict: %s", out)
	}
	s := &submission{job: client.Job{Text: doc}, verdict: &v}
	d.book.add(s)
	var view broker.Job
	if out := curl(t, http.MethodGet, d.client.Base+"/v1/jobs/"+v.JobID+"?wait=20s", ""); json.Unmarshal([]byte(out), &view) != nil || view.Outcome != broker.OutcomeUsable {
		t.Fatalf("job: %s", out)
	}
	s.view = &view
	checkSummary(t, s)
	var gate struct {
		Policy string `json:"policy"`
	}
	if out := curl(t, http.MethodGet, d.client.Base+"/v1/gate", ""); json.Unmarshal([]byte(out), &gate) != nil || gate.Policy != "predictive" {
		t.Errorf("gate: %s", out)
	}
	pages := map[string]string{
		"api":    curl(t, http.MethodGet, "http://"+d.api.field("listening", "metrics_addr")+"/metrics", ""),
		"worker": curl(t, http.MethodGet, "http://"+d.workers[0].field("working", "metrics_addr")+"/metrics", ""),
	}
	for name, text := range pages {
		for _, series := range []string{
			`job_decision_total{path="paid"}`, `job_decision_total{path="free"}`, `job_decision_total{path="reject"}`,
			`job_first_byte_ms_bucket{path="paid",le="1000"}`, `job_queue_age_ms{path="free"}`,
			`job_remaining_slack_ms_bucket{stage="admit",le="6000"}`,
			`job_deadline_miss_total{path="reject"}`, `job_token_spend_total{path="paid"}`, `job_inflight{path="paid"}`,
			`job_reject_total{reason="reject_no_slack"}`, `job_outcome_total{outcome="usable",path="paid"}`,
			`job_tokens_total{kind="output",path="paid"}`, `job_queue_wait_ms_count{path="paid"}`, `job_waiting{path="paid"}`,
		} {
			if !strings.Contains(text, "\n"+series+" ") {
				t.Errorf("%s does not show %s", name, series)
			}
		}
	}
	d.audit(rules{})
}

// TestCancel: a job taken back while it waits or runs ends cancelled, once,
// with its line and without a miss.
func TestCancel(t *testing.T) {
	t.Parallel()
	s := quick()
	s.PaidSlots, s.PaidMS, s.PaidP95, s.DeadlineMS = 1, 1500, 2000, 20_000
	d := run(t, s)
	running := d.admit(client.Job{Class: "paid-only", Text: text})
	d.labs["lab-paid"].busy(1)
	waiting := d.admit(client.Job{Class: "paid-only", Text: text})
	for _, s := range []*submission{waiting, running} {
		r := call(t, http.MethodDelete, d.client.Base+"/v1/jobs/"+s.verdict.JobID, "", "")
		if r.status/100 != 2 {
			t.Errorf("cancel: %d %s", r.status, r.body)
		}
	}
	d.settled(10 * time.Second)
	if n := d.outcomes()[broker.OutcomeCancelled]; n != 2 {
		t.Errorf("outcomes %v", d.outcomes())
	}
	if waiting.view.Attempts != 0 || running.view.Attempts != 1 {
		t.Errorf("attempts: %d waiting, %d running", waiting.view.Attempts, running.view.Attempts)
	}
	// The next one finds nothing in its way.
	if v := d.waitFor(d.admit(client.Job{Class: "paid-only", Text: text}), 10*time.Second); v.Outcome != broker.OutcomeUsable {
		t.Errorf("the job after: %+v", v)
	}
	d.audit(rules{})
}
