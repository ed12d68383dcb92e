package app_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/cmd/app"
	"leeway/slackgate"
)

// A reload that fails late, as a pool is made, leaves everything as it was:
// what is shown, the jobs in flight, and how the process ends.
func TestFailedReloadChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		cfg.Pools.Free.Limit = 0
		delete(labs, slackgate.Free)
		labs[slackgate.Paid] = []lives{{profile: "fixed:800ms", tail: "0"}}
		w := start(t, cfg, labs)
		v := w.submit(&client.Job{Text: document})
		time.Sleep(200 * time.Millisecond)
		metrics := func() (int, string) {
			rec := httptest.NewRecorder()
			w.worker.MetricsHandler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
			for line := range strings.Lines(rec.Body.String()) {
				if strings.HasPrefix(line, "leeway_config_fingerprint") {
					return rec.Code, line
				}
			}
			return rec.Code, ""
		}
		_, before := metrics()
		if before == "" {
			t.Fatal("no leeway_config_fingerprint")
		}

		next := *cfg
		next.Pools.Free = cfg.Pools.Paid
		next.Pools.Free.Backends = []config.Backend{cfg.Pools.Paid.Backends[0]}
		next.Pools.Free.Backends[0].Name = "free-1"
		next.Pools.Free.Backends[0].URL += "?api-version=1"
		err := w.worker.Reload(&next)
		if err == nil || !strings.Contains(err.Error(), "free-1") {
			t.Errorf("Reload: %v; want an error that names the backend", err)
		}
		if code, after := metrics(); code != http.StatusOK || after != before {
			t.Errorf("/metrics afterwards: %d, %s; want 200 and %s", code, after, before)
		}
		end := w.wait(v.JobID)
		if end.Outcome != broker.OutcomeUsable {
			t.Errorf("the job in flight: %s, want usable", end.Outcome)
		}
		w.balance([]*broker.Job{end}, 0)
	})
}

// What configuration accepts of a backend, the worker can make a caller of.
func FuzzBackendCanBeCalled(f *testing.F) {
	f.Add("http://127.0.0.1:8000/v1", "model", "X-Team", "nightly", "/deployments/d/chat/completions", "api-version", "2024-10-21")
	f.Add("http://127.0.0.1:8000/v1?api-version=1", "model", "", "", "", "", "")
	f.Add("http://127.0.0.1:8000/v1#top", "model", "", "", "", "", "")
	f.Add("http://u:p@127.0.0.1", "m", "", "", "", "", "")
	f.Add("http://127.0.0.1", "m", "Bad Name", "x", "", "", "")
	f.Add("http://127.0.0.1", "m", "\u00e4", "x", "", "", "")
	f.Add("http://127.0.0.1", "m", "X-Team", "two\r\nlines", "", "", "")
	f.Add("http://127.0.0.1", "m", "", "", "//elsewhere/%2e%2e", "a", "b&c=d#")
	f.Add("http://127.0.0.1", "m", "", "", "/%zz\x7f", "a b", "")
	f.Fuzz(func(t *testing.T, url, model, header, value, path, field, query string) {
		cfg := config.Default()
		b := config.Backend{Name: "b", URL: url, Model: model}
		if header != "" {
			b.Headers = map[string]string{header: value}
		}
		b.Options.Path = path
		if field != "" {
			b.Options.Query = map[string]string{field: query}
		}
		cfg.Pools.Paid.Backends = []config.Backend{b}
		if err := cfg.Complete(); err != nil {
			return
		}
		if err := app.CanCall(&cfg.Pools.Paid.Backends[0]); err != nil {
			t.Errorf("accepted, and then: %v", err)
		}
	})
}

// hanging is a world whose worker runs a job for 1 s while the store stands
// still, and has 2 s of grace.
func hanging(t *testing.T) *world {
	cfg, labs := declared(slackgate.Predictive)
	cfg.Worker.ShutdownGraceMS = 2000
	labs[slackgate.Paid] = []lives{{profile: "fixed:800ms", tail: "0"}}
	w := start(t, cfg, labs)
	w.submit(&client.Job{Text: document})
	time.Sleep(200 * time.Millisecond)
	w.stage.PauseStore()
	return w
}

// A worker stops within its grace and a few seconds also while the store stands
// still, and says in its log what it could not book.
func TestStopWithoutStoreIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := hanging(t)
		begun := time.Now()
		_ = w.worker.Stop(context.Background())
		took := time.Since(begun)
		t.Logf("stopped after %v", took)
		if took > 12*time.Second {
			t.Errorf("the stop took %v with a grace of 2 s", took)
		}
		if log := w.log.text(); !strings.Contains(log, `"not booked`) || !strings.Contains(log, `"spend":[{`) {
			t.Errorf("the log does not say what was not booked:\n%s", log)
		}
		w.stage.ResumeStore()
		time.Sleep(time.Minute) // asynq ends, for which the client was left open
		_ = w.worker.Redis().Close()
	})
}

// A second signal is heard by the pools that a reload has replaced, too.
func TestReplacedPoolsHearOfTheSecondSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		cfg.Worker.ShutdownGraceMS = 60_000
		labs[slackgate.Paid] = []lives{{profile: "fixed:5s", tail: "0", p95: 5500}}
		cfg.Pools.Paid.FirstByteP95MS = 5500
		w := start(t, cfg, labs)
		w.submit(&client.Job{Text: document})
		time.Sleep(200 * time.Millisecond)
		next := *cfg
		next.Pools.Paid.Limit--
		must(t, w.worker.Reload(&next))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		begun := time.Now()
		must(t, w.worker.Stop(ctx))
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("the stop took %v: a job of the replaced pool was waited for", took)
		}
	})
}

// The gate counts a worker whose slots a reload changes once, however seldom its
// idle slots look for tickets.
func TestReloadedSlotsCountOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		cfg.Pools.Free.Limit, cfg.Pools.Paid.Limit = 0, 100
		delete(labs, slackgate.Free)
		cfg.Worker.PaidSlots, cfg.Worker.PollMS = new(2), 500
		w := start(t, cfg, labs)
		time.Sleep(ms(777)) // between two looks
		next := *cfg
		next.Worker.PaidSlots = new(3)
		must(t, w.worker.Reload(&next))
		for range 100 {
			time.Sleep(10 * time.Millisecond)
			pools, err := w.client.Pools(t.Context())
			must(t, err)
			if n := pools.Pools["paid"].Capacity; n != 3 {
				t.Fatalf("%d slots, want 3", n)
			}
		}
	})
}
