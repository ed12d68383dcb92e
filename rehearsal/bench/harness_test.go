//go:build bench

package bench

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/broker/admission"
	flags "leeway/broker/flag"
	"leeway/broker/store"
	"leeway/broker/store/storetest"
	"leeway/broker/ticket"
	"leeway/rehearsal/redistest"
	"leeway/slackgate"
)

var (
	jsonFile   = flag.String("report", "", "write the report as JSON to this file")
	floorsFile = flag.String("floors", "", "hold the report against this file")
	rounds     = flag.Int("rounds", 5, "rounds of each ratio")
	slice      = flag.Duration("slice", 600*time.Millisecond, "how long each side of a round runs")
)

// textBytes is the size of the prompt, and of the payload of a bare enqueue.
const textBytes = 1500

var text = strings.Repeat("All work and no play. ", textBytes/22+1)[:textBytes]

// measures run in the order of this table; -run picks some of them.
var measures = []struct {
	name string
	run  func(t *testing.T, r *Report)
}{
	{"decision", decision},
	{"admission", gatedAdmissions},
	{"http", httpAdmissions},
	{"batch", batchAdmissions},
	{"reject", rejects},
	{"flood", flood},
	{"backlog", backlog},
	{"memory", memory},
	{"durability", durability},
	{"dispatch", dispatch},
	{"worker", workerOverhead},
	{"life", life},
	{"workercpu", workerCPU},
	{"stream", stream},
	{"start", startup},
	{"wide", widePool},
	{"archive", archiveRate},
	{"cluster", onCluster},
}

func TestBench(t *testing.T) {
	r := &Report{Machine: machine()}
	for _, m := range measures {
		t.Run(m.name, func(t *testing.T) { m.run(t, r) })
	}
	if err := r.WriteTable(os.Stdout); err != nil {
		t.Fatal(err)
	}
	if *jsonFile != "" {
		f, err := os.Create(*jsonFile)
		must(t, err)
		must(t, r.WriteJSON(f))
		must(t, f.Close())
	}
	if *floorsFile != "" {
		raw, err := os.ReadFile(*floorsFile)
		must(t, err)
		var floors []Floor
		must(t, json.Unmarshal(raw, &floors))
		if err := r.Check(floors); err != nil {
			t.Error(err)
		}
	}
}

// machine says what the numbers were taken on.
func machine() string {
	redisVersion, _ := exec.Command("redis-server", "--version").Output()
	version, _, _ := strings.Cut(string(redisVersion), " sha=")
	cpu := "unknown processor"
	if raw, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := strings.Cut(string(raw), "model name\t: "); ok {
			cpu, _, _ = strings.Cut(rest, "\n")
		}
	}
	load, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(load), " ")
	return runtime.GOOS + "/" + runtime.GOARCH + ", " + cpu + ", " + strconv.Itoa(runtime.NumCPU()) + " cores shared by Redis, Leeway and the load, load average " + one +
		" at the start; " + runtime.Version() + "; " + version + " with AOF everysec on loopback"
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// rate runs work by that many callers for a slice and returns how much of it
// was done in a second.
func rate(t *testing.T, callers int, work func(ctx context.Context, caller int) (int, error)) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), *slice)
	defer cancel()
	var done atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for i := range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				n, err := work(context.Background(), i)
				if err != nil {
					t.Error(err)
					return
				}
				done.Add(int64(n))
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(began).Seconds()
}

// turns runs both sides of a ratio in turns.
func (g *gate) turns(name string, base, subject func() float64) Measure {
	g.t.Helper()
	return against(name, g, base, g, subject)
}

// against runs one gate's side of a ratio in turns with another's.
func against(name string, b *gate, base func() float64, g *gate, subject func() float64) Measure {
	g.t.Helper()
	var subjects, bases []Taken
	for range *rounds {
		b.clean()
		bases = append(bases, b.take(base))
		g.clean()
		subjects = append(subjects, g.take(subject))
	}
	return g.told(Rounds(name, subjects, bases))
}

// take runs one side of a round.
func (g *gate) take(run func() float64) Taken {
	before := g.cpu()
	began := time.Now()
	perSecond := run()
	work := perSecond * time.Since(began).Seconds()
	after := g.cpu()
	return Taken{PerSecond: perSecond, CPU: CPU{(after.Redis - before.Redis) / work, (after.Process - before.Process) / work}}
}

func (g *gate) told(m Measure) Measure {
	g.t.Helper()
	g.t.Logf("%s: %s of %s/s; in processor time %s: %.1f of %.1f us", m.Name, short(m.Ratio), short(m.Base), short(m.CPURatio), m.CPU[0], m.CPU[1])
	return m
}

// cpu is the processor time that this process and its Redis have taken, in
// microseconds.
func (g *gate) cpu() CPU {
	var u syscall.Rusage
	must(g.t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	c := CPU{Process: float64(u.Utime.Nano()+u.Stime.Nano()) / 1000}
	for _, r := range g.servers {
		info, err := r.Info(context.Background(), "cpu").Result()
		must(g.t, err)
		for line := range strings.Lines(info) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if name == "used_cpu_sys" || name == "used_cpu_user" {
				s, err := strconv.ParseFloat(value, 64)
				must(g.t, err)
				c.Redis += s * 1e6
			}
		}
	}
	return c
}

