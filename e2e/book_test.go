//go:build server

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/wire"
	"leeway/rehearsal/lab"
	"leeway/rehearsal/lab/extract"
	"leeway/rehearsal/proctest"
	"leeway/slackgate"
	"leeway/workers"
)

// submission is one submission and what its producer was told.
type submission struct {
	job  client.Job
	took time.Duration
	// Exactly one of these is set: an admission, a refusal, or no answer.
	verdict *wire.Verdict
	refusal *wire.Problem
	err     error
	// view is the job's end, once waited for.
	view *broker.Job
}

func (s *submission) admitted() bool { return s.verdict != nil }

// reason is what the producer was told in one word.
func (s *submission) reason() slackgate.Reason {
	switch {
	case s.verdict != nil:
		return s.verdict.Reason
	case s.refusal != nil:
		return slackgate.Reason(s.refusal.Reason)
	}
	return ""
}

// book is what the producers of a test remember.
type book struct {
	mu   sync.Mutex // guards subs
	subs []*submission
}

func (b *book) add(s *submission) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subs = append(b.subs, s)
}

func (b *book) all() []*submission {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.subs)
}

func (b *book) admitted() []*submission {
	return slices.DeleteFunc(b.all(), func(s *submission) bool { return !s.admitted() })
}

// reasons counts the answers.
func (b *book) reasons() map[slackgate.Reason]int {
	out := map[slackgate.Reason]int{}
	for _, s := range b.all() {
		out[s.reason()]++
	}
	return out
}

// submit submits a job and remembers the answer. It fails no test: what an
// answer should have been is the caller's to say.
func (d *stack) submit(job client.Job) *submission { return d.submitTo(d.client, job) }

// submitTo is submit through one of several API processes.
func (d *stack) submitTo(c *client.Client, job client.Job) *submission {
	s := &submission{job: job}
	begun := time.Now()
	v, err := c.Submit(context.Background(), &job)
	s.took = time.Since(begun)
	var p *wire.Problem
	switch {
	case err == nil:
		s.verdict = v
	case errors.As(err, &p):
		s.refusal = p
	default:
		s.err = err
	}
	d.book.add(s)
	return s
}

// admit submits a job that must be admitted.
func (d *stack) admit(job client.Job) *submission {
	d.t.Helper()
	s := d.submit(job)
	if !s.admitted() {
		d.t.Fatalf("not admitted: %+v %v", s.refusal, s.err)
	}
	return s
}

// view reads a job.
func (d *stack) view(id string) *broker.Job {
	d.t.Helper()
	v, err := d.client.Get(context.Background(), id, 0)
	if err != nil {
		d.t.Fatalf("job %s: %v", id, err)
	}
	return v
}

// waitFor waits for a job's end.
func (d *stack) waitFor(s *submission, within time.Duration) *broker.Job {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	v, err := d.client.Wait(ctx, s.verdict.JobID)
	if err != nil {
		d.t.Fatalf("job %s did not end in %v: %v", s.verdict.JobID, within, err)
	}
	s.view = v
	return v
}

// settled waits for the end of every admitted job.
func (d *stack) settled(within time.Duration) {
	d.t.Helper()
	end := time.Now().Add(within)
	for _, s := range d.book.admitted() {
		d.waitFor(s, time.Until(end))
	}
}

// taken reports an error until a job's nth attempt is at the paid backend.
func (d *stack) taken(s *submission, n int) error {
	d.t.Helper()
	for _, a := range d.labs["lab-paid"].attempts() {
		if a.RequestID == fmt.Sprintf("%s-%d", s.verdict.JobID, n) {
			return nil
		}
	}
	return fmt.Errorf("attempt %d of %s is not there", n, s.verdict.JobID)
}

// outcomes counts the ends of the admitted jobs.
func (d *stack) outcomes() map[broker.Outcome]int {
	out := map[broker.Outcome]int{}
	for _, s := range d.book.admitted() {
		if s.view != nil {
			out[s.view.Outcome]++
		}
	}
	return out
}

