package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker/config"
	"leeway/slackgate"
)

// quickClass has one class whose jobs are due in 300 ms, and a store that may take
// a second to answer.
func quickClass() (*config.Config, map[slackgate.Path][]lives) {
	cfg := config.Default()
	cfg.Redis.TimeoutMS = 1000
	cfg.Pools.Paid.FirstByteP95MS, cfg.Pools.Paid.HoldP95MS = 50, 50
	cfg.Pools.Free.Limit = 0
	cfg.Classes = config.Classes{"summary": {Prefer: config.PaidOnly, DeadlineMS: 300, ReserveMS: new(int64(0))}}
	return cfg, map[slackgate.Path][]lives{slackgate.Paid: {{profile: "fixed:40ms", tail: "0", slots: 2}}}
}

// postTo sends a body and returns the status and what is said.
func (w *world) postTo(path, mediaType, body string) (int, string) {
	req, err := http.NewRequest(http.MethodPost, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Error(err)
		return 0, ""
	}
	req.Header.Set("Content-Type", mediaType)
	res, err := w.http.Do(req)
	if err != nil {
		w.t.Error(err)
		return 0, ""
	}
	defer func() { _ = res.Body.Close() }()
	said, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Error(err)
	}
	return res.StatusCode, string(said)
}

// A store that stands still for longer than a job has admits nothing when it goes
// on: a deadline counts from receipt, whichever way the job came.
func TestDeadlineCountsFromReceipt(t *testing.T) {
	const lines = 5
	for _, tt := range []struct {
		name             string
		path, media, job string
		jobs             int
	}{
		{"one job", "/v1/jobs", "application/json", `{"text":"x"}`, 1},
		{"a batch", "/v1/jobs/batch", "application/x-ndjson", strings.Repeat(`{"text":"x"}`+"\n", lines), lines},
		{"a chat completion", "/v1/chat/completions", "application/json", `{"model":"summary","messages":[{"role":"user","content":"x"}]}`, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg, labs := quickClass()
				w := start(t, cfg, labs)
				time.Sleep(2 * time.Second) // scripts and connections are there
				if _, said := w.postTo(tt.path, tt.media, tt.job); strings.Contains(said, "reject") {
					t.Fatalf("before the pause: %s", said)
				}
				time.Sleep(2 * time.Second)
				w.stage.PauseStore()
				time.AfterFunc(ms(500), w.stage.ResumeStore)
				code, said := w.postTo(tt.path, tt.media, tt.job)
				if n := strings.Count(said, string(slackgate.ReasonDeadline)); n < tt.jobs || code == http.StatusAccepted {
					t.Errorf("%d: %s", code, said)
				}
				misses, err := w.client.Misses(t.Context())
				if must(t, err); len(misses) != tt.jobs {
					t.Errorf("%d misses, want %d: %+v", len(misses), tt.jobs, misses)
				}
			})
		})
	}
}

// Lines that a batch has on their way when the store stands still are decided by
// what they have left then.
func TestLinesUnderWayCountFromReceipt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := quickClass()
		w := start(t, cfg, labs)
		time.Sleep(2 * time.Second)
		body, lines := io.Pipe()
		said := make(chan string)
		go func() {
			req, err := http.NewRequest(http.MethodPost, w.url+"/v1/jobs/batch", body)
			must(t, err)
			req.Header.Set("Content-Type", "application/x-ndjson")
			res, err := w.http.Do(req)
			must(t, err)
			all, err := io.ReadAll(res.Body)
			must(t, err)
			must(t, res.Body.Close())
			said <- string(all)
		}()
		line := `{"text":"x"}` + "\n"
		_, _ = io.WriteString(lines, line)
		time.Sleep(time.Second)
		w.stage.PauseStore()
		for range 4 {
			_, _ = io.WriteString(lines, line)
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(460 * time.Millisecond)
		w.stage.ResumeStore()
		time.Sleep(time.Second)
		_, _ = io.WriteString(lines, line)
		must(t, lines.Close())
		var got []int
		for l := range strings.Lines(<-said) {
			var v struct{ Status int }
			must(t, json.Unmarshal([]byte(l), &v))
			got = append(got, v.Status)
		}
		if fmt.Sprint(got) != fmt.Sprint([]int{202, 429, 429, 429, 429, 202}) {
			t.Errorf("%v", got)
		}
	})
}
