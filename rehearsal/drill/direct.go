package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"leeway/broker/client"
	"leeway/rehearsal/lab"
)

// direct sends the same arrivals straight to a backend, as callers without an
// admission would, each of whom waits for the answer however late it is.
func (r *player) direct(ctx context.Context, schedule []Arrival) error {
	if r.plan.Contrast == "" || r.target.Backend == nil { // which is said in LeftOut
		return nil
	}
	url, hc := r.target.Backend(r.plan.Contrast)
	d := &Direct{Backend: r.plan.Contrast, Callers: len(schedule)}
	took := times{}
	var mu sync.Mutex
	openLoop(ctx, time.Now(), schedule, func(i int, due time.Time) {
		whole := ask(ctx, hc, url, schedule[i].OutputTokens)
		ms := millisSince(due)
		mu.Lock()
		defer mu.Unlock()
		if !whole {
			return
		}
		d.OK++
		d.LastMS = max(d.LastMS, int64(ms))
		took.add(d.Backend, ms)
		if ms <= float64(r.plan.Class.DeadlineMS) {
			d.InTime++
		}
	})
	d.P50MS = took.of(d.Backend).ValueAtQuantile(50)
	r.run.Direct = d
	return ctx.Err()
}

// ask makes one call of a backend and reports whether HTTP 200 and a whole body
// came back.
func ask(ctx context.Context, hc *http.Client, url string, tokens int) bool {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	body, err := json.Marshal(struct {
		Model     string    `json:"model"`
		MaxTokens int       `json:"max_tokens,omitempty"`
		Messages  []message `json:"messages"`
	}{lab.DefaultModel, tokens, []message{{"user", text}}})
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return false
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := hc.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, client.MaxResponseBytes))
	return err == nil && resp.StatusCode == http.StatusOK
}
