package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// cannedAPI is an API that answers each request, "METHOD path", with the next
// of the documents that a test has for it; the last one stays.
type cannedAPI struct {
	answers map[string][]string

	mu    sync.Mutex // guards what follows
	asked []string   // requests with their parameters and bodies
}

func (a *cannedAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)))
	key := r.Method + " " + r.URL.Path
	docs := a.answers[key]
	if len(docs) == 0 {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"status":404,"reason":"not_found","detail":"there is no such thing"}`)
		return
	}
	_, _ = io.WriteString(w, docs[0])
	if len(docs) > 1 {
		a.answers[key] = docs[1:]
	}
}

// leeway runs a command against the API, as a user of it would.
func (a *cannedAPI) leeway(t *testing.T, args ...string) (exit int, stdout, stderr string) {
	t.Helper()
	srv := httptest.NewServer(a)
	defer srv.Close()
	var out, errs bytes.Buffer
	exit = run(append(args, "--api", srv.URL), &out, &errs)
	return exit, out.String(), errs.String()
}

const (
	twoPools = `{"now_ms":1893456000000,"pools":{
		"paid":{"state":"open","limit":2,"limit_from":"measured","capacity":2,"waiting":1,"running":2,"queue_age_ms":300,"first_byte_p95_ms":1200,
			"first_byte":{"state":"measured"},"hold":{"p95_ms":2400},"knees":[
				{"backend":"a","limit":2,"measured_on":"2029-12-01","valid_until":"2030-03-01"},
				{"backend":"b","limit":4,"measured_on":"2029-01-01","valid_until":"2029-04-01","out_of_date":"expired"}]},
		"free":{"state":"draining","limit":1,"limit_from":"declared","capacity":1,"running":1,"first_byte_p95_ms":4000,
			"first_byte":{"state":"declared"},"hold":{"p95_ms":4000}}},
		"backends":[{"backend":"a","path":"paid","worker":"0123456789","state":"closed","in_flight":2,"max_in_flight":2,"first_byte_p95_ms":1200},
			{"backend":"lab-free","path":"free","worker":"w","state":"open","why":"errors","max_in_flight":1,"first_byte_p95_ms":4000}]}`
	paidLine = "paid: open, 1 waiting, 2 running of 2 slots (limit 2, measured), queue age 300 ms, first byte p95 1200 ms (measured)\n" +
		"  knee of a: 2 calls at once, measured 2029-12-01, valid until 2030-03-01\n" +
		"  knee of b: 4 calls at once, measured 2029-01-01, OUT OF DATE: expired\n"
	freeLine     = "free: draining, 0 waiting, 1 running of 1 slots (limit 1, declared), queue age 0 ms, first byte p95 4000 ms (declared)\n"
	backendLines = "BACKEND   POOL  WORKER    STATE   WHY     IN FLIGHT  P95 MS\n" +
		"a         paid  01234567  closed  -       2 of 2     1200\n" +
		"lab-free  free  w         open    errors  0 of 1     4000\n"

	doneBatch = `{"batch_id":"b1","status":"done","producer":"nightly","created_at_ms":1893456000000,"expires_at_ms":1893542400000,
		"lines":4,"admitted":3,"refused":1,"verdicts":{"paid":2,"free":1,"reject_no_slack":1},"outcomes":{"usable":2,"late":1}}`
	openBatch = `{"batch_id":"b2","status":"in_progress","created_at_ms":1893456000000,"expires_at_ms":1893542400000,
		"lines":2,"admitted":2,"pending":1,"lost":1,"verdicts":{"paid":2},"outcomes":{}}`
	usableJob = `{"job_id":"j1","state":"done","class":"summary","producer":"nightly","path":"paid","accepted_at_ms":1893456000000,
		"deadline_at_ms":1893456015000,"admission":{"predicted_wait_ms":20},"outcome":"usable","answer":"The answer.","backend":"lab-paid",
		"attempts":1,"queue_wait_ms":10,"elapsed_ms":900,"result_expires_at_ms":1893542400000}`
	runningJob = `{"job_id":"j2","state":"running","class":"summary","path":"free","accepted_at_ms":1893456000000,
		"deadline_at_ms":1893456015000,"admission":{},"attempts":1}`
	failedJob = `{"job_id":"j3","state":"done","class":"summary","path":"free","accepted_at_ms":1893456000000,
		"deadline_at_ms":1893456015000,"admission":{},"outcome":"failed","cause":"backend_error","reason":"status 500","detail":"no such model: x","attempts":2,"elapsed_ms":50}`
)

// trimmed is a text without the blanks at the ends of its lines.
func trimmed(text string) string {
	var lines []string
	for l := range strings.SplitSeq(text, "\n") {
		lines = append(lines, strings.TrimRight(l, " "))
	}
	return strings.Join(lines, "\n")
}

// What each command asks of the API, and what it prints.
func TestCommands(t *testing.T) {
	for _, tt := range []struct {
		name    string
		args    string
		answers map[string][]string
		asked   []string
		exit    int
		out     string
	}{
		{
			"flags list shows every flag", "flags list",
			map[string][]string{"GET /v1/flags": {`{"flags":[
				{"name":"ADMIT_FREE","value":"1","source":"config"},
				{"name":"ADMIT_PAID","class":"nightly","value":"0","source":"flag","by":"ann","reason":"budget","until_ms":1893456000000},
				{"name":"RESERVE_MS","value":"9","source":"flag","by":"ann","reason":"slow"}]}`}},
			[]string{"GET /v1/flags"}, 0,
			"FLAG        CLASS    VALUE  SOURCE  UNTIL                 BY   REASON\n" +
				"ADMIT_FREE  -        1      config  -                     -    -\n" +
				"ADMIT_PAID  nightly  0      flag    2030-01-01T00:00:00Z  ann  budget\n" +
				"RESERVE_MS  -        9      flag    cleared               ann  slow\n",
		},
		{
			"flags set shows the new state and what the gate says", "flags set ADMIT_FREE=0 --reason=storm --by=ann --for=30m --class=nightly",
			map[string][]string{"PUT /v1/flags/ADMIT_FREE": {`{"flag":{"name":"ADMIT_FREE","class":"nightly","value":"0","source":"flag","until_ms":1893456000000},
				"gate":{"path":"paid","reason":"paid","slack_ms":13000,"need_ms":{"paid":1200},"queue_age_ms":{"paid":0}}}`}},
			[]string{`PUT /v1/flags/ADMIT_FREE {"value":"0","reason":"storm","by":"ann","class":"nightly","for_ms":1800000}`}, 0,
			"ADMIT_FREE = 0 (from flag; class nightly; until 2030-01-01T00:00:00Z)\n" +
				"the gate would now say: paid (slack 13000 ms, need paid 1200, queue age paid 0)\n",
		},
		{
			"flags clear says that the gate cannot say", "flags clear ADMIT_FREE --reason=over --by=ann",
			map[string][]string{"DELETE /v1/flags/ADMIT_FREE": {`{"flag":{"name":"ADMIT_FREE","value":"1","source":"config"}}`}},
			[]string{"DELETE /v1/flags/ADMIT_FREE?by=ann&class=&reason=over"}, 0,
			"ADMIT_FREE = 1 (from config; class -; until -)\nthe gate cannot say now: see /readyz\n",
		},
		{
			"flags audit shows the newest changes", "flags audit --limit=2",
			map[string][]string{"GET /v1/audit": {`{"changes":[
				{"at_ms":1893456000000,"name":"ADMIT_FREE","to":"0","by":"ann","reason":"storm"},
				{"at_ms":1893456000000,"name":"ADMIT_FREE","class":"nightly","from":"0","to":"","reason":"over"}]}`}},
			[]string{"GET /v1/audit?limit=2"}, 0,
			"WHEN                  FLAG        CLASS    FROM  TO  BY   REASON\n" +
				"2030-01-01T00:00:00Z  ADMIT_FREE  -        -     0   ann  storm\n" +
				"2030-01-01T00:00:00Z  ADMIT_FREE  nightly  0     -   -    over\n",
		},
		{
			"pools shows pools, knees and backends", "pools",
			map[string][]string{"GET /v1/pools": {twoPools}},
			[]string{"GET /v1/pools"}, 0,
			paidLine + freeLine + backendLines,
		},
		{
			"watch prints a line a pool where there is no terminal", "watch --count=1",
			map[string][]string{"GET /v1/pools": {twoPools}},
			[]string{"GET /v1/pools"}, 0,
			"2030-01-01T00:00:00Z " + paidLine + "2030-01-01T00:00:00Z " + freeLine,
		},
		{
			"drain of one pool does not wait", "drain free --reason=storm --by=ann",
			map[string][]string{"POST /v1/pools/free/drain": {twoPools}},
			[]string{`POST /v1/pools/free/drain {"reason":"storm","by":"ann"}`}, 0,
			freeLine,
		},
		{
			"drain of a backend shows the backends", "drain paid --backend=a --reason=storm --by=ann --force",
			map[string][]string{"POST /v1/pools/paid/backends/a/drain": {twoPools}},
			[]string{`POST /v1/pools/paid/backends/a/drain {"reason":"storm","by":"ann","force":true}`}, 0,
			backendLines,
		},
		{
			"drain of all waits for free before paid", "drain all --reason=storm --by=ann",
			map[string][]string{
				"POST /v1/pools/free/drain": {twoPools},
				"POST /v1/pools/paid/drain": {`{"pools":{"paid":{"state":"drained"}}}`},
				"GET /v1/pools":             {twoPools, `{"pools":{"free":{"state":"drained"},"paid":{"state":"drained"}}}`},
			},
			[]string{
				`POST /v1/pools/free/drain {"reason":"storm","by":"ann"}`, "GET /v1/pools", "GET /v1/pools",
				`POST /v1/pools/paid/drain {"reason":"storm","by":"ann"}`, "GET /v1/pools",
			}, 0,
			freeLine + freeLine +
				"free: drained, 0 waiting, 0 running of 0 slots (limit 0, ), queue age 0 ms, first byte p95 0 ms ()\n" +
				"paid: drained, 0 waiting, 0 running of 0 slots (limit 0, ), queue age 0 ms, first byte p95 0 ms ()\n" +
				"paid: drained, 0 waiting, 0 running of 0 slots (limit 0, ), queue age 0 ms, first byte p95 0 ms ()\n",
		},
		{
			"resume opens a pool", "resume free --reason=over --by=ann",
			map[string][]string{"POST /v1/pools/free/resume": {twoPools}},
			[]string{`POST /v1/pools/free/resume {"reason":"over","by":"ann"}`}, 0,
			freeLine,
		},
		{
			"resume of a backend shows the backends", "resume paid --backend=a --reason=over --by=ann",
			map[string][]string{"POST /v1/pools/paid/backends/a/resume": {twoPools}},
			[]string{`POST /v1/pools/paid/backends/a/resume {"reason":"over","by":"ann"}`}, 0,
			backendLines,
		},
		{
			"budgets shows how far each is used", "budgets",
			map[string][]string{"GET /v1/budgets": {`{"now_ms":1893456000000,"day":"2030-01-01","resets_at_ms":1893542400000,"currency":"USD","budgets":[
				{"scope":"producer","name":"nightly","budget_micro_per_day":1000000,"spent_micro":10,"reserved_micro":5,"left_micro":999985}]}`}},
			[]string{"GET /v1/budgets"}, 0,
			"2030-01-01 (UTC), the next day begins in 24h0m0s; micro-units of USD\n" +
				"     SCOPE     NAME   BUDGET  SPENT  RESERVED    LEFT\n" +
				"  producer  nightly  1000000     10         5  999985\n",
		},
		{
			"budgets says where they are set", "budgets",
			map[string][]string{"GET /v1/budgets": {`{"budgets":[]}`}},
			[]string{"GET /v1/budgets"}, 0,
			"no budgets: set budget_micro_per_day under producers or classes\n",
		},
		{
			"batches lists the newest", "batches --producer=nightly --limit=2",
			map[string][]string{"GET /v1/batches": {`{"batches":[` + doneBatch + "," + openBatch + `]}`}},
			[]string{"GET /v1/batches?limit=2&producer=nightly"}, 0,
			"BATCH  CREATED               PRODUCER  STATUS       LINES  ADMITTED  REFUSED  INVALID  PENDING\n" +
				"b1     2030-01-01T00:00:00Z  nightly   done         4      3         1        0        0\n" +
				"b2     2030-01-01T00:00:00Z            in_progress  2      2         0        0        1\n",
		},
		{
			"batches says how to make one", "batches list",
			map[string][]string{"GET /v1/batches": {`{"batches":[]}`}},
			[]string{"GET /v1/batches?limit=50"}, 0,
			"no batches: `leeway submit` makes one\n",
		},
		{
			"batches show of a batch with a miss exits as submit does", "batches show b1",
			map[string][]string{"GET /v1/batches/b1": {doneBatch}},
			[]string{"GET /v1/batches/b1?wait=0s"}, exitMissed,
			"b1: done, created 2030-01-01T00:00:00Z, kept until 2030-01-02T00:00:00Z\n" +
				"4 lines: 3 admitted, 1 refused, 0 invalid\n" +
				"verdicts: 1 free, 2 paid, 1 reject_no_slack\n" +
				"outcomes: 1 late, 2 usable; 0 pending\n",
		},
		{
			"batches show of one under way says how to wait", "batches show b2",
			map[string][]string{"GET /v1/batches/b2": {openBatch}},
			[]string{"GET /v1/batches/b2?wait=0s"}, 0,
			"b2: in_progress, created 2030-01-01T00:00:00Z, kept until 2030-01-02T00:00:00Z\n" +
				"2 lines: 2 admitted, 0 refused, 0 invalid\n" +
				"verdicts: 2 paid\n" +
				"outcomes: none; 1 pending\n" +
				"1 jobs are lost: their records are gone\n" +
				"not done yet: `leeway batches show --wait 10m b2` waits for it\n",
		},
		{
			"batches lines says what became of each", "batches lines b1 --verdict=admitted --outcome=usable",
			map[string][]string{"GET /v1/batches/b1/lines": {`{"lines":[
				{"line":1,"custom_id":"one","path":"paid","job_id":"j1","job":{"outcome":"usable","state":"done","path":"paid"}},
				{"line":2,"path":"free","job_id":"j2","job":{"state":"running","path":"free"}},
				{"line":3,"path":"free","job_id":"j3"},
				{"line":4,"retry_after_ms":1000,"error":{"reason":"reject_no_slack","detail":"no"}},
				{"line":5,"error":{"reason":"invalid_field","detail":"text: is empty"}}]}`}},
			[]string{"GET /v1/batches/b1/lines?cursor=0&limit=200&outcome=usable&verdict=admitted"}, 0,
			"one: paid, j1: usable\n" +
				"line 2: free, j2: running\n" +
				"line 3: free, j3: its record has lapsed\n" +
				"line 4: reject_no_slack: no (again after 1000 ms)\n" +
				"line 5: invalid_field: text: is empty\n",
		},
		{
			"batches results without --follow takes what there is", "batches results b1",
			map[string][]string{"GET /v1/batches/b1/results": {`{"line":1,"next_cursor":1,"job":` + strings.Join(strings.Fields(usableJob), " ") + `}`}},
			[]string{"GET /v1/batches/b1/results?cursor=0&wait=0s"}, 0,
			`{"name":"line-1","job":{"job_id":"j1","state":"done","class":"summary","producer":"nightly","path":"paid",` +
				`"accepted_at_ms":1893456000000,"deadline_at_ms":1893456015000,"reserve_ms":0,"admission":`,
		},
		{
			"batches cancel says what its jobs met", "batches cancel b1",
			map[string][]string{"DELETE /v1/batches/b1": {`{"results":{"cancelled":4,"running":3,"done":2,"late":1}}`}},
			[]string{"DELETE /v1/batches/b1"}, 0,
			"b1: takes no more lines; 4 waiting jobs cancelled, 3 running ones will be cut, 2 had ended, of 1 the deadline had passed\n",
		},
		{
			"jobs lists the newest", "jobs --class=summary --state=done --outcome=usable --limit=3",
			map[string][]string{"GET /v1/jobs": {`{"jobs":[` + usableJob + "," + runningJob + `]}`}},
			[]string{"GET /v1/jobs?class=summary&limit=3&outcome=usable&state=done"}, 0,
			"JOB  ACCEPTED              PRODUCER  CLASS    PATH  STATE    OUTCOME  ELAPSED MS\n" +
				"j1   2030-01-01T00:00:00Z  nightly   summary  paid  done     usable   900\n" +
				"j2   2030-01-01T00:00:00Z            summary  free  running           0\n",
		},
		{
			"jobs show of an ended job has its answer", "jobs show j1 --wait=1m",
			map[string][]string{"GET /v1/jobs/j1": {usableJob}},
			[]string{"GET /v1/jobs/j1?wait=1m0s"}, 0,
			"j1: done, class summary, path paid\n" +
				"accepted 2030-01-01T00:00:00Z, deadline 2030-01-01T00:00:15Z, predicted wait 20 ms, waited 10 ms, attempts 1\n" +
				"outcome usable after 900 ms by lab-paid\n" +
				"answer, kept until 2030-01-02T00:00:00Z:\nThe answer.\n",
		},
		{
			"jobs show of a running job says how to wait", "jobs show j2",
			map[string][]string{"GET /v1/jobs/j2": {runningJob}},
			[]string{"GET /v1/jobs/j2?wait=0s"}, 0,
			"j2: running, class summary, path free\n" +
				"accepted 2030-01-01T00:00:00Z, deadline 2030-01-01T00:00:15Z, predicted wait 0 ms, waited 0 ms, attempts 1\n" +
				"not ended yet: `leeway jobs show --wait 1m j2` waits for it\n",
		},
		{
			"jobs show of a failed job has its cause", "jobs show j3",
			map[string][]string{"GET /v1/jobs/j3": {failedJob}},
			[]string{"GET /v1/jobs/j3?wait=0s"}, 0,
			"j3: done, class summary, path free\n" +
				"accepted 2030-01-01T00:00:00Z, deadline 2030-01-01T00:00:15Z, predicted wait 0 ms, waited 0 ms, attempts 2\n" +
				"outcome failed after 50 ms, cause backend_error status 500\n" +
				"the provider's words: no such model: x\n",
		},
		{
			"jobs cancel of a waiting job", "jobs cancel j1",
			map[string][]string{"DELETE /v1/jobs/j1": {`{"result":"cancelled"}`}},
			[]string{"DELETE /v1/jobs/j1?only=cancel"}, 0,
			"j1: cancelled: it was waiting, and nothing was spent\n",
		},
		{
			"jobs cancel of a running job", "jobs cancel j1",
			map[string][]string{"DELETE /v1/jobs/j1": {`{"result":"running"}`}},
			[]string{"DELETE /v1/jobs/j1?only=cancel"}, 0,
			"j1: its worker will cut it; what was spent is booked\n",
		},
		{
			"jobs cancel of a late job", "jobs cancel j1",
			map[string][]string{"DELETE /v1/jobs/j1": {`{"result":"late"}`}},
			[]string{"DELETE /v1/jobs/j1?only=cancel"}, 0,
			"j1: its deadline had passed: nothing changes\n",
		},
		{
			"jobs delete says what is gone", "jobs delete j1",
			map[string][]string{"DELETE /v1/jobs/j1": {`{"result":"deleted"}`}},
			[]string{"DELETE /v1/jobs/j1?only=delete"}, 0,
			"j1: text and answer are gone\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			api := &cannedAPI{answers: tt.answers}
			exit, out, errs := api.leeway(t, strings.Fields(tt.args)...)
			if exit != tt.exit || errs != "" {
				t.Errorf("exit %d, want %d; %s", exit, tt.exit, errs)
			}
			if !strings.HasPrefix(out, tt.out) || strings.HasSuffix(tt.out, "\n") && out != tt.out {
				t.Errorf("it prints\n%s\nwant\n%s", out, tt.out)
			}
			if got, want := strings.Join(api.asked, "\n"), strings.Join(tt.asked, "\n"); got != want {
				t.Errorf("it asks\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// --json is what the API gave, in one line.
func TestJSONFlags(t *testing.T) {
	answers := map[string][]string{
		"GET /v1/batches":          {`{"batches":[` + doneBatch + `]}`},
		"GET /v1/batches/b2":       {openBatch},
		"GET /v1/batches/b2/lines": {`{"lines":[{"line":1,"status":202},{"line":2,"status":202}]}`},
		"GET /v1/jobs":             {`{"jobs":[` + usableJob + `]}`},
		"GET /v1/jobs/j1":          {strings.Replace(usableJob, "The answer.", "a < b & c", 1)},
	}
	for args, want := range map[string]string{
		"batches --json":         `{"batches":[{"batch_id":"b1","status":"done","producer":"nightly",`,
		"batches show b2 --json": `{"batch_id":"b2","status":"in_progress",`,
		"batches lines b2 --json": `{"line":1,"status":202}` + "\n" +
			`{"line":2,"status":202}` + "\n",
		"jobs --json":         `{"jobs":[{"job_id":"j1","state":"done",`,
		"jobs show j1 --json": `{"job_id":"j1","state":"done","class":"summary","producer":"nightly","path":"paid",`,
	} {
		exit, out, errs := (&cannedAPI{answers: answers}).leeway(t, strings.Fields(args)...)
		if exit != 0 || !strings.HasPrefix(out, want) {
			t.Errorf("%s: exit %d\n%s%s\nwant\n%s", args, exit, out, errs, want)
		}
		if args == "jobs show j1 --json" && !strings.Contains(out, `"answer":"a < b & c"`) {
			t.Errorf("%s escapes what stands in JSON as it is:\n%s", args, out)
		}
	}
}

// The exit of a batch that is done is that of its worst line.
func TestBatchExit(t *testing.T) {
	for _, tt := range []struct {
		name, batch string
		exit        int
	}{
		{"all usable", `"lines":2,"admitted":2,"outcomes":{"usable":2}`, 0},
		{"one refused", `"lines":2,"admitted":1,"refused":1,"outcomes":{"usable":1}`, exitRefused},
		{"one missed, one refused", `"lines":3,"admitted":2,"refused":1,"outcomes":{"usable":1,"late":1}`, exitMissed},
		{"one invalid, one missed", `"lines":2,"admitted":1,"invalid":1,"outcomes":{"late":1}`, exitFailed},
		{"one lost", `"lines":2,"admitted":2,"lost":1,"outcomes":{"usable":1}`, exitFailed},
	} {
		api := &cannedAPI{answers: map[string][]string{"GET /v1/batches/b": {`{"batch_id":"b","status":"done",` + tt.batch + `}`}}}
		if exit, out, errs := api.leeway(t, "batches", "show", "b"); exit != tt.exit {
			t.Errorf("%s: exit %d, want %d\n%s%s", tt.name, exit, tt.exit, out, errs)
		}
	}
}

// batches results --follow goes on until the batch is done and nothing that
// ended is left untold.
func TestResultsFollow(t *testing.T) {
	line := func(n int) string {
		return fmt.Sprintf(`{"line":%d,"custom_id":"c%d","next_cursor":%d,"job":{"job_id":"j","state":"done","path":"paid","outcome":"usable","answer":"x"}}`, n, n, n)
	}
	api := &cannedAPI{answers: map[string][]string{
		"GET /v1/batches/b/results": {line(1), "", "", line(2), ""},
		"GET /v1/batches/b": {
			`{"batch_id":"b","status":"in_progress","pending":1,"outcomes":{"usable":1}}`,
			`{"batch_id":"b","status":"done","outcomes":{"usable":2}}`, // one has ended since
			`{"batch_id":"b","status":"done","outcomes":{"usable":2}}`,
		},
	}}
	to := t.TempDir() + "/answers.jsonl"
	exit, out, errs := api.leeway(t, "batches", "results", "b", "--follow", "--out="+to)
	if exit != 0 || out != "2 answers in "+to+"\n" {
		t.Errorf("exit %d\n%s%s", exit, out, errs)
	}
	want := []string{
		"GET /v1/batches/b/results?cursor=0&wait=20s",
		"GET /v1/batches/b/results?cursor=1&wait=20s", "GET /v1/batches/b",
		"GET /v1/batches/b/results?cursor=1&wait=20s", "GET /v1/batches/b",
		"GET /v1/batches/b/results?cursor=1&wait=20s",
		"GET /v1/batches/b/results?cursor=2&wait=20s", "GET /v1/batches/b",
	}
	for i := range api.asked {
		api.asked[i] = strings.TrimSuffix(api.asked[i], "?wait=0s")
	}
	if got := strings.Join(api.asked, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("it asks\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// writerFunc is a function as a writer.
type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

// A drain that takes too long says what is still there.
func TestDrainGivesUp(t *testing.T) {
	srv := httptest.NewServer(&cannedAPI{answers: map[string][]string{"GET /v1/pools": {twoPools}}})
	defer srv.Close()
	ctx, over := context.WithCancel(t.Context())
	defer over()
	c := drainCmd{apiFlags: apiFlags{API: srv.URL}}
	err := c.wait(ctx, writerFunc(func([]byte) { over() }), "free")
	if err == nil || err.Error() != "free is not drained yet: 0 waiting, 1 running" {
		t.Errorf("%v", err)
	}
}

func TestOrdersWantAReason(t *testing.T) {
	for _, args := range []string{"flags set ADMIT_FREE=0", "flags clear ADMIT_FREE", "drain free", "resume free"} {
		api := &cannedAPI{}
		exit, _, errs := api.leeway(t, strings.Fields(args)...)
		if exit != 2 || !strings.Contains(errs, "--reason") || len(api.asked) > 0 {
			t.Errorf("%s: exit %d, %s; it asks %q", args, exit, errs, api.asked)
		}
	}
	exit, _, errs := (&cannedAPI{}).leeway(t, "flags", "set", "ADMIT_FREE", "--reason=x")
	if exit != 1 || !strings.Contains(errs, "want NAME=VALUE") {
		t.Errorf("no value: exit %d, %s", exit, errs)
	}
}

func TestHealthcheck(t *testing.T) {
	for _, tt := range []struct{ status, exit int }{{200, 0}, {204, 0}, {302, 1}, {404, 1}, {503, 1}} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(tt.status) }))
		var out, errs bytes.Buffer
		exit := run([]string{"healthcheck", srv.URL + "/livez"}, &out, &errs)
		if exit != tt.exit || (exit != 0) != strings.Contains(errs.String(), fmt.Sprintf("/livez answered %d", tt.status)) {
			t.Errorf("%d: exit %d, %s", tt.status, exit, &errs)
		}
		srv.Close()
	}
	var out, errs bytes.Buffer
	if exit := run([]string{"healthcheck", "http://127.0.0.1:1/livez"}, &out, &errs); exit != 1 || strings.Contains(errs.String(), "--api") {
		t.Errorf("nobody there: exit %d, %s", exit, &errs)
	}
}

func TestInstant(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.FixedZone("", 3600))
	if got := instant(at.UnixMilli()); got != "2026-03-04T04:06:07Z" {
		t.Errorf("%v is %s", at, got)
	}
}
