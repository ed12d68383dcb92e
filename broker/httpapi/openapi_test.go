package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"

	"leeway/broker"
	"leeway/broker/webhook"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// described is the part of the document that these tests read.
type described struct {
	Paths map[string]map[string]struct {
		OperationID string                     `json:"operationId"`
		Responses   map[string]json.RawMessage `json:"responses"`
	} `json:"paths"`
	Components struct {
		Schemas struct {
			Problem struct {
				Properties struct {
					Reason struct {
						Enum []string `json:"enum"`
					} `json:"reason"`
				} `json:"properties"`
			} `json:"Problem"`
		} `json:"schemas"`
	} `json:"components"`
}

func document(t *testing.T) (d described) {
	t.Helper()
	if err := json.Unmarshal(openAPI, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

var echoParam = regexp.MustCompile(`:([a-z]+)`)

// Every route is described, and nothing else is.
func TestOpenAPIHasEveryRoute(t *testing.T) {
	inAPI(t, "", func(a *api) {
		have := map[string]bool{}
		for _, r := range a.echo.Routes() {
			have[r.Method+" "+echoParam.ReplaceAllString(r.Path, "{$1}")] = true
		}
		for path, ops := range document(t).Paths {
			for method := range ops {
				name := strings.ToUpper(method) + " " + path
				if !have[name] {
					t.Errorf("%s is described and does not exist", name)
				}
				delete(have, name)
			}
		}
		for name := range have {
			t.Errorf("%s is not described", name)
		}
		if w := a.send(http.MethodGet, "/openapi.json", ""); w.Code != 200 || !bytes.Equal(w.Body.Bytes(), openAPI) {
			t.Errorf("the document is not served: %d", w.Code)
		}
	})
}

// exchange is a request and its response, kept to be held against the document.
type exchange struct {
	method, path, body string
	header             http.Header
	status             int
	respHeader         http.Header
	respBody           []byte
}

func (e *exchange) request() *http.Request {
	r := httptest.NewRequest(e.method, ownURL+e.path, strings.NewReader(e.body))
	r.Header = e.header
	return r
}

func (e *exchange) response() *http.Response {
	return &http.Response{StatusCode: e.status, Header: e.respHeader, Body: io.NopCloser(bytes.NewReader(e.respBody))}
}

// recorder makes requests and keeps the exchanges.
type recorder struct {
	a    *api
	key  string
	kept []exchange
}

func (r *recorder) send(method, path, body string, header ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, ownURL+path, strings.NewReader(body))
	if body != "" {
		req.Header.Set("Content-Type", asJSON)
	}
	if r.key != "" {
		req.Header.Set("Authorization", "Bearer "+r.key)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	r.a.ServeHTTP(w, req)
	r.kept = append(r.kept, exchange{method, path, body, req.Header, w.Code, w.Result().Header, w.Body.Bytes()})
	return w
}

// as sends the same with another key.
func (r *recorder) as(key string) *recorder { r.key = key; return r }

const contractKeys = `
access:
  producers: [{name: nightly, key_sha256: %s}, {name: limited, key_sha256: %s}]
  oncall: [{name: sam, key_sha256: %s}]
classes: {summary: {}, other: {}}
producers:
  limited: {classes: [other], submissions_per_s: 1, budget_micro_per_day: 10}
  nightly: {webhook: {url: "https://hooks.example/x", secret_env: HOOK_SECRET}}
pools:
  paid: {limit: 2, first_byte_p95_ms: 1200, backends: [{name: one, url: "http://one.example/v1", model: m}]}
  free: {backends: [{name: two, url: "http://two.example/v1", model: m}]}
limits: {text_bytes: 1000}
`

func hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// Every operation is sent, every documented answer of it but 500 is provoked,
// and each answer is what the document says.
func TestOpenAPIContract(t *testing.T) {
	var kept []exchange
	inAPI(t, fmt.Sprintf(contractKeys, hashed("producer"), hashed("limited"), hashed("oncall")), func(a *api) {
		r := &recorder{a: a}
		everyAnswer(r)
		kept = r.kept
	})
	inAPI(t, fmt.Sprintf(reasonKeys, hashed("a"), hashed("b"), hashed("poor"), hashed("oncall")), func(a *api) {
		r := &recorder{a: a}
		everyReason(r)
		kept = append(kept, r.kept...)
	})
	doc, err := libopenapi.NewDocument(openAPI)
	if err != nil {
		t.Fatal(err)
	}
	v, errs := validator.NewValidator(doc)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	defer v.Release()
	if ok, errs := v.ValidateDocument(); !ok {
		for _, e := range errs {
			t.Errorf("the document: %s: %s %+v", e.Message, e.Reason, e.SchemaValidationErrors)
		}
	}
	seen, reasons := map[string]bool{}, map[string]bool{}
	d := document(t)
	for i := range kept {
		e := &kept[i]
		if e.respHeader.Get("Content-Type") == "application/problem+json" {
			var p wire.Problem
			if err := json.Unmarshal(e.respBody, &p); err != nil {
				t.Error(err)
			}
			reasons[p.Reason] = true
		}
		if e.status == http.StatusMethodNotAllowed {
			continue // no operation is described to which it could be an answer
		}
		path, op := operation(&d, e)
		if op == "" {
			t.Errorf("%s %s is no operation", e.method, e.path)
			continue
		}
		seen[fmt.Sprintf("%s %s %d", e.method, path, e.status)] = true
		if ok, errs := v.ValidateHttpResponse(e.request(), e.response()); !ok { //nolint:bodyclose // a reader of bytes
			for _, err := range errs {
				t.Errorf("%s %s answered %d %s: %s: %s", e.method, e.path, e.status, e.respBody, err.Message, err.Reason)
				for _, s := range err.SchemaValidationErrors {
					t.Errorf("  %s: %s", s.FieldPath, s.Reason)
				}
			}
		}
		if e.status/100 == 2 {
			if ok, errs := v.ValidateHttpRequestSync(e.request()); !ok {
				for _, err := range errs {
					t.Errorf("%s %s %s was taken: %s: %s", e.method, e.path, e.body, err.Message, err.Reason)
				}
			}
		}
	}
	for path, ops := range d.Paths {
		for method, op := range ops {
			for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
				if name := strings.ToUpper(method) + " " + path + " " + status; status != "500" && !seen[name] {
					t.Errorf("%s is described and was not seen", name)
				}
			}
		}
	}
	for _, want := range d.Components.Schemas.Problem.Properties.Reason.Enum {
		if want != wire.ReasonInternal && !reasons[want] {
			t.Errorf("no problem with reason %s was seen", want)
		}
		delete(reasons, want)
	}
	if len(reasons) > 0 {
		t.Errorf("reasons that are not described: %v", reasons)
	}
	t.Logf("%d exchanges, %d different answers", len(kept), len(seen))
}

// operation finds an exchange's operation: the route with fewest parameters
// that fits.
func operation(d *described, e *exchange) (path, id string) {
	got := strings.Split(strings.SplitN(e.path, "?", 2)[0], "/")
	best := len(got) + 1
	for p, ops := range d.Paths {
		want := strings.Split(p, "/")
		op, ok := ops[strings.ToLower(e.method)]
		if !ok || len(want) != len(got) {
			continue
		}
		params := 0
		fits := true
		for i, part := range want {
			if strings.HasPrefix(part, "{") {
				params++
			} else {
				fits = fits && part == got[i]
			}
		}
		if fits && params < best {
			best, path, id = params, p, op.OperationID
		}
	}
	return path, id
}

const chatBody = `{"model":"summary","messages":[{"role":"user","content":"x"}]}`

// everyAnswer sends every operation and provokes every answer it can give.
func everyAnswer(r *recorder) {
	a := r.a
	a.cfg.Archive.URL = ""
	order := `{"reason":"test"}`
	flagBody := `{"value":"1","reason":"test"}`
	reads := []string{"/v1/gate", "/v1/budgets", "/v1/pools", "/v1/flags", "/v1/flags/ADMIT_FREE", "/v1/models"}
	onCall := []string{"/v1/audit", "/v1/ledgers/spend", "/v1/ledgers/misses", "/v1/ledgers/rollups?ledger=spend", "/v1/ledgers/check"}
	actions := []string{"/v1/pools/free/drain", "/v1/pools/free/resume", "/v1/pools/paid/backends/one/drain", "/v1/pools/paid/backends/one/resume"}

	r.as("oncall")
	id := lifeOfAJob(r)
	r.send("GET", "/livez", "")
	r.send("GET", "/readyz", "")
	r.send("GET", "/openapi.json", "")
	for _, path := range slices.Concat(reads, onCall) {
		r.send("GET", path, "")
	}
	for _, path := range []string{"/v1/ledgers/misses", "/v1/ledgers/rollups?ledger=misses&group=path,class,producer,backend&by=hour"} {
		r.send("GET", path, "")
	}
	for _, path := range []string{"/v1/gate?class=nope", "/v1/flags/ADMIT_FREE?class=nope", "/v1/audit?limit=0", "/v1/ledgers/spend?limit=0", "/v1/ledgers/misses?limit=0", "/v1/ledgers/rollups?by=year", "/v1/ledgers/check?x=1"} {
		r.send("GET", path, "")
	}
	r.send("PUT", "/v1/flags/ADMIT_FREE", flagBody)
	r.send("GET", "/v1/flags/ADMIT_FREE", "")
	r.send("GET", "/v1/audit", "")
	r.send("PUT", "/v1/flags/ADMIT_FREE", `{"value":"perhaps","reason":"test"}`)
	r.send("PUT", "/v1/flags/ADMIT_FREE", flagBody, "Content-Type", "text/plain")
	r.send("PUT", "/v1/flags/NOPE", flagBody)
	r.send("GET", "/v1/flags/NOPE", "")
	r.send("DELETE", "/v1/flags/ADMIT_FREE?reason=test", "")
	r.send("DELETE", "/v1/flags/ADMIT_FREE", "")
	r.send("DELETE", "/v1/flags/NOPE?reason=test", "")
	r.send("POST", "/v1/pools/paid/drain", order) // before free
	for _, path := range actions {
		r.send("POST", path, order)
		r.send("POST", path, `{}`)
		r.send("POST", path, order, "Content-Type", "text/plain")
		r.send("POST", strings.NewReplacer("/free/", "/gold/", "/one/", "/two/").Replace(path), order)
	}

	// Those without a key, or with one that does not open the route.
	everywhere := func(send func(method, path, body string)) {
		for _, path := range slices.Concat(reads, onCall) {
			send("GET", path, "")
		}
		for _, path := range actions {
			send("POST", path, order)
		}
		send("PUT", "/v1/flags/ADMIT_FREE", flagBody)
		send("DELETE", "/v1/flags/ADMIT_FREE?reason=test", "")
	}
	jobs := func(send func(method, path, body string)) {
		send("POST", "/v1/jobs", `{"text":"x"}`)
		send("GET", "/v1/jobs/"+id, "")
		send("DELETE", "/v1/jobs/"+id, "")
		send("GET", "/v1/jobs/"+id+"/events", "")
		send("POST", routeChat, chatBody)
		send("GET", "/v1/jobs", "")
		send("GET", "/v1/batches", "")
		for _, path := range []string{"", "/lines", "/results"} {
			send("GET", "/v1/batches/b"+path, "")
		}
		send("DELETE", "/v1/batches/b", "")
		r.send("POST", "/v1/batches/b", `{"text":"x"}`, "Content-Type", ndJSON)
	}
	batch := func() *httptest.ResponseRecorder {
		return r.send("POST", "/v1/jobs/batch", `{"text":"x"}`, "Content-Type", ndJSON)
	}
	send := func(method, path, body string) { r.send(method, path, body) }
	r.as("")
	everywhere(send)
	jobs(send)
	batch()
	r.as("producer")
	everywhere(func(method, path, body string) {
		if slices.Contains(reads, path) && method == "GET" {
			return
		}
		r.send(method, path, body)
	})

	r.as("producer")
	endTold(r)

	r.as("limited")
	r.send("POST", "/v1/jobs", `{"text":"x"}`)
	time.Sleep(time.Minute) // until its rate allows another
	r.send("POST", routeChat, chatBody)
	time.Sleep(time.Minute)
	r.send("GET", "/v1/models", "")
	for range 2 {
		r.send("POST", "/v1/jobs", `{"text":"x","class":"other","deadline_ms":600000}`)
	}
	r.send("GET", "/v1/budgets", "")

	// With the store away.
	r.as("oncall")
	a.loseRedis(false)
	everywhere(func(method, path, body string) {
		if path != routeModels {
			r.send(method, path, body)
		}
	})
	jobs(send)
	batch()
	time.Sleep(ReadyFor)
	r.send("GET", "/readyz", "")
	a.findRedis()
}

const reasonKeys = `
access:
  producers: [{name: a, key_sha256: %s}, {name: b, key_sha256: %s}, {name: poor, key_sha256: %s}]
  oncall: [{name: sam, key_sha256: %s}]
classes: {summary: {prefer: paid-only}}
producers: {poor: {budget_micro_per_day: 10}}
`

// everyReason provokes the reasons that need a gate in some state: flooded, out
// of budget, closed, without workers, without memory or streams.
func everyReason(r *recorder) {
	a, ctx := r.a, r.a.t.Context()
	job := func(deadlineMS int) *httptest.ResponseRecorder {
		return r.send("POST", "/v1/jobs", fmt.Sprintf(`{"text":"x","deadline_ms":%d}`, deadlineMS))
	}
	want := func(w *httptest.ResponseRecorder, status int, reason slackgate.Reason) {
		a.t.Helper()
		var p wire.Problem
		a.must(json.Unmarshal(w.Body.Bytes(), &p))
		if w.Code != status || p.Reason != string(reason) || p.Verdict != nil && p.Verdict.Reason != reason {
			a.t.Errorf("answered %d %s, want %s", w.Code, w.Body, reason)
		}
	}
	r.as("poor")
	want(job(15_000), 429, slackgate.ReasonBudget)
	r.as("a")
	id := func() string {
		var v wire.Verdict
		a.must(json.Unmarshal(job(60_000).Body.Bytes(), &v))
		return v.JobID
	}()
	r.send("POST", "/livez", "")
	r.send("POST", "/v1/jobs", "{")

	// Without memory, and without streams.
	for of, then := range map[*shares]func(){
		a.memory:  func() { want(job(15_000), 503, wire.ReasonBusy) },
		a.streams: func() { want(r.send("GET", "/v1/jobs/"+id+"/events", ""), 503, wire.ReasonTooManyStreams) },
		a.waits:   func() { want(r.send("GET", "/v1/jobs/"+id+"?wait=1s", ""), 503, wire.ReasonTooManyStreams) },
	} {
		h := &hold{of: of, who: "a"}
		for h.take(ctx, 1, 0) {
			continue
		}
		then()
		h.release()
	}

	// One floods beside another that wants less than half of what there is.
	refreshing, stop := context.WithCancel(ctx)
	var refreshed sync.WaitGroup
	refreshed.Go(func() { _ = a.gate.Refresh(refreshing) })
	held := false
	for n := 0; n < 2000 && !held; n++ {
		if n%20 == 0 {
			r.as("b")
			job(15_000)
		}
		r.as("a")
		held = bytes.Contains(job(15_000).Body.Bytes(), []byte(slackgate.ReasonShare))
		if !held {
			r.kept = r.kept[:len(r.kept)-1]
		}
		time.Sleep(10 * time.Millisecond)
	}
	if !held {
		a.t.Error("a flood was never held to its share")
	}
	stop()
	refreshed.Wait()
	var last *httptest.ResponseRecorder
	for range 1000 { // both: until nothing is left for anybody
		r.as("b")
		if last = job(15_000); bytes.Contains(last.Body.Bytes(), []byte(slackgate.ReasonNoSlack)) {
			break
		}
		r.kept = r.kept[:len(r.kept)-1]
	}
	want(last, 429, slackgate.ReasonNoSlack)

	r.as("oncall")
	r.send("PUT", "/v1/flags/ADMIT_PAID", `{"value":"0","reason":"test"}`)
	r.as("b")
	want(job(15_000), 429, slackgate.ReasonClosed)
	r.as("oncall")
	r.send("DELETE", "/v1/flags/ADMIT_PAID?reason=test", "")
	a.must(a.store.Leave(ctx, broker.Worker{ID: "p", Path: slackgate.Paid, Slots: 2}))
	want(job(15_000), 503, slackgate.ReasonPoolDown)
}

// lifeOfAJob covers the routes of jobs and returns the id of one that ended.
func lifeOfAJob(r *recorder) string {
	a, ctx := r.a, r.a.t.Context()
	idOf := func(w *httptest.ResponseRecorder) string {
		var v wire.Verdict
		a.must(json.Unmarshal(w.Body.Bytes(), &v))
		return v.JobID
	}
	full := `{"text":"x","class":"summary","deadline_ms":600000,"max_output_tokens":10,"producer":"p","metadata":{"a":"b"}}`
	id := idOf(r.send("POST", "/v1/jobs", full, wire.HeaderIdempotencyKey, "k"))
	r.send("POST", "/v1/jobs", full, wire.HeaderIdempotencyKey, "k")
	r.send("POST", "/v1/jobs", `{"text":"y","producer":"p"}`, wire.HeaderIdempotencyKey, "k")
	r.send("POST", "/v1/jobs", `{}`)
	r.send("POST", "/v1/jobs", `{"text":"x"}`, "Content-Type", "text/plain")
	r.send("POST", "/v1/jobs", `{"text":"`+strings.Repeat("x", 100_000)+`"}`)
	r.send("POST", "/v1/jobs", `{"text":"x","deadline_ms":1}`)
	r.send("GET", "/v1/jobs/"+id, "")
	r.send("GET", "/v1/jobs/"+id+"?wait=soon", "")
	r.send("DELETE", "/v1/jobs/"+id+"?only=nothing", "")
	r.send("DELETE", "/v1/jobs/"+id+"?only=delete", "")

	c := a.claim()
	row := broker.SpendRow{JobID: id, Attempt: 1, Path: slackgate.Paid, Class: "summary", Backend: "one", Model: "m", Currency: "USD", PriceVersion: "1", Priced: true, MaxCostMicro: 7}
	a.must(a.store.OpenSpend(ctx, c, &row))
	a.must(a.store.SawFirstByte(ctx, c))
	r.send("GET", "/v1/jobs/"+id, "")
	r.send("GET", "/v1/ledgers/spend", "")
	r.send("DELETE", "/v1/jobs/"+id, "") // its worker will cut it
	row.InputTokens, row.OutputTokens, row.CostMicro, row.Known, row.Result = 3, 4, 5, broker.KnownReported, "whole"
	_, err := a.store.Finish(ctx, c, &broker.Finish{
		Outcome: broker.OutcomeUsable, Answer: "the answer", Backend: "one", FirstByteMS: 5, FirstRoute: "one", FirstOutcome: "whole",
		FinishReason: "stop", Usage: &broker.Usage{InputTokens: 3, OutputTokens: 4, Known: broker.KnownReported},
	}, row)
	a.must(err)
	r.send("GET", "/v1/jobs/"+id+"?wait=1s", "")
	r.send("GET", "/v1/jobs/nobody", "")
	r.send("DELETE", "/v1/jobs/nobody", "")
	r.send("DELETE", "/v1/jobs/"+id, "")

	events := r.send("GET", "/v1/jobs/"+id+"/events", "")
	r.send("GET", "/v1/jobs/nobody/events", "")
	// What an event carries is what the document says of its kind.
	for name, e := range map[string]exchange{
		wire.EventVerdict: {method: "POST", path: "/v1/jobs", status: 202}, wire.EventOutcome: {method: "GET", path: "/v1/jobs/" + id, status: 200},
	} {
		_, rest, ok := strings.Cut(events.Body.String(), "event: "+name+"\ndata: ")
		if !ok {
			a.t.Errorf("no %s in %s", name, events.Body)
		}
		data, _, _ := strings.Cut(rest, "\n")
		e.body, e.header, e.respHeader, e.respBody = `{"text":"x"}`, http.Header{"Content-Type": {asJSON}}, http.Header{"Content-Type": {asJSON}, "Location": {"/"}}, []byte(data)
		if e.method == "GET" {
			e.body, e.header = "", http.Header{}
		}
		r.kept = append(r.kept, e)
	}
	for name := range map[string]bool{wire.EventRunning: true, wire.EventFirstByte: true} {
		if !strings.Contains(events.Body.String(), "event: "+name+"\ndata: {\"job_id\":\""+id+"\",\"path\":\"paid\",\"at_ms\":9") {
			a.t.Errorf("no %s in %s", name, events.Body)
		}
	}
	batchOf(r)
	chats(r)
	return id
}

// endTold lets a job end whose producer has a webhook. What the webhook is told
// has the members that the document says, and its data is a job.
func endTold(r *recorder) {
	a, ctx := r.a, r.a.t.Context()
	w := r.send("POST", "/v1/jobs/batch", `{"text":"x","custom_id":"told"}`, "Content-Type", ndJSON)
	r.kept = r.kept[:len(r.kept)-1]
	var line wire.BatchLine
	a.must(json.Unmarshal(w.Body.Bytes(), &line))
	r.send("DELETE", "/v1/jobs/"+line.JobID, "")
	ends, err := a.store.TakeWebhooks(ctx, time.Minute, broker.WebhookDue{Producer: "nightly", Most: 10})
	a.must(err)
	if len(ends) != 1 || ends[0].JobID != line.JobID || ends[0].Job.CustomID != "told" || ends[0].Job.BatchID == "" {
		a.t.Fatalf("told of %s: %+v", line.JobID, ends)
	}
	e, err := webhook.NewEvent(ends[0].Job)
	a.must(err)
	var d struct {
		Webhooks map[string]struct {
			Post struct {
				RequestBody json.RawMessage `json:"requestBody"`
			} `json:"post"`
		} `json:"webhooks"`
		Components struct {
			Schemas map[string]struct {
				Properties map[string]struct {
					Const string `json:"const"`
				} `json:"properties"`
			} `json:"schemas"`
		} `json:"components"`
	}
	a.must(json.Unmarshal(openAPI, &d))
	var got map[string]json.RawMessage
	a.must(json.Unmarshal(e, &got))
	want := d.Components.Schemas["JobEnded"].Properties
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, slices.Sorted(maps.Keys(want))) {
		a.t.Errorf("a webhook is told %v", names)
	}
	if want["type"].Const != webhook.EventEnded || string(got["type"]) != `"`+webhook.EventEnded+`"` ||
		!bytes.Contains(d.Webhooks[webhook.EventEnded].Post.RequestBody, []byte("#/components/schemas/JobEnded")) {
		a.t.Errorf("%s is not what is described", e)
	}
	r.kept = append(r.kept, exchange{
		method: "GET", path: "/v1/jobs/" + line.JobID, header: http.Header{}, status: 200,
		respHeader: http.Header{"Content-Type": {asJSON}}, respBody: got["data"],
	})
}

