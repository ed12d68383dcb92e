package app_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/slackgate"
)

// post submits a body under a key and returns status, job id and reason.
func (w *world) post(key, body string) (status int, id, reason string) {
	req, err := http.NewRequest(http.MethodPost, w.url+"/v1/jobs", strings.NewReader(body))
	must(w.t, err)
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := w.http.Do(req)
	must(w.t, err)
	defer func() { _ = resp.Body.Close() }()
	var a struct {
		JobID  string `json:"job_id"`
		Reason string `json:"reason"`
	}
	must(w.t, json.NewDecoder(resp.Body).Decode(&a))
	return resp.StatusCode, a.JobID, a.Reason
}

// A hundred twins of one key through two replicas are one job, one generation
// and one spend row.
func TestTwinsAreOneJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		w := start(t, cfg, labs)
		other := &world{t: t, url: w.url, http: w.second().HTTP}
		body := `{"text": "` + document + `"}`
		var mu sync.Mutex
		ids := map[string]int{}
		var wg sync.WaitGroup
		for n := range 100 {
			wg.Go(func() {
				to := w
				if n%2 == 1 {
					to = other
				}
				status, id, reason := to.post("nightly-17", body)
				mu.Lock()
				defer mu.Unlock()
				ids[id]++
				if status != http.StatusAccepted && status != http.StatusOK || reason != "paid" {
					t.Errorf("twin %d: %d %s", n, status, reason)
				}
			})
		}
		wg.Wait()
		if len(ids) != 1 {
			t.Fatalf("a hundred twins are %d jobs", len(ids))
		}
		for id := range ids {
			w.balance([]*broker.Job{w.wait(id)}, 0)
		}
		if status, _, reason := w.post("nightly-17", `{"text": "another text"}`); status != http.StatusConflict || reason != "idempotency_conflict" {
			t.Errorf("the same key with another body: %d %s", status, reason)
		}
		// After the end the key still gives the job, and nothing runs again.
		status, id, _ := w.post("nightly-17", body)
		if _, ok := ids[id]; status != http.StatusOK || !ok {
			t.Errorf("the key after the job's end: %d, job %s", status, id)
		}
		time.Sleep(5 * time.Second)
		if attempts, _ := w.labs["paid-1"].Attempts(0); len(attempts) != 1 {
			t.Errorf("%d generations for one key", len(attempts))
		}
	})
}

// A key lives as long as its job's record; after that it names a new job.
func TestKeyOutlivedByRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		cfg.Keep.ResultMS = 60_000
		cfg.Worker.PollMS = 100 // much time goes by
		w := start(t, cfg, labs)
		body := `{"text": "x", "deadline_ms": 600000}`
		_, first, _ := w.post("k", body)
		_ = w.wait(first)
		time.Sleep(50 * time.Second)
		if status, id, _ := w.post("k", body); status != http.StatusOK || id != first {
			t.Errorf("while the record is there: %d, job %s; want 200 and %s", status, id, first)
		}
		time.Sleep(20 * time.Second)
		status, second, _ := w.post("k", body)
		if status != http.StatusAccepted || second == first {
			t.Errorf("after the record: %d, job %s; want 202 and a new job", status, second)
		}
		_ = w.wait(second)
	})
}

// A refused submission does not bind its key; bad keys are bad input.
func TestKeyEdges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		w := start(t, cfg, labs)
		tight := `{"text": "x", "deadline_ms": 1000}`
		if status, _, reason := w.post("k", tight); status != http.StatusTooManyRequests || reason != "reject_deadline" {
			t.Errorf("a deadline within the reserve: %d %s", status, reason)
		}
		status, id, reason := w.post("k", `{"text": "x"}`)
		if status != http.StatusAccepted || reason != "paid" {
			t.Errorf("the key after a refusal: %d %s; want a fresh decision", status, reason)
		}
		for _, key := range []string{strings.Repeat("k", 10_000), strings.Repeat("k", 256), "a b", "k\u00e9"} {
			if status, _, reason := w.post(key, `{"text": "x"}`); status != http.StatusBadRequest || reason != "invalid_field" {
				t.Errorf("key of %d bytes: %d %s", len(key), status, reason)
			}
		}
		if status, _, _ := w.post(strings.Repeat("k", 255), `{"text": "x"}`); status != http.StatusAccepted {
			t.Errorf("key of 255 bytes: %d", status)
		}
		_ = w.wait(id)
	})
}
