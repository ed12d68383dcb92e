package app_test

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/cmd/app"
	"leeway/rehearsal/lab"
	"leeway/slackgate"
	"leeway/workers/backend"
)

// A backend that refuses max_tokens, as OpenAI's reasoning models do: it is out
// after one job, /v1/pools and the log say which option to set, the other backend
// serves, and a reload with the option brings it back at once.
func TestRefusedOptionIsMendedByReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := ward(t, 2)
		must(t, w.labs["paid-1"].SetFault(lab.Fault{Name: "no-max-tokens"}))
		run := func(by string) {
			t.Helper()
			end := w.wait(w.submit(&client.Job{Text: document}).JobID)
			if end.Outcome != broker.OutcomeUsable || end.Backend != by {
				t.Errorf("%s by %s, want usable by %s", end.Outcome, end.Backend, by)
			}
		}
		run("paid-2")
		w.untilStates("paid-1 out, paid-2 closed", 3*time.Second)
		const advice = "set options.limit_field: max_completion_tokens"
		pools, err := w.client.Pools(t.Context())
		must(t, err)
		if why := pools.Backends[0].Why; why != "unsupported: "+advice {
			t.Errorf("out because of %q", why)
		}
		for _, line := range []string{`"msg":"a backend's options or its class's are wrong"`, `"msg":"backend changed state"`} {
			if !w.log.says(line, advice) {
				t.Errorf("no line of the log has %s and the advice", line)
			}
		}
		run("paid-2")

		next := *w.stage.Config
		next.Pools.Paid.Backends = slices.Clone(next.Pools.Paid.Backends)
		next.Pools.Paid.Backends[0].Options.LimitField = "max_completion_tokens"
		must(t, w.worker.Reload(&next))
		run("paid-1")
		w.untilStates("paid-1 closed, paid-2 closed", 10*time.Second) // what the pool before it reported is soon forgotten
	})
}

// A pool whose only backend is wrongly configured says so where it is asked why it
// takes nothing.
func TestRefusedOptionIsReadinessDetail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := ward(t, 1)
		must(t, w.labs["paid-1"].SetFault(lab.Fault{Name: "no-max-tokens"}))
		if end := w.wait(w.submit(&client.Job{Text: document}).JobID); end.Outcome != broker.OutcomeFailed || end.Reason != "unsupported" {
			t.Errorf("%s (%s), want failed (unsupported)", end.Outcome, end.Reason)
		}
		w.untilStates("paid-1 out", 3*time.Second)
		time.Sleep(time.Second) // until the worker has said that it has nothing to call
		resp, err := w.http.Get(w.url + "/readyz")
		must(t, err)
		body, err := io.ReadAll(resp.Body)
		must(t, errors.Join(err, resp.Body.Close()))
		const want = `"gate":"pool_down; backend paid-1 is out: unsupported: set options.limit_field: max_completion_tokens"`
		if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), want) {
			t.Errorf("/readyz: %d %s", resp.StatusCode, body)
		}
	})
}

// says reports whether a line of the log has all the words.
func (l *logs) says(words ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			return true
		}
	}
	return false
}

// What a class keeps for reasoning is reserved from its budget, and is part of the
// most that each of its calls may cost. A reload takes it over.
func TestReasoningIsReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const budget, reasoning = 10_000, 5000
		cfg := config.Default()
		cfg.Pools.Free.Limit = 0
		cfg.Pools.Paid = config.Pool{Limit: 2, FirstByteP95MS: 800}
		cfg.Classes = config.Classes{
			"summary":  {Prefer: config.PaidOnly, BudgetMicroPerDay: new(int64(budget))},
			"thorough": {Prefer: config.PaidOnly, BudgetMicroPerDay: new(int64(budget)), Options: config.Options{ReasoningTokens: new(reasoning)}},
		}
		w := start(t, cfg, map[slackgate.Path][]lives{slackgate.Paid: {{profile: "fixed:400ms", tail: "0", slots: 8}}})
		if v := w.submit(&client.Job{Class: "thorough", Text: document}); v.Reason != slackgate.ReasonBudget {
			t.Errorf("six attempts with reasoning exceed the budget: %s", v.Reason)
		}
		most := func(class string) int64 {
			t.Helper()
			v := w.submit(&client.Job{Class: class, Text: document})
			if end := w.wait(v.JobID); end.Outcome != broker.OutcomeUsable {
				t.Fatalf("%s: %s, %s", class, v.Reason, end.Outcome)
			}
			rows, _, err := w.client.Spend(t.Context())
			must(t, err)
			for i := range rows {
				if rows[i].JobID == v.JobID {
					return rows[i].MaxCostMicro
				}
			}
			t.Fatalf("no row of %s", v.JobID)
			return 0
		}
		plain := most("summary")
		reload := func(tokens int, budget *int64) {
			t.Helper()
			next := *w.stage.Config
			next.Classes = maps.Clone(next.Classes)
			class := next.Classes["thorough"]
			class.Options.ReasoningTokens, class.BudgetMicroPerDay = &tokens, budget
			next.Classes["thorough"] = class
			must(t, w.worker.Reload(&next))
			must(t, w.api.Reload(&next))
		}
		reload(0, new(int64(budget)))
		if got := most("thorough"); got != plain {
			t.Errorf("a call that keeps nothing for reasoning may cost %d, want %d", got, plain)
		}
		reload(reasoning, nil)
		price := w.stage.Config.Pools.Paid.Backends[0].Price
		if got, want := most("thorough"), plain+reasoning*price.OutputMicroPerMTok/1_000_000; got != want {
			t.Errorf("a call that keeps %d tokens for it may cost %d, want %d", reasoning, got, want)
		}
	})
}