// rows reads the spend ledger; no row may stay open once every job has ended.
func (d *stack) rows() []broker.SpendRow {
	d.t.Helper()
	rows, _, _ := d.still()
	return rows
}

// ofJobs leaves out the rows of probes, which a slow machine's first bytes may
// bring at any time.
func ofJobs(rows []broker.SpendRow) []broker.SpendRow {
	return slices.DeleteFunc(slices.Clone(rows), func(r broker.SpendRow) bool { return r.Class == workers.ProbeClass })
}

// balanced holds the ledgers against each other.
func (d *stack) balanced() {
	d.t.Helper()
	report, err := d.client.CheckLedgers(context.Background())
	if err != nil {
		d.t.Fatal(err)
	}
	for _, item := range report.Items {
		if !item.OK {
			d.t.Errorf("ledgers check: %s: %s %v", item.Name, item.Detail, item.Problems)
		}
	}
}

// rules say what an audit may forgive.
type rules struct {
	// uncalled is true for a spend row that no backend needs to have seen: a
	// crash or an outage came between the row and the call.
	uncalled func(*broker.SpendRow) bool
	// unanswered is how many submissions may be on the books beyond those
	// that their producers know of.
	unanswered int
}

// audit holds what producers, backends, ledgers, metrics and logs say against
// each other, after every job has ended.
func (d *stack) audit(r rules) {
	d.t.Helper()
	pages := d.auditBooks(r)
	if r.unanswered == 0 {
		d.auditTotals(pages)
	}
	d.auditLog(r)
}

// auditBooks is the part of an audit that a process may die in: what it counted
// alone and logged is gone with it, and the books are not. It returns what the
// processes said.
func (d *stack) auditBooks(r rules) map[*process]page {
	d.t.Helper()
	rows, calls, pages := d.still()
	misses, err := d.client.Misses(context.Background())
	if err != nil {
		d.t.Fatal(err)
	}
	if len(pages) == 0 {
		d.t.Fatal("no process to ask for metrics")
	}
	d.auditOutcomes(rows, misses, r)
	d.auditAttempts(rows, calls, r)
	for p, pg := range pages {
		auditShared(d.t, p.name, pg, rows, misses)
	}
	return pages
}

// calls are what each backend has seen, by its name.
func (d *stack) calls() map[string][]lab.Attempt {
	out := map[string][]lab.Attempt{}
	for name, b := range d.labs {
		out[name] = b.attempts()
	}
	return out
}

func count(calls map[string][]lab.Attempt) (n int) {
	for _, c := range calls {
		n += len(c)
	}
	return n
}

// still is what ledger, backends and processes say of one state: probes of a
// pool that its own measurement has closed come and go when every job has ended.
// What is ill is made well first: it is probed for as long as it is. The row of a
// probe whose worker was killed is settled a minute after it was opened.
func (d *stack) still() ([]broker.SpendRow, map[string][]lab.Attempt, map[*process]page) {
	d.t.Helper()
	rows, _, calls, pages := d.stillBut(func(*broker.SpendRow) bool { return false })
	return rows, calls, pages
}

// stillBut is still, with open rows that may stay.
func (d *stack) stillBut(stays func(*broker.SpendRow) bool) (rows, open []broker.SpendRow, calls map[string][]lab.Attempt, pages map[*process]page) {
	d.t.Helper()
	for _, b := range d.labs {
		b.plays(lab.Fault{})
	}
	for end := time.Now().Add(90 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		var err error
		if rows, open, err = d.client.Spend(context.Background()); err != nil {
			d.t.Fatal(err)
		}
		pages, calls = d.metrics(), d.calls() // of calls that are over
		after, more, err := d.client.Spend(context.Background())
		if err != nil {
			d.t.Fatal(err)
		}
		goes := func(r broker.SpendRow) bool { return !stays(&r) }
		if !slices.ContainsFunc(slices.Concat(open, more), goes) && len(after) == len(rows) {
			return rows, open, calls, pages
		}
		if time.Now().After(end) {
			d.t.Fatalf("%d spend rows are open long after every job has ended, or calls go on: %+v", len(open), open)
		}
	}
}

