// Package stagetest runs Leeway as on-call meets it, for tests: the real
// binaries, a redis-server, lab backends with their control endpoints, and a
// Prometheus that scrapes all of it. Nothing outlives the test.
package stagetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/template"
	"time"

	"leeway/broker/client"
	"leeway/rehearsal/redistest"
)

// Settings describe what runs. Times are in milliseconds.
type Settings struct {
	// Policy is the gate's. Defaults to predictive.
	Policy string
	// PaidMS and FreeMS are the lab's first bytes. Default to 60 and 200.
	PaidMS, FreeMS int
	// PaidP95 and FreeP95 are what is declared of them. Default to 250 and 600.
	PaidP95, FreeP95 int
	// DeadlineMS and ReserveMS are the default class's. Default to 3000 and 300.
	DeadlineMS, ReserveMS int
	// SpentMS is how much of its deadline a job of a flood has lost before it
	// is submitted.
	SpentMS int
	// FreeCutMS closes free at that queue age; 0: the policy's own.
	FreeCutMS int
	// RecheckOff turns the workers' re-check off.
	RecheckOff bool
	// Rules are the Prometheus rules; none if empty.
	Rules []byte
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Stage is a running deployment.
type Stage struct {
	tb testing.TB
	// Bin is the folder of the built binaries.
	Bin string
	// Redis is its store.
	Redis *redistest.Server
	// Paid and Free are the lab backends.
	Paid, Free *Lab
	// API and Worker are its processes.
	API, Worker *Process
	// Config and EnvFile are the configuration file and the environment file of
	// both; the latter is empty.
	Config, EnvFile string
	// APIAddr, APIMetrics, WorkerMetrics and Prometheus are addresses, host:port.
	APIAddr, APIMetrics, WorkerMetrics, Prometheus string
	// Client submits jobs.
	Client *client.Client
	// jobMS is the deadline that a flood's jobs are submitted with.
	jobMS int64
}

var configFile = template.Must(template.New("config").Parse(`
listen: {{.Listen}}
metrics_listen: {{.Metrics}}
worker_metrics_listen: {{.WorkerMetrics}}
redis: {url: {{.Redis}}, timeout_ms: 1000}
knee_file: knees.json
gate: {policy: {{.Policy}}{{if .FreeCutMS}}, free_queue_age_cut_ms: {{.FreeCutMS}}{{end}}}
{{if .RecheckOff}}lab: {recheck_off: true}{{end}}
pools:
  paid:
    limit: 2
    first_byte_p95_ms: {{.PaidP95}}
    backends:
      - name: lab-paid
        url: {{.PaidURL}}
        model: lab-paid
        price: {currency: USD, version: lab, input_micro_per_mtok: 150000, output_micro_per_mtok: 600000}
  free:
    limit: 1
    first_byte_p95_ms: {{.FreeP95}}
    backends:
      - {name: lab-free, url: {{.FreeURL}}, model: lab-free}
classes:
  summary: {deadline_ms: {{.DeadlineMS}}, reserve_ms: {{.ReserveMS}}, budget_micro_per_day: 1000000000000}
`))

// Start builds the binaries and starts everything. root is the folder of
// go.mod.
func Start(tb testing.TB, root string, s Settings) *Stage {
	tb.Helper()
	orDefault(&s.Policy, "predictive")
	orDefault(&s.PaidMS, 60)
	orDefault(&s.FreeMS, 200)
	orDefault(&s.PaidP95, 250)
	orDefault(&s.FreeP95, 600)
	orDefault(&s.DeadlineMS, 3000)
	orDefault(&s.ReserveMS, 300)
	st := &Stage{tb: tb, Bin: Build(tb, root), jobMS: int64(s.DeadlineMS - s.SpentMS)}
	st.Redis = redistest.Start(tb)
	st.Paid = st.startLab("lab-paid", s.PaidMS, 2)
	st.Free = st.startLab("lab-free", s.FreeMS, 1)
	st.APIAddr, st.APIMetrics, st.WorkerMetrics = freeAddr(tb), freeAddr(tb), freeAddr(tb)
	st.Client = &client.Client{Base: "http://" + st.APIAddr, HTTP: &http.Client{Timeout: callTimeout}}

	var doc bytes.Buffer
	if err := configFile.Execute(&doc, struct {
		Settings
		Listen, Metrics, WorkerMetrics, Redis, PaidURL, FreeURL string
	}{s, st.APIAddr, st.APIMetrics, st.WorkerMetrics, st.Redis.URL(), st.Paid.URL, st.Free.URL}); err != nil {
		tb.Fatal(err)
	}
	st.Config = filepath.Join(tb.TempDir(), "leeway.yaml")
	if err := os.WriteFile(st.Config, doc.Bytes(), 0o600); err != nil {
		tb.Fatal(err)
	}
	st.EnvFile = filepath.Join(filepath.Dir(st.Config), "leeway.env")
	if err := os.WriteFile(st.EnvFile, nil, 0o600); err != nil {
		tb.Fatal(err)
	}
	st.Worker = st.Run("worker", nil, "--config", st.Config, "--env-file", st.EnvFile)
	st.API = st.Run("api", nil, "--config", st.Config, "--env-file", st.EnvFile)
	Eventually(tb, 20*time.Second, "API ready", func() error {
		status, body, err := Get(st.Client.Base + "/readyz")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d %s", status, body)
		}
		return err
	})
	st.startPrometheus(s.Rules)
	return st
}