// roundTrip is a transport made of a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The examples ask services of today as those want to be asked.
func TestExamplesOnTheWire(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "sk-test")
	t.Setenv("AZURE_OPENAI_API_KEY", "sk-test")
	for _, tt := range []struct {
		file, backend, class string
		url, key             string // and where the key is
		body                 string
	}{
		{
			"openai.yaml", "openai", "", "https://api.openai.com/v1/chat/completions", "Authorization: Bearer sk-test",
			`{"max_completion_tokens":1400,"messages":[{"role":"user","content":"T"}],"model":"gpt-5-mini","reasoning_effort":"minimal","stream":true,"stream_options":{"include_usage":true}}`,
		},
		{
			"openai.yaml", "openai", "thorough", "https://api.openai.com/v1/chat/completions", "Authorization: Bearer sk-test",
			`{"max_completion_tokens":6400,"messages":[{"role":"user","content":"T"}],"model":"gpt-5-mini","reasoning_effort":"medium","stream":true,"stream_options":{"include_usage":true}}`,
		},
		{
			"openai.yaml", "openai-plain", "thorough", "https://api.openai.com/v1/chat/completions", "Authorization: Bearer sk-test",
			`{"max_completion_tokens":400,"messages":[{"role":"user","content":"T"}],"model":"gpt-4.1-mini","stream":true,"stream_options":{"include_usage":true},"temperature":0.2}`,
		},
		{
			"openai.yaml", "own-server", "thorough", "http://127.0.0.1:8000/v1/chat/completions", "",
			`{"max_tokens":400,"messages":[{"role":"user","content":"T"}],"model":"small-instruct","stream":true,"stream_options":{"include_usage":true},"top_p":0.9}`,
		},
		{
			"azure.yaml", "azure-plain", "summary",
			"https://example.openai.azure.com/openai/deployments/summaries/chat/completions?api-version=2024-10-21", "Api-Key: sk-test",
			`{"max_tokens":400,"messages":[{"role":"user","content":"T"}],"model":"gpt-4.1-mini","stream":true,"stream_options":{"include_usage":true},"temperature":0.2}`,
		},
		{
			"azure.yaml", "azure-reasoning", "summary", "https://example.openai.azure.com/openai/v1/chat/completions", "Api-Key: sk-test",
			`{"max_completion_tokens":1400,"messages":[{"role":"user","content":"T"}],"model":"reasoning-summaries","reasoning_effort":"minimal","stream":true,"stream_options":{"include_usage":true}}`,
		},
	} {
		t.Run(tt.backend+" "+tt.class, func(t *testing.T) {
			cfg, err := config.Load("../../examples/"+tt.file, nil)
			must(t, err)
			b := cfg.Backend(tt.backend)
			var sent http.Header
			c, err := app.NewClient(b, roundTrip(func(r *http.Request) (*http.Response, error) {
				sent = r.Header
				body, err := io.ReadAll(r.Body)
				if err != nil || r.URL.String() != tt.url || string(body) != tt.body {
					t.Errorf("%s\n%s\nwant %s\n%s", r.URL, body, tt.url, tt.body)
				}
				return nil, io.ErrUnexpectedEOF
			}))
			must(t, err)
			_, _ = c.Generate(t.Context(), backend.Request{Text: "T", MaxOutputTokens: 400, Options: backend.Options(cfg.OptionsFor(tt.class, b))}, backend.Observer{})
			for _, name := range []string{"Authorization", "Api-Key"} {
				want := ""
				if at, value, _ := strings.Cut(tt.key, ": "); at == name {
					want = value
				}
				if got := sent.Get(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
		})
	}
}
