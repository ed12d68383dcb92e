//go:build server

package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/template"
	"time"

	"leeway/broker/client"
	"leeway/broker/wire"
	"leeway/rehearsal/lab"
	"leeway/rehearsal/proctest"
	"leeway/rehearsal/redistest"
	"leeway/slackgate"
	"leeway/workers"
)

// settings describe a deployment. Times are in milliseconds.
type settings struct {
	Policy string // predictive unless set

	// The pools' limits, the lab's true first bytes, and what is declared of
	// them: enough more that a busy machine keeps the promises.
	PaidSlots, FreeSlots int
	PaidMS, FreeMS       int
	PaidP95, FreeP95     int
	// PaidTail and FreeTail are the time from first byte to last.
	PaidTail, FreeTail int
	// Spare adds a second backend to the paid pool.
	Spare bool

	DeadlineMS, ReserveMS int
	FreeCutMS             int   // closes free at that queue age; 0: the policy's own
	Budget                int64 // of the default class, micro-units a day; 0: none
	GraceMS               int
	// RedisMS bounds each call to Redis.
	RedisMS int
	Shards  int // 1 unless set

	// Labs and Redis that the test has started itself.
	RedisURL                   string
	PaidURL, FreeURL, SpareURL string
	HoldPaid, HoldFree         int

	More string // of the configuration: further sections
}

// quick is a deployment whose jobs take fractions of a second.
func quick() settings {
	return settings{
		PaidSlots: 2, PaidMS: 60, PaidP95: 250,
		FreeSlots: 1, FreeMS: 200, FreeP95: 600,
		DeadlineMS: 4000, ReserveMS: 500,
		GraceMS: 30_000,
		// Longer than the default: a busy machine is not what is tested here.
		RedisMS: 1000,
	}
}

var configFile = template.Must(template.New("config").Parse(`
listen: 127.0.0.1:0
metrics_listen: 127.0.0.1:0
worker_metrics_listen: 127.0.0.1:0
redis:
  url: {{.RedisURL}}
  timeout_ms: {{.RedisMS}}
  shards: {{or .Shards 1}}
gate:
  policy: {{or .Policy "predictive"}}
{{- if .FreeCutMS}}
  free_queue_age_cut_ms: {{.FreeCutMS}}
{{- end}}
worker:
  shutdown_grace_ms: {{.GraceMS}}
pools:
  paid:
    limit: {{.PaidSlots}}
    first_byte_p95_ms: {{.PaidP95}}
    hold_p95_ms: {{.HoldPaid}}
    backends:
      - name: lab-paid
        url: {{.PaidURL}}
        model: lab-paid
        price: {currency: USD, version: e2e, input_micro_per_mtok: 150000, output_micro_per_mtok: 600000}
{{- if .Spare}}
      - name: lab-spare
        url: {{.SpareURL}}
        model: lab-spare
        price: {currency: USD, version: e2e, input_micro_per_mtok: 300000, output_micro_per_mtok: 900000}
{{- end}}
  free:
    limit: {{.FreeSlots}}
    first_byte_p95_ms: {{.FreeP95}}
    hold_p95_ms: {{.HoldFree}}
    backends:
      - name: lab-free
        url: {{.FreeURL}}
        model: lab-free
classes:
  summary:
    deadline_ms: {{.DeadlineMS}}
    reserve_ms: {{.ReserveMS}}
{{- if .Budget}}
    budget_micro_per_day: {{.Budget}}
{{- end}}
  paid-only:
    deadline_ms: {{.DeadlineMS}}
    reserve_ms: {{.ReserveMS}}
    prefer: paid-only
  free-only:
    deadline_ms: {{.DeadlineMS}}
    reserve_ms: {{.ReserveMS}}
    prefer: free-only
{{.More}}
`))

// backend is a lab backend in a process of its own.
type backend struct {
	*process

	url, control string
}

var labLine = regexp.MustCompile(`on (http://\S+/v1), control on (http://\S+/control)`)

// startLab starts a lab backend named after its model.
func startLab(t *testing.T, model string, firstByteMS, tailMS, slots int) *backend {
	t.Helper()
	return startLabWith(t, model, []string{
		"lab", "--addr", "127.0.0.1:0", "--model", model, "--profile", fmt.Sprintf("fixed:%dms", firstByteMS),
		"--tail", fmt.Sprintf("%dms", tailMS), "--slots", strconv.Itoa(slots), "--log", "500000",
	})
}

// startLabWith starts a lab backend by its command line.
func startLabWith(t *testing.T, model string, args []string) *backend {
	t.Helper()
	p := start(t, "leeway", nil, args...)
	p.plain = true
	m := p.Says(20*time.Second, labLine)
	b := &backend{process: p, url: m[1], control: m[2]}
	return b
}

