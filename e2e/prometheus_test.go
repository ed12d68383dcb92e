//go:build server

package e2e_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"leeway/broker/client"
	"leeway/rehearsal/proctest"
)

// watched is a deployment as on-call meets it: the binaries as they are shipped,
// under load, with a Prometheus that scrapes them.
type watched struct {
	*stack

	bin                       string // the folder of the binaries
	apiMetrics, workerMetrics string // host:port
	prometheus                string // host:port
}

// watch is run with a Prometheus, which evaluates the rules; none if nil. args
// are further options of API and worker.
func watch(t *testing.T, s settings, rules []byte, args ...string) *watched {
	t.Helper()
	folder, err := shipped()
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{stack: deploy(t, s), bin: filepath.Join(bin, folder)}
	w.faulty, w.args = folder, args
	w.startWorker()
	w.startAPI()
	w.ready()
	w.apiMetrics = w.api.field("listening", "metrics_addr")
	w.workerMetrics = w.workers[0].field("working", "metrics_addr")
	w.startPrometheus(rules)
	return w
}

const prometheusConfig = `
global: {scrape_interval: 500ms, evaluation_interval: 500ms, external_labels: {runbooks: "http://localhost:9090/runbooks"}}
rule_files: [rules.yaml]
scrape_configs:
  - {job_name: leeway-api, static_configs: [{targets: [%q]}]}
  - {job_name: leeway-worker, static_configs: [{targets: [%q]}]}
`

func (w *watched) startPrometheus(rules []byte) {
	w.t.Helper()
	dir := w.t.TempDir()
	if rules == nil {
		rules = []byte("groups: []\n")
	}
	for name, raw := range map[string][]byte{
		"prometheus.yaml": fmt.Appendf(nil, prometheusConfig, w.apiMetrics, w.workerMetrics),
		"rules.yaml":      rules,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	w.prometheus = fmt.Sprintf("127.0.0.1:%d", proctest.FreePort(w.t))
	p := proctest.Start(w.t, proctest.Command(w.t, "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+w.prometheus, "--log.level=warn"))
	w.t.Cleanup(p.Stop)
	proctest.Eventually(w.t, 30*time.Second, "Prometheus ready", func() error {
		r, err := tryCall(http.MethodGet, "http://"+w.prometheus+"/-/ready", "", "")
		if err == nil && r.status != http.StatusOK {
			err = fmt.Errorf("%d %s", r.status, r.body)
		}
		return err
	})
}

// prometheusSays asks Prometheus's API and reads the answer's data.
func prometheusSays[T any](w *watched, path string, query url.Values) (data T, err error) {
	r, err := tryCall(http.MethodGet, "http://"+w.prometheus+path+"?"+query.Encode(), "", "")
	if err != nil {
		return data, err
	}
	answer := struct {
		Error string `json:"error"`
		Data  *T     `json:"data"`
	}{Data: &data}
	if err := json.Unmarshal(r.body, &answer); err != nil || r.status != http.StatusOK {
		return data, fmt.Errorf("%s %s: %d %s %w", path, query, r.status, answer.Error, err)
	}
	return data, nil
}

// ask runs a query over a range of time, a value a second, and returns every
// finite value by series.
func (w *watched) ask(expr string, from, to time.Time) (map[string][]float64, error) {
	stamp := func(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }
	type series struct {
		Metric map[string]string `json:"metric"`
		Values [][2]any          `json:"values"` // time, and the value as a text
	}
	data, err := prometheusSays[struct {
		Result []series `json:"result"`
	}](w, "/api/v1/query_range", url.Values{"query": {expr}, "start": {stamp(from)}, "end": {stamp(to)}, "step": {"1"}})
	out := map[string][]float64{}
	for _, r := range data.Result {
		key := fmt.Sprint(r.Metric)
		for _, v := range r.Values {
			if f, err := strconv.ParseFloat(v[1].(string), 64); err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
				out[key] = append(out[key], f)
			}
		}
	}
	return out, err
}

// alert is an alert as Prometheus has it.
type alert struct {
	State       string            `json:"state"` // pending or firing
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// alerts are those that are pending or firing, by name.
func (w *watched) alerts() (map[string]alert, error) {
	data, err := prometheusSays[struct {
		Alerts []alert `json:"alerts"`
	}](w, "/api/v1/alerts", nil)
	out := map[string]alert{}
	for _, a := range data.Alerts {
		out[a.Labels["alertname"]] = a
	}
	return out, err
}

// flood submits a job every gap until the test ends. deadlineMS is the jobs',
// and producer names the n-th job's producer.
func (w *watched) flood(gap time.Duration, deadlineMS int64, producer func(n int) string) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var wg sync.WaitGroup
		defer wg.Wait()
		tick := time.NewTicker(gap)
		defer tick.Stop()
		for n := 1; ; n++ {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			job := &client.Job{Text: text, Producer: producer(n), DeadlineMS: deadlineMS}
			wg.Go(func() {
				// A refusal is an answer too; what became of the job shows in
				// the metrics.
				_, _ = w.client.Submit(w.t.Context(), job)
			})
		}
	}()
	w.t.Cleanup(func() {
		close(stop)
		<-ended
	})
}
