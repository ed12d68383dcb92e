//go:build bench

package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"leeway/broker/client"
	"leeway/rehearsal/proctest"
	"leeway/rehearsal/redistest"
)

const (
	inFlight = 10_000
	running  = 1_000 // of them; the others wait
)

// holder is a backend that answers nobody until it is let go.
type holder struct {
	held  atomic.Int64
	letGo chan struct{}
}

func (h *holder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	h.held.Add(1)
	select {
	case <-h.letGo:
	case <-r.Context().Done():
	}
	w.WriteHeader(http.StatusServiceUnavailable)
}

// program is one of Leeway's, as shipped and as a process of its own.
type program struct {
	t       *testing.T
	p       *proctest.Process
	metrics string
	took    time.Duration // from its start until it works
}

func start(t *testing.T, path, config string, says *regexp.Regexp) (*program, []string) {
	began := time.Now()
	p := proctest.Start(t, proctest.Command(t, path, "--config", config))
	found := p.Says(20*time.Second, says)
	return &program{t: t, p: p, metrics: found[1], took: time.Since(began)}, found
}

// configured is the path of a configuration with one paid pool.
func configured(t *testing.T, redis, backend string, slots int) string {
	path := filepath.Join(t.TempDir(), "leeway.yaml")
	must(t, os.WriteFile(path, fmt.Appendf(nil, `
listen: 127.0.0.1:0
metrics_listen: 127.0.0.1:0
worker_metrics_listen: 127.0.0.1:0
redis: {url: %s, prefix: %s}
pools:
  paid:
    limit: %d
    first_byte_p95_ms: 100
    hold_p95_ms: 100
    backends:
      - {name: b, url: "http://%s/v1", model: m, price: {currency: USD, version: bench, input_micro_per_mtok: 1, output_micro_per_mtok: 1}}
  free: {limit: 0}
classes:
  summary: {deadline_ms: 3600000, prefer: paid-only}
`, redis, prefix, slots, backend), 0o600))
	return path
}

// startWorker starts a worker as shipped.
func startWorker(t *testing.T, folder, config string) *program {
	w, _ := start(t, filepath.Join(folder, "worker"), config, regexp.MustCompile(`"msg":"working".*?"metrics_addr":"([^"]+)"`))
	return w
}

// residentMiB is the memory that the process has.
func (p *program) residentMiB() float64 {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.p.Cmd.Process.Pid))
	must(p.t, err)
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kB, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	must(p.t, err)
	return kB / 1024
}

// cpuUS is the processor time that the process has taken, in microseconds.
func (p *program) cpuUS() float64 {
	p.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.p.Cmd.Process.Pid))
	must(p.t, err)
	_, rest, _ := strings.Cut(string(stat), ") ")
	const tick = 10_000 // us
	var sum float64
	for _, field := range strings.Fields(rest)[11:13] { // utime, stime
		n, err := strconv.ParseFloat(field, 64)
		must(p.t, err)
		sum += n * tick
	}
	return sum
}

func (p *program) goroutines() float64 {
	p.t.Helper()
	res, err := http.Get("http://" + p.metrics + "/metrics")
	must(p.t, err)
	defer func() { _ = res.Body.Close() }()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if n, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			v, err := strconv.ParseFloat(n, 64)
			must(p.t, err)
			return v
		}
	}
	p.t.Fatal("no go_goroutines")
	return 0
}

// startup is what the programs take to start and to be there: time, memory,
// goroutines, and bytes on disk.
func startup(t *testing.T, r *Report) {
	folder, err := proctest.Build("bin", nil, "api", "worker", "leeway")
	must(t, err)
	var worker, api, workerIdle, apiIdle, workerBusy, apiBusy, perJob, apiMore []float64
	for range *rounds {
		b := &holder{letGo: make(chan struct{})}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		srv := &http.Server{Handler: b}
		go func() { _ = srv.Serve(l) }()
		config := configured(t, redistest.Start(t).URL(), l.Addr().String(), running)
		w := startWorker(t, folder, config)
		a, said := start(t, filepath.Join(folder, "api"), config, regexp.MustCompile(`"msg":"listening","addr":"([^"]+)","metrics_addr":"([^"]+)"`))
		began, base := time.Now(), "http://"+said[1]
		a.metrics = said[2]
		proctest.Eventually(t, 20*time.Second, "ready", func() error {
			res, err := http.Get(base + "/readyz")
			if err != nil {
				return err
			}
			_ = res.Body.Close()
			if res.StatusCode != http.StatusOK {
				return errors.New(res.Status)
			}
			return nil
		})
		worker, api = append(worker, w.took.Seconds()*1000), append(api, (a.took+time.Since(began)).Seconds()*1000)
		time.Sleep(2 * time.Second) // what starting took is given back, or is not
		workerIdle, apiIdle = append(workerIdle, w.residentMiB()), append(apiIdle, a.residentMiB())
		workerWas, apiWas := w.goroutines(), a.goroutines()

		c := &client.Client{Base: base, HTTP: &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 32}}}
		var callers sync.WaitGroup
		for range 32 {
			callers.Go(func() {
				for range inFlight / 32 {
					_, err := c.Submit(context.Background(), &client.Job{Text: text})
					must(t, err)
				}
			})
		}
		callers.Wait()
		proctest.Eventually(t, time.Minute, "all slots are taken", func() error {
			if n := b.held.Load(); n != running {
				return fmt.Errorf("%d are", n)
			}
			return nil
		})
		time.Sleep(time.Second)
		workerBusy, apiBusy = append(workerBusy, w.residentMiB()), append(apiBusy, a.residentMiB())
		perJob, apiMore = append(perJob, (w.goroutines()-workerWas)/running), append(apiMore, a.goroutines()-apiWas)
		a.p.Kill()
		w.p.Kill()
		close(b.letGo)
		_ = srv.Close()
	}
	load := fmt.Sprintf("%d jobs of 1.5 KB, %d of them running", inFlight/32*32, running)
	r.Measures = append(r.Measures,
		note(Values("worker: start to working", "ms", worker), "Redis on loopback"),
		note(Values("API: start to ready", "ms", api), "the same; /readyz says 200"),
		Values("worker: resident memory, idle", "MiB", workerIdle),
		note(Values("worker: resident memory, 10,000 jobs in flight", "MiB", workerBusy), load),
		Values("API: resident memory, idle", "MiB", apiIdle),
		note(Values("API: resident memory, 10,000 jobs in flight", "MiB", apiBusy), load),
		note(Values("worker: goroutines a running job", "", perJob), "its slot's and its connection's to the backend"),
		note(Values("API: goroutines for 10,000 jobs in flight", "", apiMore), "the callers' connections"))
	for _, name := range []string{"api", "worker", "leeway"} {
		info, err := os.Stat(filepath.Join(folder, name))
		must(t, err)
		r.Measures = append(r.Measures, Values("binary "+name, "MiB", []float64{float64(info.Size()) / (1 << 20)}))
	}
}