// Build builds the product's programs as they are shipped and returns the folder
// they are in. root is the folder of go.mod.
func Build(tb testing.TB, root string) string {
	tb.Helper()
	bin := tb.TempDir()
	build := exec.CommandContext(tb.Context(), "go", "build", "-o", bin+string(filepath.Separator), "./cmd/api", "./cmd/worker", "./cmd/leeway")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
}

// Eventually polls until cond returns nil, and fails the test if it does not in
// time. It is the only place that sleeps.
func Eventually(tb testing.TB, within time.Duration, what string, cond func() error) {
	tb.Helper()
	deadline := time.Now().Add(within)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%s: not within %v: %v", what, within, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// callTimeout bounds a call: nothing may hang.
const callTimeout = 30 * time.Second

// Get reads a URL.
func Get(url string) (status int, body []byte, err error) {
	return call(http.MethodGet, url, nil)
}

func call(method, url string, body io.Reader) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return 0, nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := (&http.Client{}).Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	return resp.StatusCode, raw, err
}

func freeAddr(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// Process is one running binary.
type Process struct {
	Cmd  *exec.Cmd
	out  capture
	done chan struct{}
}

// capture collects what a process prints.
type capture struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.Write(p)
}

// Output is what the process has printed.
func (p *Process) Output() string {
	p.out.mu.Lock()
	defer p.out.mu.Unlock()
	return p.out.buf.String()
}

// Run starts one of the binaries, or a program of the machine. It is ended with
// the test by SIGTERM, and must then go.
func (st *Stage) Run(name string, env []string, args ...string) *Process {
	st.tb.Helper()
	path := filepath.Join(st.Bin, name)
	if _, err := os.Stat(path); err != nil {
		path = name
	}
	p := &Process{Cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.Cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + st.tb.TempDir()}, env...)
	p.Cmd.Stdout, p.Cmd.Stderr = &p.out, &p.out
	p.Cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.Cmd.Start(); err != nil {
		st.tb.Fatalf("%s: %v", name, err)
	}
	go func() {
		_ = p.Cmd.Wait() // the state says it
		close(p.done)
	}()
	st.tb.Cleanup(func() {
		p.Stop(st.tb)
		if st.tb.Failed() {
			out := p.Output()
			st.tb.Logf("%s printed (its end):\n%s", name, out[max(0, len(out)-4000):])
		}
	})
	return p
}

// stopWithin is how long a process may take to end.
const stopWithin = 40 * time.Second

// Stop ends a process by SIGTERM and waits for it.
func (p *Process) Stop(tb testing.TB) {
	tb.Helper()
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(stopWithin):
		tb.Errorf("%s did not end in %v", p.Cmd.Path, stopWithin)
		_ = p.Cmd.Process.Kill()
		<-p.done
	}
}

// Lab is a lab backend.
type Lab struct {
	tb testing.TB
	// URL is its base URL, Control its control endpoint.
	URL, Control string
}

var labLine = regexp.MustCompile(`on (http://\S+/v1), control on (http://\S+/control)`)

