package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"leeway/broker"
	"leeway/broker/admission"
	"leeway/broker/background"
	"leeway/broker/config"
	"leeway/broker/flag"
	"leeway/broker/ledger"
	"leeway/broker/measure"
	"leeway/broker/metrics"
	"leeway/broker/shard"
	"leeway/broker/store"
	"leeway/broker/store/storetest"
	"leeway/broker/ticket"
	"leeway/broker/wire"
	"leeway/rehearsal/redistest"
	"leeway/slackgate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// api is an admission API in virtual time over an embedded Redis.
type api struct {
	*Server
	t     *testing.T
	cfg   *config.Config
	redis *miniredis.Miniredis
	store store.Shard
	gate  *admission.Admitter
	group *background.Group
	log   *logged
	flags atomic.Pointer[flag.Table]
	// gone makes new connections to Redis fail; dropped closes those there
	// are. mute makes new ones accept and never answer.
	mu         sync.Mutex // guards what follows
	gone, mute bool
	conns      []net.Conn
	// Of the next script that names the job loseOf the reply is lost, once it
	// has run. refuse is what the store answers instead of running any.
	loseOf, refuse string
	// held keeps what is asked of the store until it is closed; asked counts it.
	held  chan struct{}
	asked int
}

// A reply of the store's that says that it did nothing.
type storeError string

func (e storeError) Error() string { return string(e) }
func (storeError) RedisError()     {}

// DialHook and the others implement [redis.Hook].
func (a *api) DialHook(next redis.DialHook) redis.DialHook { return next }
func (a *api) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		a.wait()
		return next(ctx, cmds)
	}
}
func (a *api) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		a.wait()
		a.mu.Lock()
		loseOf, refuse := a.loseOf, a.refuse
		a.mu.Unlock()
		script := strings.HasPrefix(cmd.Name(), "eval")
		if script && refuse != "" {
			cmd.SetErr(storeError(refuse))
			return cmd.Err()
		}
		err := next(ctx, cmd)
		if script && err == nil && loseOf != "" && slices.Contains(cmd.Args(), any(loseOf)) {
			a.mu.Lock()
			a.loseOf = ""
			a.mu.Unlock()
			cmd.SetErr(context.DeadlineExceeded)
			return cmd.Err()
		}
		return err
	}
}

// wait is where a call to the store waits while it is held.
func (a *api) wait() {
	a.mu.Lock()
	held := a.held
	if held != nil {
		a.asked++
	}
	a.mu.Unlock()
	if held != nil {
		<-held
	}
}

// calls is how many calls to the store are held.
func (a *api) calls() int {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked
}

// logged collects a log's lines.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// jobs are the lines that submissions got.
func (l *logged) jobs(t *testing.T) (lines []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		if m["msg"] == "job" {
			lines = append(lines, m)
		}
	}
	return lines
}

// inAPI runs f with a running API whose pools have a worker each; doc is
// configuration over the defaults.
func inAPI(t *testing.T, doc string, f func(a *api)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &api{t: t, redis: miniredis.NewMiniRedis(), log: &logged{}}
		a.redis.ClockTTL(true)
		cfg, err := config.Parse([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		a.cfg = cfg
		a.flags.Store(flag.NewTable(0, nil))
		rdb := storetest.Dial(a.dial)
		rdb.AddHook(a)
		a.store = storetest.New(rdb, storetest.Options{Prefix: cfg.Redis.Prefix, Timeout: cfg.RedisTimeout()})
		log := slog.New(slog.NewJSONHandler(a.log, nil))
		a.group = background.New(context.Background(), log)
		admitter := admission.New(admission.Options{
			Store: a.store, Tickets: ticket.New(rdb, cfg.Redis.Prefix, cfg.RedisTimeout(), time.Hour),
			Settings: a.settings, RefreshFlags: a.refreshFlags, Observer: metrics.New(), Log: log,
		})
		a.gate = admitter
		a.group.Go("admission", admitter.Run)
		a.Server = New(Options{
			Config: func() *config.Config { return a.cfg }, Admitter: shard.NewAdmitter(cfg.Home, admitter), Store: shard.New(a.store), Background: a.group, Log: log,
			StartValues: a.startValues,
			Risks:       func() []string { return nil },
			Latency:     func(slackgate.Path) measure.Measured { return measure.Measured{} },
		})
		defer func() {
			synctest.Wait() // whoever asked the store has its answer
			_ = a.group.Stop()
			_ = rdb.Close()
			a.redis.Close()
			redistest.RemainsIn(t, cfg.Redis.Prefix, a.redis)
			time.Sleep(time.Second) // the client's own goroutines see that they are done
		}()
		a.live(2, 1)
		synctest.Wait() // the subscription stands
		f(a)
	})
}

func (a *api) dial(context.Context, string, string) (net.Conn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.gone:
		return nil, syscall.ECONNREFUSED
	case a.mute:
		c, s := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, s) }()
		a.conns = append(a.conns, s)
		return c, nil
	}
	c, err := a.redis.Dial()
	if err == nil {
		a.conns = append(a.conns, c)
	}
	return c, err
}

// fail cuts every connection to Redis; new ones are refused, or with mute
// accepted and never answered.
func (a *api) loseRedis(mute bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone, a.mute = !mute, mute
	for _, c := range a.conns {
		_ = c.Close()
	}
	a.conns = nil
}

// findRedis brings it back, and has the client find out which of its
// connections are dead.
func (a *api) findRedis() {
	a.mu.Lock()
	a.gone, a.mute = false, false
	for _, c := range a.conns {
		_ = c.Close()
	}
	a.conns = nil
	a.mu.Unlock()
	for good := 0; good < 10; good++ {
		if a.store.SyncClock(context.Background()) != nil {
			good = 0
		}
	}
}

