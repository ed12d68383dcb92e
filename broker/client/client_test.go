package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"leeway/broker"
	"leeway/broker/wire"
	"leeway/slackgate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served is a client of a handler.
func served(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	c := &Client{Base: srv.URL, HTTP: srv.Client()}
	t.Cleanup(srv.Close)
	return c
}

func TestSubmit(t *testing.T) {
	c := served(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method != http.MethodPost || r.URL.Path != "/v1/jobs" || r.Header.Get("Content-Type") != "application/json" || string(body) != `{"text":"x","deadline_ms":5000}` {
			t.Errorf("%s %s %s", r.Method, r.URL, body)
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"job_id":"j","path":"free","reason":"free","slack_ms":3000}`)
	})
	v, err := c.Submit(context.Background(), &Job{Text: "x", DeadlineMS: 5000})
	if err != nil || v.JobID != "j" || v.Path != slackgate.Free || v.SlackMS != 3000 {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestRefusalIsAProblem(t *testing.T) {
	c := served(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"type":"about:blank","title":"Too Many Requests","status":429,"detail":"no","reason":"reject_no_slack","verdict":{"path":"reject","slack_ms":9}}`)
	})
	_, err := c.Submit(context.Background(), &Job{Text: "x"})
	p, ok := errors.AsType[*wire.Problem](err)
	if !ok || p.Status != 429 || p.Reason != "reject_no_slack" || p.Verdict == nil || p.Verdict.SlackMS != 9 {
		t.Errorf("%v", err)
	}
}

func TestOtherErrors(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"not a problem":     func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "bad gateway", http.StatusBadGateway) },
		"empty":             func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"half an answer":    func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"job_id":`) },
		"connection closed": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		if _, err := served(t, h).Submit(context.Background(), &Job{Text: "x"}); err == nil {
			t.Errorf("%s: no error", name)
		} else if _, ok := errors.AsType[*wire.Problem](err); ok {
			t.Errorf("%s: %v is a problem document", name, err)
		}
	}
	if _, err := (&Client{Base: "://"}).Submit(context.Background(), &Job{}); err == nil {
		t.Error("a bad base is accepted")
	}
}

func TestWaitAsksAgain(t *testing.T) {
	asked := 0
	c := served(t, func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.URL.EscapedPath() != "/v1/jobs/a%2Fb" || r.URL.Query().Get("wait") != "30s" {
			t.Errorf("%s", r.URL)
		}
		v := broker.Job{ID: "a/b", State: broker.StateRunning, Path: slackgate.Paid}
		if asked == 3 {
			v.State, v.Outcome = broker.StateDone, broker.OutcomeUsable
		}
		_ = json.NewEncoder(w).Encode(v)
	})
	v, err := c.Wait(context.Background(), "a/b")
	if err != nil || v.Outcome != broker.OutcomeUsable || asked != 3 {
		t.Errorf("%+v, %v after %d", v, err, asked)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	c := served(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	if _, err := c.Wait(ctx, "j"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestLedgersFollowTheirPages(t *testing.T) {
	c := served(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		n := map[string]int{"": 1, "1-0": 2, "2-0": 3}[q.Get("cursor")]
		if n == 0 || q.Get("limit") != "1000" {
			t.Errorf("%s", r.URL)
		}
		next := ""
		if n < 3 {
			next = fmt.Sprintf(`,"next_cursor":"%d-0"`, n)
		}
		open := ""
		if n == 1 && strings.HasSuffix(r.URL.Path, "/spend") {
			open = `,"open":[{"job_id":"o","path":"paid"}]`
		}
		fmt.Fprintf(w, `{"rows":[{"job_id":"j%d","path":"paid"}]%s%s}`, n, next, open)
	})
	settled, open, err := c.Spend(context.Background())
	if err != nil || len(settled) != 3 || settled[2].JobID != "j3" || len(open) != 1 {
		t.Errorf("%+v, %+v, %v", settled, open, err)
	}
	misses, err := c.Misses(context.Background())
	if err != nil || len(misses) != 3 || misses[0].JobID != "j1" {
		t.Errorf("%+v, %v", misses, err)
	}
}

func TestGetWithoutWaiting(t *testing.T) {
	c := served(t, func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(broker.Job{ID: r.URL.Query().Get("wait"), Path: slackgate.Paid})
	})
	if v, err := c.Get(context.Background(), "j", 0*time.Second); err != nil || v.ID != "0s" {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestMetric(t *testing.T) {
	page := []byte("# HELP a b\na{p=\"x\"} 12\na{p=\"xy\"} 13\nab 1.5e+06\n")
	for series, want := range map[string]float64{`a{p="x"}`: 12, `a{p="xy"}`: 13, "ab": 1.5e6} {
		if got, err := Metric(page, series); got != want || err != nil {
			t.Errorf("%s: %v, %v", series, got, err)
		}
	}
	if _, err := Metric(page, "a"); err == nil {
		t.Error("a series without its labels was found")
	}
}
