package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"go.uber.org/goleak"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/broker/wire"
	"leeway/cmd/app"
	"leeway/rehearsal/redistest"
	"leeway/rehearsal/stage"
	"leeway/slackgate"
	"leeway/workers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a whole Leeway in virtual time: API, worker, asynq, an embedded
// Redis and lab backends, over in-memory connections.
type world struct {
	t      *testing.T
	stage  *stage.Stage
	redis  *miniredis.Miniredis
	labs   map[string]*stage.Backend // by name
	api    *app.API
	worker *app.Worker // the first; nil without labs
	client *client.Client
	url    string // the API's
	http   *http.Client
	log    *logs
}

// logs collects JSON lines.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// errors are the lines at level ERROR.
func (l *logs) errors() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out strings.Builder
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, `"level":"ERROR"`) {
			out.WriteString(line)
		}
	}
	return out.String()
}

// jobs returns the lines that submissions got, by job id.
func (l *logs) jobs(t *testing.T) map[string][]map[string]any {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string][]map[string]any{}
	for line := range strings.Lines(l.buf.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("log line is not JSON: %q", line)
		}
		if m["msg"] == "job" {
			id, _ := m["job_id"].(string)
			out[id] = append(out[id], m)
		}
	}
	return out
}

// lives says what a lab backend is like.
type lives struct {
	profile, tail string
	slots         int
	p95           int64  // declared; 0: the pool's
	model         string // empty: the lab's own
}

// start builds a world inside a bubble, and completes cfg. labs name each pool's
// backends.
func start(t *testing.T, cfg *config.Config, labs map[slackgate.Path][]lives) *world {
	t.Helper()
	return startWith(t, cfg, labs, stage.Options{})
}

// startWith is start with options besides.
func startWith(t *testing.T, cfg *config.Config, labs map[slackgate.Path][]lives, o stage.Options) *world {
	t.Helper()
	w := &world{t: t, log: &logs{}}
	o.Config, o.InMemory, o.Log = cfg, true, app.Logger(w.log, slog.LevelInfo)
	for path, backends := range labs {
		for n, l := range backends {
			o.Labs = append(o.Labs, stage.Lab{
				Name: fmt.Sprintf("%s-%d", path, n+1), Path: path, Profile: l.profile, Tail: l.tail, Slots: l.slots, P95MS: l.p95, Model: l.model,
			})
		}
	}
	s, err := stage.Start(o)
	must(t, err)
	*cfg = *s.Config
	w.stage, w.redis, w.labs, w.api, w.client, w.url, w.http = s, s.Redis, s.Labs, s.API, s.Client(), s.URL, s.HTTP
	if len(s.Workers) > 0 {
		w.worker = s.Workers[0]
	}
	t.Cleanup(func() {
		must(t, s.Stop(context.Background()))
		time.Sleep(time.Second) // the Redis clients' own goroutines see that they are done
		redistest.RemainsIn(t, cfg.Redis.Prefix, s.Redis)
	})
	return w
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// submit offers a job; a refusal is a verdict.
func (w *world) submit(job *client.Job) *wire.Verdict {
	v, err := w.client.Submit(context.Background(), job)
	var p *wire.Problem
	if errors.As(err, &p) && p.Verdict != nil {
		return p.Verdict
	}
	if err != nil {
		w.t.Errorf("submit: %v", err)
		return &wire.Verdict{}
	}
	return v
}

// wait returns an admitted job's end.
func (w *world) wait(id string) *broker.Job {
	v, err := w.client.Wait(context.Background(), id)
	if err != nil {
		w.t.Errorf("wait for %s: %v", id, err)
		return &broker.Job{}
	}
	return v
}

// balance checks the ledgers against the jobs' records and the lab's own log.
func (w *world) balance(ends []*broker.Job, rejectMisses int) {
	w.t.Helper()
	settled, open, err := w.client.Spend(context.Background())
	must(w.t, err)
	misses, err := w.client.Misses(context.Background())
	must(w.t, err)
	wantSpend, wantMiss := map[string]bool{}, map[string]bool{}
	for _, v := range ends {
		if v.State != broker.StateDone || v.Outcome == "" {
			w.t.Errorf("job %s: state %s, outcome %q", v.ID, v.State, v.Outcome)
		}
		for n := range v.Attempts {
			wantSpend[fmt.Sprintf("%s/%d", v.ID, n+1)] = true
		}
		if v.Outcome.Miss() {
			wantMiss[v.ID] = true
		}
	}
	for i := range settled {
		key := fmt.Sprintf("%s/%d", settled[i].JobID, settled[i].Attempt)
		if !wantSpend[key] && settled[i].Class != workers.ProbeClass {
			w.t.Errorf("spend row %s without its attempt, or twice", key)
		}
		delete(wantSpend, key)
	}
	if len(wantSpend) > 0 || len(open) > 0 {
		w.t.Errorf("attempts without a settled row: %v; open rows: %d", wantSpend, len(open))
	}
	for i := range misses {
		if misses[i].Path == slackgate.Reject {
			rejectMisses--
			continue
		}
		if !wantMiss[misses[i].JobID] {
			w.t.Errorf("miss row of %s without its miss, or twice", misses[i].JobID)
		}
		delete(wantMiss, misses[i].JobID)
	}
	if len(wantMiss) > 0 || rejectMisses != 0 {
		w.t.Errorf("misses without a row: %v; on path reject: %d", wantMiss, rejectMisses)
	}
	called := 0
	for _, l := range w.labs {
		attempts, forgotten := l.Attempts(0)
		called += len(attempts) + int(forgotten)
	}
	if called != len(settled) {
		w.t.Errorf("the backends saw %d calls, the ledger has %d rows", called, len(settled))
	}
}

// declared is the article's lab.
func declared(rule slackgate.Rule) (*config.Config, map[slackgate.Path][]lives) {
	cfg := config.Default()
	cfg.Gate.Policy = rule
	return cfg, map[slackgate.Path][]lives{
		slackgate.Paid: {{profile: "fixed:1200ms", tail: "0", slots: 2}},
		slackgate.Free: {{profile: "fixed:4000ms", tail: "0", slots: 1}},
	}
}

const document = "The gate compares what a job must wait with the slack it has left. It refuses what cannot finish. " +
	"A refusal costs milliseconds. A late answer costs a generation that nobody reads."

// offerAt submits n jobs on schedule and returns verdicts and ends.
func (w *world) offerAt(n int, every time.Duration, job func(i int) *client.Job) ([]*wire.Verdict, []*broker.Job) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	verdicts := make([]*wire.Verdict, n)
	var ends []*broker.Job
	begin := time.Now()
	for i := range n {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * every))) // virtual
		wg.Go(func() {
			verdicts[i] = w.submit(job(i))
			if verdicts[i].Path == slackgate.Reject {
				return
			}
			end := w.wait(verdicts[i].JobID)
			mu.Lock()
			defer mu.Unlock()
			ends = append(ends, end)
		})
	}
	wg.Wait()
	return verdicts, ends
}