// fault sets a fault for all requests; an empty name is health.
func (b *backend) fault(name string, ms int) {
	b.t.Helper()
	b.plays(lab.Fault{Name: name, MS: int64(ms)})
}

// plays sets a fault; one without a name is health.
func (b *backend) plays(f lab.Fault) {
	b.t.Helper()
	method, body := http.MethodDelete, []byte(nil)
	if f.Name != "" {
		method = http.MethodPut
		var err error
		if body, err = json.Marshal(f); err != nil {
			b.t.Fatal(err)
		}
	}
	if r := call(b.t, method, b.control+"/fault", "application/json", string(body)); r.status != http.StatusOK {
		b.t.Fatalf("fault %+v: %d %s", f, r.status, r.body)
	}
}

// pace changes the first byte of requests from now on.
func (b *backend) pace(firstByteMS int) {
	b.t.Helper()
	r := call(b.t, http.MethodPut, b.control+"/profile", "application/json", fmt.Sprintf(`{"profile":"fixed:%dms"}`, firstByteMS))
	if r.status != http.StatusOK {
		b.t.Fatalf("pace: %d %s", r.status, r.body)
	}
}

// forJobs counts the attempts that were no probes.
func (b *backend) forJobs() (n int) {
	b.t.Helper()
	for _, a := range b.attempts() {
		if !strings.HasPrefix(a.RequestID, workers.ProbeClass+"-") {
			n++
		}
	}
	return n
}

// attempts is what the backend saw, oldest first.
func (b *backend) attempts() []lab.Attempt {
	b.t.Helper()
	r := call(b.t, http.MethodGet, b.control+"/attempts", "", "")
	if n := r.header.Get(lab.ForgottenHeader); n != "0" {
		b.t.Errorf("%s has forgotten %s attempts", b.name, n)
	}
	var out []lab.Attempt
	for dec := json.NewDecoder(bytes.NewReader(r.body)); ; {
		var a lab.Attempt
		err := dec.Decode(&a)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			b.t.Fatalf("attempts: %v in %s", err, r.body)
		}
		out = append(out, a)
	}
}

// inService is how many requests hold a slot of the backend.
func (b *backend) inService() int {
	b.t.Helper()
	r := call(b.t, http.MethodGet, b.control+"/state", "", "")
	var s lab.State
	if err := json.Unmarshal(r.body, &s); err != nil {
		b.t.Fatal(err)
	}
	return s.InService
}

// busy waits until the backend serves n requests.
func (b *backend) busy(n int) {
	b.t.Helper()
	proctest.Eventually(b.t, 10*time.Second, fmt.Sprintf("%d requests in service", n), func() error {
		if got := b.inService(); got != n {
			return fmt.Errorf("%d are", got)
		}
		return nil
	})
}

// response is an HTTP response, read to its end.
type response struct {
	status int
	header http.Header
	body   []byte
	took   time.Duration
}

// callTimeout bounds a call: nothing of Leeway's may hang.
const callTimeout = 30 * time.Second

