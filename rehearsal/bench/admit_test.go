//go:build bench

package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/textproto"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4" //nolint:depguard // the yardstick: what echo alone serves
	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/broker/httpapi"
	"leeway/cmd/app"
	"leeway/slackgate"
)

// longDeadline is one that a pool with short holds can keep for millions.
const longDeadline = 12 * time.Hour

// waitingJobs are the waiting jobs of a pool by urgency, in ms from now.
type waitingJobs struct{ n, span int64 }

func (w waitingJobs) Before(atMS int64) int64 {
	if atMS >= w.span {
		return w.n
	}
	return max(0, atMS) * w.n / w.span
}

// decision is the rule alone: two pools of 64 busy workers.
func decision(t *testing.T, r *Report) {
	const now = 1_700_000_000_000
	policy := slackgate.Policy{FreeQueueAgeCutMS: slackgate.Unbounded}
	belief := slackgate.Belief{FirstByte: slackgate.Lognormal(1200, 0.5), Hold: slackgate.Lognormal(2400, 0.5)}
	rng := rand.New(rand.NewPCG(7, 7))
	plan := slackgate.LadderInput{Capacity: 64, Belief: belief, ReserveMS: 2000}
	for range 64 {
		plan.RunningAgesMS = append(plan.RunningAgesMS, rng.Int64N(1500))
	}
	var ladder slackgate.Ladder
	ladder.Build(&plan)
	state := func(waiting, slack int64) (*slackgate.Snapshot, slackgate.Job) {
		j := slackgate.Job{DeadlineAtMS: now + slack + 2000, ReserveMS: 2000, Prefer: [2]slackgate.Path{slackgate.Paid, slackgate.Free}}
		w := waitingJobs{waiting, 600_000}
		var s slackgate.Snapshot
		for _, path := range slackgate.Paths {
			s.Pools[path] = slackgate.PoolState{
				Limit: 64, Capacity: 64, Waiting: int(waiting), Running: 64, FirstByteP95MS: 1200, Ladder: &ladder, Ahead: int(w.Before(slack + 1)),
			}
		}
		for _, b := range slackgate.Bounds(&s, j, policy, slack) {
			s.Pools[b.Path].Break = b.Check(64, w)
		}
		return &s, j
	}
	time1 := func(waiting, slack int64, want slackgate.Path) (ns float64) {
		s, j := state(waiting, slack)
		var res slackgate.Result
		b := testing.Benchmark(func(b *testing.B) { //nolint:thelper // the benchmark itself
			for b.Loop() {
				res = slackgate.Decide(s, j, policy, now)
			}
		})
		if res.Path != want {
			t.Errorf("%d waiting: %+v", waiting, res)
		}
		if a := testing.AllocsPerRun(100, func() { res = slackgate.Decide(s, j, policy, now) }); a != 0 {
			t.Errorf("%v allocations a decision", a)
		}
		return float64(b.T.Nanoseconds()) / float64(b.N)
	}
	var admitted, refused, small, deep, flat, build []float64
	for range *rounds {
		admitted = append(admitted, time1(0, 13_000, slackgate.Paid))
		small = append(small, 1e9/time1(0, 1300, slackgate.Reject))
		ns := time1(1_000_000, 13_000, slackgate.Reject)
		refused, deep = append(refused, ns), append(deep, 1e9/ns)
		flat = append(flat, 1e9/time1(10_000, 13_000, slackgate.Paid))
		b := testing.Benchmark(func(b *testing.B) { //nolint:thelper // the benchmark itself
			for b.Loop() {
				ladder.Build(&plan)
			}
		})
		build = append(build, float64(b.T.Nanoseconds())/float64(b.N)/1000)
	}
	perSecond := func(ns []float64) []float64 {
		out := make([]float64, len(ns))
		for i := range ns {
			out[i] = 1e9 / ns[i]
		}
		return out
	}
	r.Measures = append(r.Measures,
		note(Values("decision, admitted", "ns", admitted), "64 workers a pool, 0 allocations"),
		note(Values("decision, refused by both pools", "ns", refused), "1,000,000 waiting, 0 allocations"),
		note(cost("decision cost, admitted, at 10,000 waiting / at 0", flat, perSecond(admitted)), "of the rule alone"),
		note(cost("decision cost, refused, at 1,000,000 waiting / at 0", deep, small), "of the rule alone"),
		note(Values("ladder of 64 busy workers", "us", build), "built every 50 ms"),
	)
}

