package knee

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"leeway/rehearsal/lab"
	"leeway/rehearsal/pipenet"
	"leeway/workers/backend"
)

const text = "The gate compares what a job must wait with the slack it has left. It refuses what cannot finish. " +
	"A refusal costs milliseconds. A late answer costs a generation that nobody reads."

// onLab runs f with a client of a lab backend, in virtual time.
func onLab(t *testing.T, cfg lab.Config, fault string, f func(t *testing.T, c *backend.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv, err := lab.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if fault != "" {
			if err := srv.SetFault(lab.Fault{Name: fault}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		l := pipenet.Listen()
		served := make(chan error)
		go func() { served <- srv.Serve(ctx, l, nil) }()
		transport := &http.Transport{DialContext: l.DialContext, MaxIdleConnsPerHost: 256}
		c, err := backend.New(backend.Config{Name: "lab", BaseURL: "http://lab/v1", Model: lab.DefaultModel, Transport: transport})
		if err != nil {
			t.Fatal(err)
		}
		f(t, c)
		transport.CloseIdleConnections()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		srv.Close()
	})
}

// A lab backend's known knee is found within one step, each time.
func TestMeasureFindsTheLabsKnee(t *testing.T) {
	for _, tt := range []struct {
		name string
		lab  lab.Config
		knee int
	}{
		{"the article's curve", lab.Config{Profile: lab.ArticleLoad}, 8},
		{"eight slots", lab.Config{Profile: "fixed:100ms", Tail: "300ms", Slots: 8}, 8},
		{"two slots", lab.Config{Profile: "fixed:100ms", Slots: 2}, 2},
		{"four slots, lognormal, one", lab.Config{Profile: "lognormal:p95=200ms,sigma=0.3,seed=1", Tail: "300ms", Slots: 4}, 4},
		{"four slots, lognormal, two", lab.Config{Profile: "lognormal:p95=200ms,sigma=0.3,seed=2", Tail: "300ms", Slots: 4}, 4},
		{"four slots, lognormal, three", lab.Config{Profile: "lognormal:p95=200ms,sigma=0.3,seed=3", Tail: "300ms", Slots: 4}, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onLab(t, tt.lab, "", func(t *testing.T, c *backend.Client) {
				steps, r, err := Measure(t.Context(), c, Plan{
					To: 32, Repeats: 2, Calls: 4, Request: backend.Request{System: "Summarise.", Text: text, MaxOutputTokens: 8},
				})
				if err != nil {
					t.Fatal(err)
				}
				if !r.Reached || r.Limit < tt.knee/2 || r.Limit > 2*tt.knee {
					t.Errorf("found %d, reached %v; it is %d", r.Limit, r.Reached, tt.knee)
				}
				for i, s := range steps {
					t.Logf("%3d: %.0f tokens/s, p95 %.0f ms, failed %.2f", s.Concurrent, s.TokensPerS.Median, s.FirstByteP95MS.Median, s.FailedShare)
					if i > 0 {
						t.Logf("     %+v", r.Changes[i-1])
					}
				}
			})
		})
	}
}

// Without a knee below the greatest load it says so.
func TestMeasureWithoutAKnee(t *testing.T) {
	onLab(t, lab.Config{Profile: "fixed:50ms"}, "", func(t *testing.T, c *backend.Client) {
		steps, r, err := Measure(t.Context(), c, Plan{To: 8, Repeats: 1, Calls: 2, Request: backend.Request{Text: text, MaxOutputTokens: 8}})
		if err != nil || r.Reached || r.Limit != 8 || len(steps) != 4 {
			t.Errorf("%+v of %+v, %v", r, steps, err)
		}
	})
}

// A backend that turns calls away beyond its queue is beyond its knee there.
func TestMeasureTurnedAway(t *testing.T) {
	cfg := lab.Config{Profile: "fixed:50ms", Slots: 2, Queue: 1}
	onLab(t, cfg, "", func(t *testing.T, c *backend.Client) {
		steps, r, err := Measure(t.Context(), c, Plan{To: 16, Repeats: 1, Calls: 4, Request: backend.Request{Text: text, MaxOutputTokens: 8}})
		if err != nil || !r.Reached || r.Limit > 4 {
			t.Errorf("%+v of %+v, %v", r, steps, err)
		}
	})
}

func TestMeasureFails(t *testing.T) {
	onLab(t, lab.Config{}, "down", func(t *testing.T, c *backend.Client) {
		_, _, err := Measure(t.Context(), c, Plan{To: 4, Request: backend.Request{Text: text, MaxOutputTokens: 8}})
		if err == nil || !strings.Contains(err.Error(), "first call") {
			t.Errorf("of a backend that is down: %v", err)
		}
	})
	// Cut short, it ends and leaves nothing behind.
	onLab(t, lab.Config{Profile: "fixed:1s"}, "", func(t *testing.T, c *backend.Client) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		begun := time.Now()
		_, _, err := Measure(ctx, c, Plan{To: 4, Request: backend.Request{Text: text, MaxOutputTokens: 8}})
		if err == nil || time.Since(begun) > 11*time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
	})
}

func TestPlanBounds(t *testing.T) {
	for _, p := range []Plan{
		{To: 1}, {To: MaxConcurrent + 1}, {Repeats: -1}, {Repeats: MaxRepeats + 1}, {Calls: 1}, {Calls: 1001}, {CallTimeout: -1},
		{To: MaxConcurrent, Calls: 100, Repeats: MaxRepeats},
	} {
		if err := p.Validate(); err == nil {
			t.Errorf("%+v is accepted", p)
		}
	}
	if err := (Plan{}).Validate(); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(Plan{To: 20}.Loads()); got != "[1 2 4 8 16]" {
		t.Errorf("loads %s", got)
	}
}
