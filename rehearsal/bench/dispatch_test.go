//go:build bench

package bench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker/archive"
	"leeway/broker/config"
	"leeway/broker/ledger"
	"leeway/broker/store/storetest"
	"leeway/cmd/app"
	"leeway/rehearsal/pgtest"
)

// answerer is a backend that answers at once or after a while, and knows when
// it was called and when it had answered.
type answerer struct {
	hold   time.Duration
	called chan time.Time
	ended  chan time.Time
	busy   atomic.Int64
}

const events = `data: {"choices":[{"index":0,"delta":{"content":"A summary of it."}}]}

data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: {"choices":[],"usage":{"prompt_tokens":400,"completion_tokens":5,"total_tokens":405}}

data: [DONE]

`

func (a *answerer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	called := time.Now()
	a.busy.Add(1)
	_, _ = io.Copy(io.Discard, r.Body)
	time.Sleep(a.hold)
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, events)
	a.busy.Add(-1)
	a.called <- called
	a.ended <- time.Now()
}

// calls counts the commands a client sends.
type calls struct{ n atomic.Int64 }

func (c *calls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *calls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c *calls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmds)
	}
}

// newWorker runs a worker on the gate's Redis whose backend answers after hold.
func newWorker(t *testing.T, g *gate, slots int, hold time.Duration) (*answerer, *calls) {
	a := &answerer{hold: hold, called: make(chan time.Time, 1<<16), ended: make(chan time.Time, 1<<16)}
	return a, newWorkerFor(t, g, slots, a)
}

// newWorkerFor runs a worker whose backend is that handler.
func newWorkerFor(t *testing.T, g *gate, slots int, backend http.Handler, change ...func(*config.Config)) *calls {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	srv := &http.Server{Handler: backend}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	p95 := int64(g.belief.FirstByte.P95MS)
	cfg := config.Default()
	cfg.Redis.Prefix, cfg.Redis.TimeoutMS = prefix, 5000
	cfg.WorkerMetricsListen = "127.0.0.1:0"
	cfg.Pools.Paid = config.Pool{Limit: slots, FirstByteP95MS: p95, HoldP95MS: p95, Backends: []config.Backend{{
		Name: "b", URL: "http://" + l.Addr().String() + "/v1", Model: "m",
		Price: config.Price{Currency: "USD", InputMicroPerMTok: 1, OutputMicroPerMTok: 1},
	}}}
	cfg.Pools.Free.Limit = 0
	cfg.Classes = config.Classes{"summary": {Prefer: config.PaidOnly}}
	for _, f := range change {
		f(cfg)
	}
	must(t, cfg.Complete())
	rdb, err := storetest.Client(g.redis.URL(), 5*time.Second)
	must(t, err)
	t.Cleanup(func() { _ = rdb.Close() })
	counted := &calls{}
	rdb.AddHook(counted)
	w, err := app.StartWorker(app.Options{Config: cfg, Log: app.Logger(io.Discard, slog.LevelInfo), Redis: rdb})
	must(t, err)
	t.Cleanup(func() { must(t, w.Stop(context.Background())) })
	time.Sleep(200 * time.Millisecond) // its slots are seen
	return counted
}

// dispatch is the time from a submission to an idle pool until the backend is
// called: gate, ticket, polling, claim and spend row included.
func dispatch(t *testing.T, r *Report) {
	g := newGate(t, 0, 100)
	a, _ := newWorker(t, g, 4, 0)
	var took []float64
	for range 40 * *rounds {
		began := time.Now()
		_, err := g.submit(context.Background(), time.Minute, true)
		must(t, err)
		took = append(took, (<-a.called).Sub(began).Seconds()*1000)
		<-a.ended
		time.Sleep(time.Duration(20+rand.IntN(20)) * time.Millisecond)
	}
	half := len(took) / 2
	of := func(q float64) []float64 { return []float64{Quantile(took[:half], q), Quantile(took[half:], q)} }
	r.Measures = append(r.Measures,
		note(Values("idle dispatch, p50", "ms", of(0.5)), "from the call of submit to the backend's handler; halves of the run"),
		note(Values("idle dispatch, p99", "ms", of(0.99)), "the same"))
}