// cost is how many times as much something costs as its base.
func cost(name string, rates, bases []float64) Measure {
	m := Ratios(name, bases, rates)
	m.Value, m.Base = m.Base, m.Value
	return m
}

func note(m Measure, text string) Measure { m.Note = text; return m }

// gatedAdmissions: decision, record, prompt and ticket against a bare enqueue
// of a task with the same prompt in it.
func gatedAdmissions(t *testing.T, r *Report) {
	g := newGate(t, 1000, 10)
	for _, callers := range []int{1, 16, 128} {
		r.Measures = append(r.Measures, g.turns(fmt.Sprintf("gated admission / bare enqueue, %d callers", callers),
			func() float64 { return rate(t, callers, g.enqueue) },
			func() float64 {
				return rate(t, callers, func(ctx context.Context, _ int) (int, error) { return g.submit(ctx, longDeadline, true) })
			}))
	}
}

// rejects: a pool that is full refuses, jobs like any others and jobs with keys,
// for each of which the store is asked.
func rejects(t *testing.T, r *Report) {
	g := newGate(t, 2, 1200)
	for _, callers := range []int{16, 128} {
		for name, submit := range map[string]func(context.Context, int) (int, error){
			"reject":                     func(ctx context.Context, _ int) (int, error) { return g.submit(ctx, 30*time.Second, false) },
			"reject of a job with a key": func(ctx context.Context, _ int) (int, error) { return g.asked(ctx, 30*time.Second) },
		} {
			r.Measures = append(r.Measures, g.turns(fmt.Sprintf("%s / bare enqueue, %d callers", name, callers),
				func() float64 { return rate(t, callers, g.enqueue) },
				func() float64 { g.fill(time.Minute); return rate(t, callers, submit) }))
		}
	}
}

// asked offers a job with a key, which must be refused.
func (g *gate) asked(ctx context.Context, deadline time.Duration) (int, error) {
	j := job(deadline)
	j.Key = broker.IdempotencyKey{Value: j.ID, BodyHash: "0123456789abcdef0123456789abcdef"}
	v, err := g.adm.Submit(ctx, j)
	if err == nil && v.Admitted() {
		g.t.Errorf("verdict %+v", v)
	}
	return 1, err
}

// backlog is what one decision through the store costs with so many waiting,
// from the order's own index.
func backlog(t *testing.T, r *Report) {
	g := newGate(t, 2, 1200)
	one := func() float64 {
		return rate(t, 1, func(ctx context.Context, _ int) (int, error) { return g.asked(ctx, 3*time.Second) })
	}
	for _, n := range []int{10_000, 1_000_000} {
		var deep, bases []Taken
		for range *rounds {
			g.clean()
			bases = append(bases, g.take(one))
			g.seed(n)
			g.settle()
			deep = append(deep, g.take(one))
		}
		r.Measures = append(r.Measures, note(g.told(Costs(fmt.Sprintf("cost of a reject through the store at %d waiting / at 0", n), deep, bases)), "one caller"))
	}
}

// settle waits until Redis has written its file anew, which so much at once has
// it do beside whatever is measured.
func (g *gate) settle() {
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		info, err := g.servers[0].Info(context.Background(), "persistence").Result()
		must(g.t, err)
		if strings.Contains(info, "aof_rewrite_in_progress:0") && strings.Contains(info, "aof_rewrite_scheduled:0") {
			return
		}
		if time.Now().After(end) {
			g.t.Fatal("Redis does not end rewriting its file")
		}
	}
}

// seed puts waiting jobs into the paid pool's order: what a decision reads, and
// nothing else of them.
func (g *gate) seed(n int) {
	const piece = 10_000
	script := redis.NewScript(`
local t = redis.call('TIME')[1] * 1000
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local id = string.format('%016.0f', i)
  redis.call('ZADD', KEYS[1] .. ':waiting:paid', string.format('%.0f', t + 10000 + i), id .. ':summary:' .. id)
  redis.call('ZADD', KEYS[1] .. ':age:paid', string.format('%.0f', t + i / 1000), id)
  redis.call('ZADD', KEYS[1] .. ':age:paid:summary', string.format('%.0f', t + i / 1000), id)
end`)
	for i := 0; i < n; i += piece {
		err := script.Run(context.Background(), g.servers[0], []string{"{" + prefix + "}"}, i, min(i+piece, n)-1).Err()
		if err != nil && !errors.Is(err, redis.Nil) {
			g.t.Fatal(err)
		}
	}
}

