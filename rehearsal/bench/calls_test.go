//go:build bench

package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"leeway/rehearsal/proctest"
)

// callsEnv names a backend that this program, started again, is to call with
// net/http alone.
const callsEnv = "LEEWAY_BENCH_CALLS"

func TestMain(m *testing.M) {
	if url := os.Getenv(callsEnv); url != "" {
		fmt.Print(bareCalls(url))
		return
	}
	os.Exit(m.Run())
}

const callers = 128

// bareCalls calls a backend once for each job of a round, reads the streams it
// answers with, and returns the processor time of a call in microseconds.
func bareCalls(url string) float64 {
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}
	body := fmt.Sprintf(`{"model":"m","stream":true,"messages":[{"role":"user","content":%q}]}`, text)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range lifeJobs / callers {
				res, err := c.Post(url, "application/json", strings.NewReader(body))
				if err != nil {
					panic(err)
				}
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
		})
	}
	wg.Wait()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1000 / (lifeJobs / callers * callers)
}

// answer is a backend that answers at once.
func answer(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, events)
}

// workerCPU is what a worker as shipped, a process of its own, takes of the
// processor for a job, beside a process that makes the same calls with net/http
// alone.
func workerCPU(t *testing.T, r *Report) {
	folder, err := proctest.Build("bin", nil, "worker")
	must(t, err)
	g := newGate(t, 0, 100)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(answer)}
	go func() { _ = srv.Serve(l) }()
	defer func() { _ = srv.Close() }()
	w := startWorker(t, folder, configured(t, g.redis.URL(), l.Addr().String(), callers))
	time.Sleep(time.Second) // its slots are seen
	var jobs, bare []float64
	for ended := int64(0); len(jobs) < *rounds; {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), callsEnv+"=http://"+l.Addr().String()+"/v1/chat/completions")
		out, err := child.Output()
		must(t, err)
		us, err := strconv.ParseFloat(string(out), 64)
		must(t, err)
		bare = append(bare, us)

		before := w.cpuUS()
		g.callers(32, lifeJobs, func() {
			_, err := g.submit(context.Background(), time.Hour, true)
			must(t, err)
		})
		ended += lifeJobs
		g.until(func() bool { return g.usable() >= ended })
		jobs = append(jobs, (w.cpuUS()-before)/lifeJobs)
	}
	m := Ratios("worker's processor time a job / bare net/http call, 128 slots", jobs, bare)
	m.Unit = "us"
	r.Measures = append(r.Measures, note(m, "processes of their own; the call, its stream, and a process's start included"))
}