// auditOutcomes: one outcome each, one spend row an attempt, one miss row a miss.
func (d *stack) auditOutcomes(rows []broker.SpendRow, misses []broker.MissRow, r rules) {
	d.t.Helper()
	attempts := map[string]int{}
	for i := range rows {
		// Probes are no jobs, but their spend is spend.
		if rows[i].Class != workers.ProbeClass {
			attempts[rows[i].JobID]++
		}
	}
	missed := map[string]int{}
	for i := range misses {
		if misses[i].Path != slackgate.Reject {
			missed[misses[i].JobID]++
		}
	}
	for _, s := range d.book.admitted() {
		id, v := s.verdict.JobID, s.view
		if v == nil || v.State != broker.StateDone || !slices.Contains(broker.Outcomes[:], v.Outcome) {
			d.t.Errorf("job %s has no outcome: %+v", id, v)
			continue
		}
		if attempts[id] != v.Attempts {
			d.t.Errorf("job %s made %d attempts and has %d spend rows", id, v.Attempts, attempts[id])
		}
		want := 0
		if v.Outcome.Miss() {
			want = 1
		}
		if missed[id] != want {
			d.t.Errorf("job %s ended %s and has %d miss rows", id, v.Outcome, missed[id])
		}
		delete(attempts, id)
		delete(missed, id)
	}
	// What is left belongs to jobs whose producers never heard of them.
	if len(attempts) > r.unanswered || len(missed) > r.unanswered {
		d.t.Errorf("rows of jobs that nobody submitted: spend %v, misses %v", attempts, missed)
	}
	rejected := 0
	for i := range misses {
		if misses[i].Path == slackgate.Reject {
			rejected++
		}
	}
	if want := d.book.reasons()[slackgate.ReasonDeadline]; rejected != want {
		d.t.Errorf("%d miss rows on path reject, %d submissions were refused with %s", rejected, want, slackgate.ReasonDeadline)
	}
}

// notCalled is the result of an attempt that was booked and then not made.
const notCalled = "not_called"

// auditAttempts: what the backends saw is what was booked, one to one.
func (d *stack) auditAttempts(rows []broker.SpendRow, calls map[string][]lab.Attempt, r rules) {
	d.t.Helper()
	byID := map[string]*broker.SpendRow{}
	for i := range rows {
		id := fmt.Sprintf("%s-%d", rows[i].JobID, rows[i].Attempt)
		if byID[id] != nil {
			d.t.Errorf("attempt %s has two spend rows", id)
		}
		byID[id] = &rows[i]
	}
	seen := map[string]bool{}
	called := map[string]int{} // by backend
	for name, attempts := range calls {
		called[name] = len(attempts)
		for _, a := range attempts {
			row := byID[a.RequestID]
			switch {
			case row == nil:
				d.t.Errorf("%s was called as %s, and no spend row says so", name, a.RequestID)
				continue
			case seen[a.RequestID]:
				d.t.Errorf("%s was called twice as %s", name, a.RequestID)
			case row.Backend != name:
				d.t.Errorf("%s was called as %s, which is booked on %s", name, a.RequestID, row.Backend)
			case row.Known == broker.KnownReported && row.Result == "whole" && !row.Clamped && (row.InputTokens != int64(a.PromptTokens) || row.OutputTokens != int64(a.CompletionTokens)):
				d.t.Errorf("%s: %d and %d tokens booked, %d and %d used", a.RequestID, row.InputTokens, row.OutputTokens, a.PromptTokens, a.CompletionTokens)
			}
			seen[a.RequestID] = true
		}
	}
	for id, row := range byID {
		if row.Result == notCalled && row.CostMicro == 0 && row.InputTokens == 0 && row.OutputTokens == 0 {
			continue // its time ran out between the row and the call
		}
		if !seen[id] && (r.uncalled == nil || !r.uncalled(row)) {
			d.t.Errorf("attempt %s is booked on %s (%s, %s), which has seen %d attempts and not this one: %+v",
				id, row.Backend, row.Known, row.Result, called[row.Backend], *row)
		}
	}
}