// batchOf sends a batch and keeps each line of its answer as an exchange.
func batchOf(r *recorder) {
	w := r.send("POST", "/v1/jobs/batch", `{"text":"x","custom_id":"1"}`+"\n"+`{"txet":"x"}`+"\n"+`{"text":"x","deadline_ms":1}`, "Content-Type", ndJSON)
	whole := r.kept[len(r.kept)-1]
	r.kept = r.kept[:len(r.kept)-1]
	for line := range strings.Lines(w.Body.String()) {
		one := whole
		one.body, one.respBody = `{"text":"x"}`, []byte(line)
		r.kept = append(r.kept, one)
	}
	r.send("POST", "/v1/jobs/batch", `{"text":"x"}`, "Content-Type", "text/plain")
	r.send("POST", "/v1/jobs/batch", `{"text":"x"}`, "Content-Type", ndJSON, wire.HeaderIdempotencyKey, "a b")
	// The batch's job is not for the chats.
	_, err := r.a.store.Finish(r.a.t.Context(), r.a.claim(), &broker.Finish{Outcome: broker.OutcomeCancelled, FirstByteMS: -1})
	r.a.must(err)
	batchRead(r, w.Header().Get(wire.HeaderBatchID))
}

// batchRead covers the routes of a batch on record.
func batchRead(r *recorder, id string) {
	at := "/v1/batches/" + id
	for _, path := range []string{"/v1/batches", at, at + "/lines", at + "/results", "/v1/jobs"} {
		r.send("GET", path, "")
		r.send("GET", path+"?limit=0&wait=soon", "")
		r.send("GET", strings.Replace(path, id, "nobody", 1), "")
	}
	r.send("GET", "/v1/jobs?state=done&outcome=cancelled&class=summary&limit=5", "")
	r.send("GET", at+"/lines?verdict=refused&limit=1", "")
	r.send("POST", at, `{"text":"x","custom_id":"1"}`, "Content-Type", ndJSON)
	r.send("POST", at, `{"text":"x"}`, "Content-Type", "text/plain")
	r.send("POST", "/v1/batches/nobody", `{"text":"x"}`, "Content-Type", ndJSON)
	key := []string{"Content-Type", ndJSON, wire.HeaderIdempotencyKey, "to-be-cancelled"}
	other := r.send("POST", "/v1/jobs/batch", `{"text":"x","custom_id":"1"}`, key...).Header().Get(wire.HeaderBatchID)
	r.send("DELETE", "/v1/batches/"+other, "")
	r.send("GET", "/v1/batches/"+other, "")
	r.send("POST", "/v1/batches/"+other, `{"text":"x"}`, "Content-Type", ndJSON)
	r.send("POST", "/v1/jobs/batch", `{"text":"x"}`, key...)
	r.send("DELETE", "/v1/batches/nobody", "")
}