// workerOverhead is what a busy slot spends between the end of one answer and
// the call for the next: outcome, ledger rows, log line, claim, spend row.
func workerOverhead(t *testing.T, r *Report) {
	g := newGate(t, 0, 100)
	a, counted := newWorker(t, g, 1, 0)
	var p50, p99, trips []float64
	for range *rounds {
		const jobs = 60
		before := counted.n.Load()
		for range jobs {
			_, err := g.submit(context.Background(), time.Hour, true)
			must(t, err)
		}
		var gaps []float64
		var last time.Time
		for range jobs {
			called, ended := <-a.called, <-a.ended
			if !last.IsZero() {
				gaps = append(gaps, called.Sub(last).Seconds()*1000)
			}
			last = ended
		}
		p50, p99 = append(p50, Quantile(gaps, 0.5)), append(p99, Quantile(gaps, 0.99))
		trips = append(trips, float64(counted.n.Load()-before)/jobs)
	}
	r.Measures = append(r.Measures,
		note(Values("worker's overhead a job on a busy slot, p50", "ms", p50), "from the end of an answer to the next call"),
		note(Values("worker's overhead a job on a busy slot, p99", "ms", p99), "the same"),
		note(Values("worker's commands to Redis a job on a busy slot", "", trips), "asynq's, and the process's loops, included"))
}

// widePool is how full a pool of 512 slots is while jobs wait.
func widePool(t *testing.T, r *Report) {
	const slots, jobs, hold = 512, 2048, 2 * time.Second
	g := newGate(t, 0, hold.Milliseconds())
	a, _ := newWorker(t, g, slots, hold)
	var wg sync.WaitGroup
	began := time.Now()
	for range 32 {
		wg.Go(func() {
			for range jobs / 32 {
				if _, err := g.submit(context.Background(), time.Hour, true); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var full time.Duration
	for a.busy.Load() < slots {
		if time.Since(began) > 30*time.Second {
			t.Fatalf("%d of %d slots are taken", a.busy.Load(), slots)
		}
		time.Sleep(time.Millisecond)
	}
	full = time.Since(began)
	// From here on jobs wait for longer than two holds: no slot may be idle.
	var busy []float64
	for end := time.Now().Add(2 * hold); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if len(a.ended) >= jobs-slots {
			break
		}
		busy = append(busy, float64(a.busy.Load())/slots)
	}
	var sum float64
	for _, b := range busy {
		sum += b
	}
	m := Values("512 slots: share taken while jobs wait", "", []float64{sum / float64(len(busy))})
	m.Spread = spread(busy)
	r.Measures = append(r.Measures, note(m, fmt.Sprintf("holds of %v; the first time full after %v; spread over samples", hold, full.Round(time.Millisecond))))
}

// archiveRate is how fast rows go from Redis into PostgreSQL, against how fast
// they can be written to Redis at all.
func archiveRate(t *testing.T, r *Report) {
	const rows, chunk = 20_000, 1000
	g := newGate(t, 1, 10)
	pg := pgtest.Start(t)
	ctx := context.Background()
	a, err := archive.New(archive.Options{
		URL: pg.URL(), Deployment: prefix, Store: g.store, Log: slog.New(slog.DiscardHandler), BatchRows: 5000, Every: 10 * time.Millisecond,
	})
	must(t, err)
	runCtx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { _ = a.Run(runCtx) })
	defer func() { cancel(); wg.Wait() }()
	lag := func() int64 {
		books, err := g.store.Overview(ctx)
		must(t, err)
		if books.Archive == nil {
			return rows
		}
		return books.Archive.LagRows[ledger.Spend]
	}
	for lag() > 0 {
		time.Sleep(time.Millisecond)
	}
	var rates, bases []float64
	n := 0
	for range *rounds {
		began := time.Now()
		for range rows / chunk {
			_, err := g.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
				for range chunk {
					n++
					p.XAdd(ctx, &redis.XAddArgs{Stream: "{" + prefix + "}:ledger:spend", Values: []string{"row", fmt.Sprintf(
						`{"job_id":"01981f2e-7b1c-7c3a-9d5e-%012d","attempt":1,"path":"paid","class":"summary","backend":"b","currency":"USD","price_version":"1",`+
							`"opened_at_ms":1764460800000,"priced":true,"max_cost_micro":5000,"settled_at_ms":1764460801200,"input_tokens":1812,`+
							`"output_tokens":193,"cost_micro":7,"known":"reported","result":"whole"}`, n)}})
				}
				p.HIncrBy(ctx, "{"+prefix+"}:totals", "attempts:paid", chunk)
				return nil
			})
			must(t, err)
		}
		written := time.Now()
		bases = append(bases, rows/written.Sub(began).Seconds())
		for lag() > 0 {
			time.Sleep(time.Millisecond)
		}
		rates = append(rates, rows/time.Since(began).Seconds())
	}
	r.Measures = append(r.Measures, note(Ratios("rows written and archived / rows written", rates, bases), "20,000 spend rows, batches of 5,000"))
}