// auditShared: the ledger metrics of one process are the sums of the rows.
func auditShared(t *testing.T, name string, pg page, rows []broker.SpendRow, misses []broker.MissRow) {
	t.Helper()
	want := map[string]int64{}
	for _, p := range slackgate.Paths {
		for _, series := range []string{
			"job_inflight{path=%q}", "job_waiting{path=%q}", "job_running{path=%q}", "job_queue_age_ms{path=%q}",
			"job_token_spend_total{path=%q}", "job_deadline_miss_total{path=%q}",
		} {
			want[fmt.Sprintf(series, p)] = 0
		}
		for _, k := range []broker.Known{broker.KnownReported, broker.KnownEstimated, broker.KnownUnknown} {
			want[fmt.Sprintf("job_attempt_total{known=%q,path=%q}", k, p)] = 0
		}
	}
	for i := range rows {
		r := &rows[i]
		want[fmt.Sprintf("job_attempt_total{known=%q,path=%q}", r.Known, r.Path)]++
		want[fmt.Sprintf("job_tokens_total{kind=%q,path=%q}", "input", r.Path)] += r.InputTokens
		want[fmt.Sprintf("job_tokens_total{kind=%q,path=%q}", "output", r.Path)] += r.OutputTokens
		want[fmt.Sprintf("job_cost_micro_total{currency=%q,path=%q}", r.Currency, r.Path)] += r.CostMicro
		if r.Path == slackgate.Paid {
			want[fmt.Sprintf("job_token_spend_total{path=%q}", r.Path)] += r.InputTokens + r.OutputTokens
		}
	}
	for i := range misses {
		m := &misses[i]
		want[fmt.Sprintf("job_deadline_miss_total{path=%q}", m.Path)]++
		if m.Path != slackgate.Reject {
			want[fmt.Sprintf("job_deadline_miss_cause_total{cause=%q,path=%q}", m.Cause, m.Path)]++
		}
	}
	for _, series := range slices.Sorted(maps.Keys(want)) {
		if got := pg.get(series); got != want[series] {
			t.Errorf("%s says %s is %d; the ledgers say %d", name, series, got, want[series])
		}
	}
}

// auditTotals: the decisions of all API processes and the outcomes are those
// that the producers were told. It needs every API that decided to be alive.
func (d *stack) auditTotals(pages map[*process]page) {
	d.t.Helper()
	decided := map[slackgate.Path]int64{}
	for _, s := range d.book.all() {
		switch {
		case s.verdict != nil:
			decided[s.verdict.Path]++
		case s.refusal != nil && s.refusal.Verdict != nil:
			decided[slackgate.Reject]++
		}
	}
	if !slices.ContainsFunc(d.apis, func(p *process) bool { return p.killed.Load() }) {
		for _, path := range []slackgate.Path{slackgate.Reject, slackgate.Paid, slackgate.Free} {
			var got int64
			for _, p := range d.apis {
				if pg, ok := pages[p]; ok {
					got += pg.get(fmt.Sprintf("job_decision_total{path=%q}", path))
				}
			}
			if got != decided[path] {
				d.t.Errorf("job_decision_total says %d for %s; %d answers did", got, path, decided[path])
			}
		}
	}
	ends := map[string]int64{}
	for _, s := range d.book.admitted() {
		if s.view != nil {
			ends[fmt.Sprintf("job_outcome_total{outcome=%q,path=%q}", s.view.Outcome, s.view.Path)]++
		}
	}
	for p, pg := range pages {
		for _, path := range slackgate.Paths {
			for _, o := range broker.Outcomes {
				series := fmt.Sprintf("job_outcome_total{outcome=%q,path=%q}", o, path)
				if got := pg.get(series); got != ends[series] {
					d.t.Errorf("%s says %s is %d; %d jobs ended so", p.name, series, got, ends[series])
				}
			}
		}
	}
}