func (a *api) refreshFlags(ctx context.Context) error {
	table, err := a.store.Flags(ctx)
	if err == nil {
		a.flags.Store(table)
	}
	return err
}

func (a *api) startValues() flag.Values {
	g := &a.cfg.Gate
	return flag.Values{AdmitPaid: g.AdmitPaid, AdmitFree: g.AdmitFree, ReserveMS: g.ReserveMS, Policy: g.Policy, Fallback: g.FallbackEnabled}
}

func (a *api) settings() admission.Settings {
	s := admission.Settings{
		Flags: a.flags.Load(), DispatchMS: 20, MinReserveMS: 0, HorizonMS: a.cfg.LongestDeadlineMS(),
		Class: func(name string) admission.ClassSettings {
			v := a.flags.Load().Apply(a.startValues(), name, a.store.NowMS())
			return admission.ClassSettings{
				Policy:    slackgate.Policy{Rule: v.Policy, FreeQueueAgeCutMS: slackgate.Unbounded},
				Closed:    [slackgate.NumPaths]bool{slackgate.Paid: !v.AdmitPaid, slackgate.Free: !v.AdmitFree},
				ReserveMS: v.ReserveMS,
			}
		},
	}
	s.Quota = a.cfg.Quota
	if a.cfg.Budgeted() {
		s.Budgets, s.LargestCost = a.cfg.Budgets, func(admission.Size) int64 { return testCost }
	}
	for _, path := range slackgate.Paths {
		p := a.cfg.Pool(path)
		s.Pools[path] = broker.PoolPolicy{Limit: p.Limit, FirstByteP95MS: p.FirstByteP95MS}
		s.Beliefs[path] = slackgate.FixedBelief(p.FirstByteP95MS, p.HoldP95MS)
	}
	return s
}

// testCost is the most that any job may cost here.
const testCost = 1000

func (a *api) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

func (a *api) live(paid, free int) {
	a.t.Helper()
	a.must(a.store.Beat(context.Background(), broker.Worker{ID: "p", Path: slackgate.Paid, Slots: paid}, 24*time.Hour))
	a.must(a.store.Beat(context.Background(), broker.Worker{ID: "f", Path: slackgate.Free, Slots: free}, 24*time.Hour))
}

// answer is a response as a test looks at it.
type answer struct {
	*httptest.ResponseRecorder
	problem wire.Problem
}

// reason is the problem's, and its field.
func (r *answer) reason() string { return r.problem.Reason + " " + r.problem.Field }

// send makes a request. header holds names and values in turn.
func (a *api) send(method, path, body string, header ...string) *answer {
	a.t.Helper()
	return a.do(context.Background(), method, path, strings.NewReader(body), header...)
}

func (a *api) do(ctx context.Context, method, path string, body io.Reader, header ...string) *answer {
	a.t.Helper()
	return a.declare(ctx, 0, method, path, body, header...)
}

// declare makes a request whose body is said to have a length; 0: what it has,
// -1: nothing is said.
func (a *api) declare(ctx context.Context, length int64, method, path string, body io.Reader, header ...string) *answer {
	a.t.Helper()
	req := httptest.NewRequestWithContext(ctx, method, ownURL+path, body)
	if length != 0 {
		req.ContentLength = length
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := &answer{ResponseRecorder: httptest.NewRecorder()}
	a.ServeHTTP(w, req)
	if w.Code >= 400 && path != "/readyz" {
		a.checkProblem(w)
	}
	return w
}

// checkProblem holds every error to the shape of RFC 9457.
func (a *api) checkProblem(w *answer) {
	a.t.Helper()
	if ct := w.Header().Get("Content-Type"); ct != "application/problem+json" {
		a.t.Errorf("status %d with Content-Type %q", w.Code, ct)
	}
	dec := json.NewDecoder(bytes.NewReader(w.Body.Bytes()))
	dec.DisallowUnknownFields()
	said := struct {
		*wire.Problem
		Error *apiError `json:"error"` // of what is no route
	}{Problem: &w.problem}
	if err := dec.Decode(&said); err != nil {
		a.t.Errorf("problem document %s: %v", w.Body, err)
	}
	if e := said.Error; e != nil && (e.Message != w.problem.Detail || e.Code != w.problem.Reason || e.Type == "") {
		a.t.Errorf("problem document with another error in it: %s", w.Body)
	}
	p := &w.problem
	if p.Type != "about:blank" || p.Status != w.Code || p.Title != http.StatusText(w.Code) || p.Reason == "" || p.Detail == "" {
		a.t.Errorf("problem document %+v with status %d", p, w.Code)
	}
	if w.Code == http.StatusServiceUnavailable && w.Header().Get("Retry-After") == "" {
		a.t.Errorf("503 without Retry-After: %s", w.Body)
	}
}

// ownURL is how an API without keys is reached.
const ownURL = "http://localhost"

const asJSON, ndJSON = "application/json", "application/x-ndjson"

func (a *api) submit(body string) *answer {
	a.t.Helper()
	return a.send(http.MethodPost, "/v1/jobs", body, "Content-Type", asJSON)
}

// admitted submits a job that must get in, and returns its id.
func (a *api) admitted(body string) string {
	a.t.Helper()
	w := a.submit(body)
	var v wire.Verdict
	if err := json.Unmarshal(w.Body.Bytes(), &v); w.Code != http.StatusAccepted || err != nil {
		a.t.Fatalf("not admitted: %d %s", w.Code, w.Body)
	}
	return v.JobID
}

func (a *api) misses() []broker.MissRow {
	a.t.Helper()
	p, err := a.store.MissRows(context.Background(), &ledger.Filter{}, "", 1000)
	a.must(err)
	return p.Rows
}