func (st *Stage) startLab(model string, ms, slots int) *Lab {
	st.tb.Helper()
	p := st.Run("leeway", nil, "lab", "--addr", "127.0.0.1:0", "--model", model,
		"--profile", fmt.Sprintf("fixed:%dms", ms), "--slots", fmt.Sprint(slots))
	l := &Lab{tb: st.tb}
	Eventually(st.tb, 20*time.Second, model+" listens", func() error {
		m := labLine.FindStringSubmatch(p.Output())
		if m == nil {
			return errors.New("no addresses printed")
		}
		l.URL, l.Control = m[1], m[2]
		return nil
	})
	return l
}

// Fault makes every request meet the fault; an empty name is health.
func (l *Lab) Fault(name string) {
	l.tb.Helper()
	method, body := http.MethodDelete, ""
	if name != "" {
		method, body = http.MethodPut, fmt.Sprintf(`{"name":%q}`, name)
	}
	l.control(method, "/fault", body)
}

// Pace changes the time to the first byte of requests from now on.
func (l *Lab) Pace(ms int) {
	l.tb.Helper()
	l.control(http.MethodPut, "/profile", fmt.Sprintf(`{"profile":"fixed:%dms"}`, ms))
}

func (l *Lab) control(method, path, body string) {
	l.tb.Helper()
	status, raw, err := call(method, l.Control+path, strings.NewReader(body))
	if err != nil || status != http.StatusOK {
		l.tb.Fatalf("lab: %s %s: %d %s %v", method, path, status, raw, err)
	}
}

// Flood submits a job every gap until stop is called, which returns how many
// were offered. producer names the n-th job's producer.
func (st *Stage) Flood(gap time.Duration, producer func(n int) string) (stop func() int) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	n := 0
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(gap)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			n++
			job := &client.Job{Text: "A refusal costs milliseconds. A late answer costs a generation that nobody reads.", Producer: producer(n), DeadlineMS: st.jobMS}
			wg.Go(func() {
				// A refusal is an answer too; what became of the job shows in
				// the metrics.
				_, _ = st.Client.Submit(ctx, job)
			})
		}
	}()
	var once sync.Once
	stop = func() int {
		once.Do(cancel)
		<-ended
		wg.Wait()
		return n
	}
	st.tb.Cleanup(func() { stop() })
	return stop
}

const prometheusConfig = `
global: {scrape_interval: 1s, evaluation_interval: 1s, external_labels: {runbooks: "http://localhost:9090/runbooks"}}
rule_files: [rules.yaml]
scrape_configs:
  - {job_name: leeway-api, static_configs: [{targets: [%q]}]}
  - {job_name: leeway-worker, static_configs: [{targets: [%q]}]}
`

func (st *Stage) startPrometheus(rules []byte) {
	st.tb.Helper()
	dir := st.tb.TempDir()
	if rules == nil {
		rules = []byte("groups: []\n")
	}
	for name, raw := range map[string][]byte{
		"prometheus.yaml": fmt.Appendf(nil, prometheusConfig, st.APIMetrics, st.WorkerMetrics),
		"rules.yaml":      rules,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o600); err != nil {
			st.tb.Fatal(err)
		}
	}
	st.Prometheus = freeAddr(st.tb)
	st.Run("prometheus", nil, "--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+st.Prometheus, "--log.level=warn")
	Eventually(st.tb, 30*time.Second, "Prometheus ready", func() error {
		status, body, err := Get("http://" + st.Prometheus + "/-/ready")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d %s", status, body)
		}
		return err
	})
}

// Ask runs a query over a range of time, a value a second, and returns every
// finite value by series.
func (st *Stage) Ask(expr string, from, to time.Time) (map[string][]float64, error) {
	u := "http://" + st.Prometheus + "/api/v1/query_range?" + values(map[string]string{
		"query": expr, "start": stamp(from), "end": stamp(to), "step": "1",
	})
	status, raw, err := Get(u)
	if err != nil {
		return nil, err
	}
	var a struct {
		Error string `json:"error"`
		Data  struct {
			Result []struct {
				Metric map[string]string    `json:"metric"`
				Values [][2]json.RawMessage `json:"values"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal(raw, &a); err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("%s: %d %s %w", expr, status, a.Error, err)
	}
	out := map[string][]float64{}
	for _, r := range a.Data.Result {
		key := fmt.Sprint(r.Metric)
		for _, v := range r.Values {
			if f, ok := finite(v[1]); ok {
				out[key] = append(out[key], f)
			}
		}
	}
	return out, nil
}