// gate is an admitter on a real Redis, with workers that claim nothing.
type gate struct {
	t       *testing.T
	redis   *redistest.Server
	servers []*redis.Client // each of the deployment's Redis servers
	prefix  string
	beside  []*gate // on the same servers
	rdb     redis.UniversalClient
	store   store.Shard
	adm     *admission.Admitter
	asynq   *asynq.Client
	slots   int
	belief  slackgate.Belief
	table   atomic.Pointer[flags.Table]
	decided atomic.Int64
}

const prefix = "bench"

// newGate has that many slots in its paid pool and believes them to be held for
// holdMS.
func newGate(t *testing.T, slots int, holdMS int64) *gate {
	srv := redistest.Start(t)
	return newGateOn(t, srv.URL(), prefix, slots, holdMS, srv)
}

// newGateOn is newGate on Redis servers that run already.
func newGateOn(t *testing.T, url, prefix string, slots int, holdMS int64, servers ...*redistest.Server) *gate {
	g := &gate{t: t, redis: servers[0], prefix: prefix, slots: slots, belief: slackgate.FixedBelief(holdMS, holdMS)}
	for _, srv := range servers {
		r := redis.NewClient(&redis.Options{Addr: srv.Addr(), ReadTimeout: time.Minute})
		t.Cleanup(func() { _ = r.Close() })
		g.servers = append(g.servers, r)
	}
	var err error
	g.rdb, err = storetest.Client(url, 5*time.Second)
	must(t, err)
	t.Cleanup(func() { _ = g.rdb.Close() })
	g.store = storetest.New(g.rdb, storetest.Options{Prefix: prefix, Timeout: 5 * time.Second})
	g.table.Store(flags.NewTable(0, nil))
	g.adm = admission.New(admission.Options{
		Store: g.store, Tickets: ticket.New(g.rdb, prefix, 5*time.Second, 24*time.Hour), Settings: g.settings, RefreshFlags: g.refreshFlags,
		Observer: g, Log: slog.New(slog.NewJSONHandler(io.Discard, nil)), //nolint:sloglint // lines are to be made, as in production
	})
	g.asynq = asynq.NewClient(asynq.RedisClientOpt{Addr: g.redis.Addr()})
	t.Cleanup(func() { _ = g.asynq.Close() })
	g.clean()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.adm.Run(ctx) })
	wg.Go(func() { _ = g.adm.Refresh(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return g
}

// clean empties the store and shows the workers again.
func (g *gate) clean() {
	ctx := context.Background()
	for _, r := range g.servers {
		must(g.t, r.FlushAll(ctx).Err())
	}
	for _, one := range append([]*gate{g}, g.beside...) {
		if one.slots > 0 {
			must(g.t, one.store.Beat(ctx, broker.Worker{ID: "w", Path: slackgate.Paid, Slots: one.slots}, time.Hour))
		}
	}
	time.Sleep(2 * admission.RefreshEvery)
}

func (g *gate) refreshFlags(ctx context.Context) error {
	table, err := g.store.Flags(ctx)
	if err == nil {
		g.table.Store(table)
	}
	return err
}

func (g *gate) settings() admission.Settings {
	s := admission.Settings{
		Flags: g.table.Load(),
		Class: func(string) admission.ClassSettings {
			return admission.ClassSettings{Policy: slackgate.Policy{FreeQueueAgeCutMS: slackgate.Unbounded}}
		},
		DispatchMS: 20, MinReserveMS: 2000, HorizonMS: (24 * time.Hour).Milliseconds(),
	}
	s.Beliefs[slackgate.Paid], s.Beliefs[slackgate.Free] = g.belief, g.belief
	p95 := int64(g.belief.FirstByte.P95MS)
	s.Pools[slackgate.Paid] = broker.PoolPolicy{Limit: 4096, FirstByteP95MS: p95}
	s.Pools[slackgate.Free] = broker.PoolPolicy{Limit: 4096, FirstByteP95MS: p95}
	return s
}

// Decided implements admission.Observer.
func (g *gate) Decided(*broker.Submission, *broker.Verdict) { g.decided.Add(1) }

func job(deadline time.Duration) *broker.Submission {
	return &broker.Submission{
		Spec: broker.Spec{
			ID: uuid.Must(uuid.NewV7()).String(), Class: "summary", Text: text, MaxOutputTokens: 400, Prefer: [2]slackgate.Path{slackgate.Paid, slackgate.Free},
		},
		DeadlineInMS: deadline.Milliseconds(), ReserveMS: 2000, ReceivedAt: time.Now(),
	}
}

// submit offers one job that must be admitted, or must not.
func (g *gate) submit(ctx context.Context, deadline time.Duration, admitted bool) (int, error) {
	v, err := g.adm.Submit(ctx, job(deadline))
	if err == nil && v.Admitted() != admitted {
		g.t.Errorf("verdict %+v", v)
	}
	return 1, err
}

func (g *gate) enqueue(ctx context.Context, _ int) (int, error) {
	_, err := g.asynq.EnqueueContext(ctx, asynq.NewTask("bench:bare", []byte(text)), asynq.Queue("bare"))
	return 1, err
}

// fill admits jobs until the pool refuses.
func (g *gate) fill(deadline time.Duration) {
	for range 100_000 {
		v, err := g.adm.Submit(context.Background(), job(deadline))
		must(g.t, err)
		if !v.Admitted() {
			return
		}
	}
	g.t.Fatal("the pool does not fill up")
}