func chats(r *recorder) {
	a, ctx := r.a, r.a.t.Context()
	for _, f := range []broker.Finish{
		{Outcome: broker.OutcomeUsable, Answer: "a", FinishReason: "stop", Usage: &broker.Usage{InputTokens: 1, Known: broker.KnownReported}},
		{Outcome: broker.OutcomeLate, Cause: broker.CauseCutAtDeadline, FirstByteMS: -1},
		{Outcome: broker.OutcomeEmpty, Cause: broker.CauseEmpty, FirstByteMS: -1},
	} {
		time.AfterFunc(time.Second, func() {
			_, err := a.store.Finish(ctx, a.claim(), &f)
			a.must(err)
		})
		r.send("POST", routeChat, chatBody, wire.HeaderIdempotencyKey, "chat-"+string(f.Outcome))
	}
	r.send("POST", routeChat, strings.Replace(chatBody, "x", "y", 1), wire.HeaderIdempotencyKey, "chat-usable")
	r.send("POST", routeChat, `{}`)
	r.send("POST", routeChat, strings.Replace(chatBody, "summary", "gpt", 1))
	r.send("POST", routeChat, chatBody, "Content-Type", "text/plain")
	r.send("POST", routeChat, strings.Repeat("x", 100_000))
	r.send("POST", routeChat, chatBody, wire.HeaderDeadline, "1")
}