// memory is what Redis and this process hold for each waiting job beyond its
// prompt.
func memory(t *testing.T, r *Report) {
	const jobs, callers = 20_000, 64
	g := newGate(t, 1000, 10)
	used := func() float64 {
		info, err := g.rdb.Info(context.Background(), "memory").Result()
		must(t, err)
		_, rest, _ := strings.Cut(info, "used_memory:")
		n, _, _ := strings.Cut(rest, "\r")
		v, err := strconv.ParseFloat(n, 64)
		must(t, err)
		return v
	}
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	redisBefore, heapBefore := used(), heap()
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range jobs / callers {
				if _, err := g.submit(context.Background(), longDeadline, true); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	n := float64(jobs / callers * callers)
	r.Measures = append(r.Measures,
		note(Values("Redis bytes a waiting job, beyond its prompt", "B", []float64{(used()-redisBefore)/n - textBytes}), "ticket included"),
		Values("process bytes a waiting job", "B", []float64{max(0, (heap()-heapBefore)/n)}))
}

// api is a real admission API with workers that claim nothing.
type api struct {
	*gate
	addr string
}

func newAPI(t *testing.T, slots int, holdMS int64) *api {
	g := newGate(t, slots, holdMS)
	cfg := config.Default()
	cfg.Redis.URL, cfg.Redis.Prefix, cfg.Redis.TimeoutMS = g.redis.URL(), prefix, 5000
	cfg.Listen, cfg.MetricsListen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Pools.Paid.Limit, cfg.Pools.Paid.FirstByteP95MS, cfg.Pools.Paid.HoldP95MS = 4096, holdMS, holdMS
	cfg.Pools.Free.Limit, cfg.Pools.Free.FirstByteP95MS, cfg.Pools.Free.HoldP95MS = 4096, holdMS, holdMS
	must(t, cfg.Complete())
	a, err := app.StartAPI(app.Options{Config: cfg, Log: app.Logger(io.Discard, slog.LevelInfo)})
	must(t, err)
	t.Cleanup(func() { must(t, a.Stop(context.Background())) })
	return &api{gate: g, addr: a.Addr()}
}

// serveEcho is echo alone: it reads the body and answers as many bytes as a
// verdict has.
func serveEcho(t *testing.T, answer int) (addr string) {
	e := echo.New()
	body := []byte(`{"x":"` + strings.Repeat("x", answer-8) + `"}`)
	e.POST("/v1/jobs", func(c echo.Context) error {
		if _, err := io.ReadAll(c.Request().Body); err != nil {
			return err
		}
		return c.JSONBlob(http.StatusAccepted, body)
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	srv := httpapi.HTTP(e)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return l.Addr().String()
}

// conn is a keep-alive connection that costs next to nothing on the client's
// side.
type conn struct {
	net.Conn
	r   *textproto.Reader
	buf []byte
}

func dial(t *testing.T, addr string) *conn {
	c, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return &conn{Conn: c, r: textproto.NewReader(bufio.NewReader(c))}
}

// post sends a whole request and returns the answer's status and body length.
func (c *conn) post(request []byte) (status, length int, err error) {
	if _, err := c.Write(request); err != nil {
		return 0, 0, err
	}
	line, err := c.r.ReadLineBytes()
	if err != nil || len(line) < 12 {
		return 0, 0, fmt.Errorf("status line %q: %w", line, err)
	}
	status, _ = strconv.Atoi(string(line[9:12]))
	for {
		line, err := c.r.ReadLineBytes()
		if err != nil {
			return 0, 0, err
		}
		if len(line) == 0 {
			break
		}
		if n, ok := strings.CutPrefix(string(line), "Content-Length: "); ok {
			length, _ = strconv.Atoi(n)
		}
	}
	if cap(c.buf) < length {
		c.buf = make([]byte, length)
	}
	_, err = io.ReadFull(c.r.R, c.buf[:length])
	return status, length, err
}

func request(path, media, body string) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", path, media, len(body), body)
}

func submission(deadline time.Duration) string {
	return fmt.Sprintf(`{"text":%q,"deadline_ms":%d}`, text, deadline.Milliseconds())
}

// httpAdmissions: one keep-alive connection a caller, against echo alone.
func httpAdmissions(t *testing.T, r *Report) {
	a := newAPI(t, 1000, 10)
	req := request("/v1/jobs", "application/json", submission(longDeadline))
	status, answer, err := dial(t, a.addr).post(req)
	must(t, err)
	if status != http.StatusAccepted {
		t.Fatalf("the API answers %d", status)
	}
	bare := serveEcho(t, answer)
	for _, callers := range []int{16, 128} {
		r.Measures = append(r.Measures, a.turns(fmt.Sprintf("admission through HTTP / echo alone, %d callers", callers),
			posts(t, bare, callers, req, http.StatusAccepted), posts(t, a.addr, callers, req, http.StatusAccepted)))
	}
}

// posts is one side of a ratio: so many callers send the request, one keep-alive
// connection each.
func posts(t *testing.T, addr string, callers int, req []byte, want int) func() float64 {
	conns := make([]*conn, callers)
	for i := range conns {
		conns[i] = dial(t, addr)
	}
	return func() float64 {
		return rate(t, callers, func(_ context.Context, i int) (int, error) {
			status, _, err := conns[i].post(req)
			if err == nil && status != want {
				err = fmt.Errorf("status %d", status)
			}
			return 1, err
		})
	}
}

// batchAdmissions: NDJSON, a hundred lines a request, per job.
func batchAdmissions(t *testing.T, r *Report) {
	const callers, lines = 16, 100
	a := newAPI(t, 1000, 10)
	body := strings.Repeat(submission(longDeadline)+"\n", lines)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}
	defer client.CloseIdleConnections()
	r.Measures = append(r.Measures, a.turns("batch admission, per job / bare enqueue, 16 callers",
		func() float64 { return rate(t, callers, a.enqueue) },
		func() float64 {
			return rate(t, callers, func(context.Context, int) (int, error) {
				resp, err := client.Post("http://"+a.addr+"/v1/jobs/batch", "application/x-ndjson", strings.NewReader(body))
				if err != nil {
					return 0, err
				}
				defer func() { _ = resp.Body.Close() }()
				answer, err := io.ReadAll(resp.Body)
				if n := strings.Count(string(answer), `"status":202`); err == nil && n != lines {
					err = fmt.Errorf("%d of %d admitted", n, lines)
				}
				return lines, err
			})
		}))
}

// flood: rejects through HTTP at 5,000 a second, timed from when each was due
// to be sent.
func flood(t *testing.T, r *Report) {
	const perSecond, conns = 5000, 64
	a := newAPI(t, 2, 1200)
	a.fill(time.Minute)
	req := request("/v1/jobs", "application/json", submission(30*time.Second))
	_, answer, err := dial(t, a.addr).post(req)
	must(t, err)
	refuse := posts(t, a.addr, 128, req, http.StatusTooManyRequests)
	r.Measures = append(r.Measures, a.turns("reject through HTTP / echo alone, 128 callers",
		posts(t, serveEcho(t, answer), 128, req, http.StatusAccepted), func() float64 { a.fill(time.Minute); return refuse() }))
	bare := serveEcho(t, answer)
	var p50s, p99s, bare99s []float64
	for range *rounds {
		bare99s = append(bare99s, Quantile(offered(t, bare, req, perSecond, conns, http.StatusAccepted), 0.99))
		a.clean()
		a.fill(time.Minute)
		took := offered(t, a.addr, req, perSecond, conns, http.StatusTooManyRequests)
		p50s, p99s = append(p50s, Quantile(took, 0.5)), append(p99s, Quantile(took, 0.99))
	}
	r.Measures = append(r.Measures,
		note(Values("reject under flood, p50", "ms", p50s), "5,000/s offered through HTTP, from when each was due"),
		note(Values("reject under flood, p99", "ms", p99s), "the same"),
		note(Values("echo alone under the same load, p99", "ms", bare99s), "in turns with it: what load and machine take"))
}

// offered sends requests at that rate over that many connections and returns
// how long each took, in ms, from when it was due to be sent.
func offered(t *testing.T, addr string, req []byte, perSecond, conns, want int) []float64 {
	took := make([][]float64, conns)
	began := time.Now().Add(50 * time.Millisecond)
	var wg sync.WaitGroup
	for i := range conns {
		c := dial(t, addr)
		wg.Go(func() {
			for n := i; ; n += conns {
				due := began.Add(time.Duration(n) * time.Second / time.Duration(perSecond))
				if due.After(began.Add(3 * *slice)) {
					return
				}
				time.Sleep(time.Until(due))
				status, _, err := c.post(req)
				if err != nil || status != want {
					t.Errorf("status %d: %v", status, err)
					return
				}
				took[i] = append(took[i], time.Since(due).Seconds()*1000)
			}
		})
	}
	wg.Wait()
	return slices.Concat(took...)
}