// call makes one HTTP call and fails the test if there is no answer.
func call(t *testing.T, method, url, contentType, body string) response {
	t.Helper()
	r, err := tryCall(method, url, contentType, body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return r
}

func tryCall(method, url, contentType, body string) (response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return response{}, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	begun := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return response{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return response{resp.StatusCode, resp.Header, raw, time.Since(begun)}, err
}

// stack is a deployment under test.
type stack struct {
	t     *testing.T
	redis *redistest.Server
	labs  map[string]*backend // by name
	file  string              // the configuration
	args  []string            // further options of its processes
	env   []string            // of the processes started from now on

	api     *process // the one that takes submissions
	apis    []*process
	workers []*process
	client  *client.Client
	faulty  string // the folder of the binaries started from now on; empty: the product's own

	book book
	// unheard are jobs of which a cancel got no answer: it may have been carried
	// out, and then nobody wrote its line.
	unheard sync.Map
}

// inMemory are options of a Redis that is not to die: without a disk to wait
// for, it does not stand still while others write.
var inMemory = []string{"--appendonly", "no"}

// deploy starts Redis and the lab backends and writes the configuration;
// startAPI and startWorker do the rest. redisArgs default to inMemory.
func deploy(t *testing.T, s settings, redisArgs ...string) *stack {
	t.Helper()
	if len(redisArgs) == 0 {
		redisArgs = inMemory
	}
	return deployOver(t, s, redistest.Start(t, redisArgs...))
}

// deployOver is deploy over a Redis that the test has started itself.
func deployOver(t *testing.T, s settings, redis *redistest.Server) *stack {
	t.Helper()
	d := &stack{t: t, labs: map[string]*backend{}, redis: redis}
	s.RedisURL = d.redis.URL()
	addLab := func(name string, ms, tail, slots int) string {
		d.labs[name] = startLab(t, name, ms, tail, slots)
		return d.labs[name].url
	}
	s.PaidURL = addLab("lab-paid", s.PaidMS, s.PaidTail, s.PaidSlots)
	if s.FreeSlots > 0 {
		s.FreeURL = addLab("lab-free", s.FreeMS, s.FreeTail, s.FreeSlots)
	} else {
		s.FreeURL = s.PaidURL
	}
	if s.Spare {
		s.SpareURL = addLab("lab-spare", s.PaidMS, s.PaidTail, s.PaidSlots)
	}
	s.HoldPaid, s.HoldFree = s.PaidP95+s.PaidTail, s.FreeP95+s.FreeTail
	var doc bytes.Buffer
	if err := configFile.Execute(&doc, s); err != nil {
		t.Fatal(err)
	}
	d.file = filepath.Join(t.TempDir(), "leeway.yaml")
	if err := os.WriteFile(d.file, doc.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return d
}

// run is deploy with one API and one worker.
func run(t *testing.T, s settings, redisArgs ...string) *stack {
	t.Helper()
	d := deploy(t, s, redisArgs...)
	d.startWorker()
	d.startAPI()
	d.ready()
	return d
}

// startAPI starts another API process; submissions go to it from now on.
func (d *stack) startAPI(args ...string) *process {
	d.t.Helper()
	p := start(d.t, filepath.Join(d.faulty, "api"), d.env, slices.Concat([]string{"--config", d.file}, d.args, args)...)
	d.client = &client.Client{Base: "http://" + p.field("listening", "addr"), HTTP: &http.Client{Timeout: callTimeout}}
	d.api = p
	d.apis = append(d.apis, p)
	return p
}

// startWorker starts another worker process. env, such as how many slots it
// offers, is added to that of the stack.
func (d *stack) startWorker(env ...string) *process {
	d.t.Helper()
	p := start(d.t, filepath.Join(d.faulty, "worker"), slices.Concat(d.env, env), append([]string{"--config", d.file}, d.args...)...)
	p.field("working", "metrics_addr")
	d.workers = append(d.workers, p)
	return p
}

// ready waits for the API to say that it can admit.
func (d *stack) ready() {
	d.t.Helper()
	proctest.Eventually(d.t, 10*time.Second, "API ready", func() error {
		if r := call(d.t, http.MethodGet, d.client.Base+"/readyz", "", ""); r.status != http.StatusOK {
			return fmt.Errorf("%d %s", r.status, r.body)
		}
		return nil
	})
}

// opens waits until the gate would give a job of the default class this path.
func (d *stack) opens(path slackgate.Path) {
	d.t.Helper()
	proctest.Eventually(d.t, 10*time.Second, "gate opens "+path.String(), func() error {
		r := call(d.t, http.MethodGet, d.client.Base+"/v1/gate", "", "")
		var gate struct {
			Verdict wire.Verdict `json:"verdict"`
		}
		if err := json.Unmarshal(r.body, &gate); err != nil || gate.Verdict.Path != path {
			return fmt.Errorf("%d %s", r.status, r.body)
		}
		return nil
	})
}

// metrics are the pages of all processes that run, by process, each with what is
// read from the store.
func (d *stack) metrics() map[*process]page {
	d.t.Helper()
	out := map[*process]page{}
	for msg, all := range map[string][]*process{"listening": d.apis, "working": d.workers} {
		for _, p := range all {
			if p.Running() {
				out[p] = d.scrape(p, msg)
			}
		}
	}
	return out
}

// scrape asks a process for its page until it could read the store: on a busy
// machine a call may take longer than its limit.
func (d *stack) scrape(p *process, listening string) (pg page) {
	d.t.Helper()
	proctest.Eventually(d.t, 10*time.Second, p.name+" reads the store", func() error {
		pg = page{d.t, call(d.t, http.MethodGet, "http://"+p.field(listening, "metrics_addr")+"/metrics", "", "").body}
		if !bytes.Contains(pg.text, []byte("\nleeway_store_up 1\n")) {
			return errors.New("leeway_store_up is not 1")
		}
		return nil
	})
	return pg
}

// page is a metrics page.
type page struct {
	t    *testing.T
	text []byte
}

// get reads one series; a missing one fails the test.
func (p page) get(series string) int64 {
	p.t.Helper()
	v, err := client.Metric(p.text, series)
	if err != nil {
		p.t.Errorf("metrics: %v", err)
	}
	return int64(v)
}
