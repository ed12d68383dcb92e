package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/rehearsal/lab"
	"leeway/rehearsal/pipenet"
	"leeway/slackgate"
)

// The article's callers: 32 at once, each of whom leaves after 700 ms. All but
// one want an answer of 34 tokens, one wants 8: on the article's knee (189
// tokens/s alone, 433 with eight in service, 474 with 32) eight long answers
// take 0.63 s together and 32 take 2.3 s.
const (
	callers     = 32
	patience    = 700 * time.Millisecond
	longAnswer  = 34
	shortAnswer = 8
	articleKnee = "load:1=189,8=433,32=474"
)

func answerOf(caller int) int {
	if caller == 0 {
		return shortAnswer
	}
	return longAnswer
}

// Without admission every caller gets HTTP 200 and one of them in time.
func TestArticleTableUnbounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, err := lab.New(lab.Config{Profile: articleKnee})
		must(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		l := pipenet.Listen()
		served := make(chan error)
		go func() { served <- srv.Serve(ctx, l, nil) }()
		transport := &http.Transport{DialContext: l.DialContext}
		backend := &http.Client{Transport: transport}

		var mu sync.Mutex
		var wg sync.WaitGroup
		ok, inTime := 0, 0
		begin := time.Now()
		for caller := range callers {
			wg.Go(func() {
				body, err := json.Marshal(map[string]any{
					"model": lab.DefaultModel, "max_tokens": answerOf(caller),
					"messages": []map[string]string{{"role": "user", "content": document}},
				})
				must(t, err)
				resp, err := backend.Post("http://lab/v1/chat/completions", "application/json", bytes.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				took := time.Since(begin)
				mu.Lock()
				defer mu.Unlock()
				if err == nil && resp.StatusCode == http.StatusOK {
					ok++
					if took <= patience {
						inTime++
					}
				}
			})
		}
		wg.Wait()
		t.Logf("unbounded: %d callers, %d got HTTP 200, %d of them in time; the last after %v", callers, ok, inTime, time.Since(begin))
		if ok != callers || inTime != 1 {
			t.Errorf("HTTP 200 %d, in time %d; the article has %d and 1", ok, inTime, callers)
		}
		transport.CloseIdleConnections()
		cancel()
		must(t, <-served)
		srv.Close()
	})
}

// With a bound of eight and a refusal at once, exactly eight are admitted and
// most of them are answered while somebody is still there to read it.
func TestArticleTableBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config.Default()
		cfg.Gate.Policy, cfg.Gate.AdmitFree = slackgate.Seed, false
		cfg.Pools.Paid = config.Pool{Limit: 8, FirstByteP95MS: 50, HoldP95MS: 650}
		cfg.Pools.Free.Limit = 0
		cfg.Classes = config.Classes{"summary": {DeadlineMS: patience.Milliseconds(), ReserveMS: new(int64)}}
		w := start(t, cfg, map[slackgate.Path][]lives{slackgate.Paid: {{profile: articleKnee, tail: "0"}}})

		begin := time.Now()
		var mu sync.Mutex
		var slowestReject time.Duration
		var wg sync.WaitGroup
		var ends []*broker.Job
		rejects := map[slackgate.Reason]int{}
		for caller := range callers {
			wg.Go(func() {
				v := w.submit(&client.Job{Text: document, MaxOutputTokens: answerOf(caller)})
				if v.Path == slackgate.Reject {
					mu.Lock()
					defer mu.Unlock()
					rejects[v.Reason]++
					slowestReject = max(slowestReject, time.Since(begin))
					return
				}
				end := w.wait(v.JobID)
				mu.Lock()
				defer mu.Unlock()
				ends = append(ends, end)
			})
		}
		wg.Wait()
		usable := 0
		for _, v := range ends {
			if v.Outcome == broker.OutcomeUsable {
				usable++
			}
		}
		t.Logf("bounded: %d admitted, refused %v within %v of virtual time, usable %d", len(ends), rejects, slowestReject, usable)
		if len(ends) != 8 || rejects[slackgate.ReasonNoSlack] != 24 {
			t.Errorf("admitted %d, refused %v; want exactly 8 and 24 for want of slack", len(ends), rejects)
		}
		if usable < 6 {
			t.Errorf("usable %d; want at least 6", usable)
		}
		w.balance(ends, 0)
	})
}