// logFields are the fields of a submission's line, and an example of their type.
var logFields = map[string]any{
	"job_id": "", "class": "", "path": "", "reason": "", "backend": "", "offered_at": 0., "deadline_ms": 0.,
	"queue_age_ms": 0., "queue_wait_ms": 0., "predicted_wait_ms": 0., "first_byte_ms": 0., "remaining_slack_ms": 0.,
	"first_route": "", "first_outcome": "", "fallback_outcome": "", "outcome": "", "elapsed_ms": 0.,
}

// auditLog: over the logs of all processes, exactly one line a submission, with
// every field, rejects included.
func (d *stack) auditLog(r rules) {
	d.t.Helper()
	// The line follows the outcome: it may come a moment after the API knows.
	admitted := slices.DeleteFunc(d.book.admitted(), func(s *submission) bool {
		_, unheard := d.unheard.Load(s.verdict.JobID)
		return unheard
	})
	var byID map[string][]map[string]any
	var refused map[slackgate.Reason]int
	proctest.Eventually(d.t, 5*time.Second, "one log line a job", func() error {
		byID, refused = d.jobLines()
		for _, s := range admitted {
			if len(byID[s.verdict.JobID]) == 0 {
				return fmt.Errorf("none for %s, which ended %s", s.verdict.JobID, s.view.Outcome)
			}
		}
		return nil
	})
	for _, s := range admitted {
		lines := byID[s.verdict.JobID]
		if len(lines) != 1 {
			d.t.Errorf("job %s has %d log lines: %v", s.verdict.JobID, len(lines), lines)
		}
		l, v := lines[0], s.view
		if l["outcome"] != string(v.Outcome) || l["path"] != v.Path.String() || l["backend"] != v.Backend || l["first_outcome"] != v.FirstOutcome {
			d.t.Errorf("job %s: the line says %v; the API says %+v", v.ID, l, v)
		}
		delete(byID, s.verdict.JobID)
	}
	d.unheard.Range(func(id, _ any) bool {
		delete(byID, id.(string))
		return true
	})
	if len(byID) > r.unanswered {
		d.t.Errorf("log lines of jobs that nobody submitted: %v", byID)
	}
	told := map[slackgate.Reason]int{}
	for _, s := range d.book.all() {
		if s.refusal != nil {
			told[s.reason()]++
		}
	}
	for reason, n := range told {
		if got := refused[reason]; got < n || got > n+r.unanswered {
			d.t.Errorf("%d log lines for %d submissions refused with %s", got, n, reason)
		}
	}
}

// jobLines are the submissions' lines of all processes: of admitted jobs by
// id, of refused ones counted by reason.
func (d *stack) jobLines() (byID map[string][]map[string]any, refused map[slackgate.Reason]int) {
	d.t.Helper()
	byID, refused = map[string][]map[string]any{}, map[slackgate.Reason]int{}
	for _, p := range slices.Concat(d.apis, d.workers) {
		for _, l := range p.lines() {
			if l["msg"] != "job" {
				continue
			}
			for f, want := range logFields {
				if got := l[f]; fmt.Sprintf("%T", got) != fmt.Sprintf("%T", want) {
					d.t.Errorf("%s: field %s of %v is %T, want %T", p.name, f, l, got, want)
				}
			}
			if l["outcome"] == "rejected" {
				refused[slackgate.Reason(l["reason"].(string))]++
				continue
			}
			id, _ := l["job_id"].(string)
			byID[id] = append(byID[id], l)
		}
	}
	return byID, refused
}

// checkSummary: an answer is made of sentences of its own document.
func checkSummary(t *testing.T, s *submission) {
	t.Helper()
	own := map[string]bool{}
	for _, sentence := range extract.Sentences(s.job.Text) {
		own[extract.Fold(sentence)] = true
	}
	if strings.TrimSpace(s.view.Answer) == "" {
		t.Errorf("job %s is usable and has no answer", s.view.ID)
	}
	for line := range strings.Lines(s.view.Answer) {
		if line = extract.Fold(line); line != "" && !own[line] {
			t.Errorf("job %s: %q is no sentence of its document", s.view.ID, line)
		}
	}
}
