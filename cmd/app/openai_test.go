package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/broker/wire"
	"leeway/rehearsal/lab"
	"leeway/slackgate"
)

// tape notes when requests were made, and their responses' headers.
type tape struct {
	next http.RoundTripper

	mu      sync.Mutex // guards what follows
	at      []time.Time
	headers []http.Header
	status  []int
}

func (r *tape) RoundTrip(req *http.Request) (*http.Response, error) {
	at := time.Now()
	resp, err := r.next.RoundTrip(req)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = append(r.at, at)
	if err == nil {
		r.headers, r.status = append(r.headers, resp.Header), append(r.status, resp.StatusCode)
	}
	return resp, err
}

// official is the official Go client, unmodified but for base URL and key.
func (w *world) official() (*openai.Client, *tape) {
	r := &tape{next: w.http.Transport}
	c := openai.NewClient(
		option.WithBaseURL(w.url+"/v1"), option.WithAPIKey("any"),
		option.WithHTTPClient(&http.Client{Transport: r}),
	)
	return &c, r
}

func chatOf(text string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: "summary",
		Messages: []openai.ChatCompletionMessageParamUnion{
			openai.SystemMessage("Write for a child of ten."),
			openai.UserMessage(text),
		},
	}
}

// number reads a header that holds one.
func number(t *testing.T, h http.Header, name string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(h.Get(name), 10, 64)
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	return n
}

func TestOfficialClientCompletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		w := start(t, cfg, labs)
		c, tape := w.official()
		got, err := c.Chat.Completions.New(t.Context(), chatOf(document), option.WithHeader(wire.HeaderDeadline, "9000"))
		must(t, err)
		h := tape.headers[0]
		if h.Get(wire.HeaderPath) != "paid" || number(t, h, wire.HeaderSlack) != 7000 || number(t, h, wire.HeaderPredictedWait) != 0 {
			t.Errorf("verdict in the headers: %v", h)
		}
		end := w.wait(h.Get(wire.HeaderJobID))
		if len(got.Choices) != 1 || got.Choices[0].Message.Content != end.Answer || end.Answer == "" || got.Choices[0].FinishReason != "stop" || got.Model != end.Model {
			t.Errorf("completion %s, job %+v", got.RawJSON(), end)
		}
		settled, _, err := w.client.Spend(t.Context())
		must(t, err)
		if len(settled) != 1 || got.Usage.PromptTokens != settled[0].InputTokens || got.Usage.CompletionTokens != settled[0].OutputTokens ||
			got.Usage.TotalTokens == 0 {
			t.Errorf("usage %s, spend %+v", got.Usage.RawJSON(), settled)
		}
		// The system message is added to the class's prompt: the backend was
		// sent more than by the same text without it.
		_ = w.wait(w.submit(&client.Job{Text: document}).JobID)
		settled, _, err = w.client.Spend(t.Context())
		must(t, err)
		if len(settled) != 2 || settled[1].InputTokens >= settled[0].InputTokens {
			t.Errorf("input tokens with and without a system message: %+v", settled)
		}
	})
}

func TestOfficialClientStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		labs[slackgate.Paid][0].tail = "2s"
		w := start(t, cfg, labs)
		c, tape := w.official()
		params := chatOf(document)
		params.StreamOptions.IncludeUsage = openai.Bool(true)
		begin := time.Now()
		stream := c.Chat.Completions.NewStreaming(t.Context(), params)
		if verdictAfter := time.Since(begin); verdictAfter > 100*time.Millisecond || tape.headers[0].Get(wire.HeaderPath) != "paid" {
			t.Errorf("the verdict was told after %v: %v", verdictAfter, tape.headers[0])
		}
		var acc openai.ChatCompletionAccumulator
		var first, last time.Duration
		pieces := 0
		for stream.Next() {
			chunk := stream.Current()
			acc.AddChunk(chunk)
			if len(chunk.Choices) > 0 && chunk.Choices[0].Delta.Content != "" {
				if pieces++; pieces == 1 {
					first = time.Since(begin)
				}
				last = time.Since(begin)
			}
		}
		must(t, stream.Err())
		t.Logf("%d pieces from %v to %v", pieces, first, last)
		if pieces < 5 || first > 1500*time.Millisecond || last-first < time.Second {
			t.Errorf("%d pieces from %v to %v: not live", pieces, first, last)
		}
		end := w.wait(tape.headers[0].Get(wire.HeaderJobID))
		if len(acc.Choices) != 1 || acc.Choices[0].Message.Content != end.Answer || acc.Choices[0].FinishReason != "stop" {
			t.Errorf("streamed %+v, the answer is %q", acc.Choices, end.Answer)
		}
		if acc.Usage.CompletionTokens == 0 || acc.Usage.CompletionTokens != end.Usage.OutputTokens {
			t.Errorf("usage %+v, %+v", acc.Usage, end.Usage)
		}
		w.balance([]*broker.Job{end}, 0)
	})
}

// A refusal that will pass is tried again after Retry-After and no sooner; one
// that will not is not tried again.
func TestOfficialClientIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		cfg.Gate.AdmitFree = false
		w := start(t, cfg, labs)
		var ends []*broker.Job
		var ids []string
		for range 40 { // until the gate is full
			v := w.submit(&client.Job{Text: document})
			if v.Path == slackgate.Reject {
				break
			}
			ids = append(ids, v.JobID)
		}
		c, tape := w.official()
		got, err := c.Chat.Completions.New(t.Context(), chatOf(document), option.WithMaxRetries(5))
		must(t, err)
		if len(tape.status) < 2 || tape.status[0] != http.StatusTooManyRequests {
			t.Fatalf("the first answers were %v", tape.status)
		}
		for i, status := range tape.status[:len(tape.status)-1] {
			wait, told := tape.at[i+1].Sub(tape.at[i]), time.Duration(number(t, tape.headers[i], "Retry-After"))*time.Second
			if status != http.StatusTooManyRequests || told == 0 || wait < told || wait > told+time.Second {
				t.Errorf("answer %d: status %d, told to wait %v, waited %v", i, status, told, wait)
			}
			if tape.headers[i].Get(wire.HeaderReason) != "reject_no_slack" || tape.headers[i].Get(wire.HeaderPath) != "reject" {
				t.Errorf("verdict of a refusal: %v", tape.headers[i])
			}
		}
		ids = append(ids, strings.TrimPrefix(got.ID, "chatcmpl-"))
		for _, id := range ids {
			ends = append(ends, w.wait(id))
		}

		again, tape := w.official()
		_, err = again.Chat.Completions.New(t.Context(), chatOf(document), option.WithHeader(wire.HeaderDeadline, "1000"))
		var apiErr *openai.Error
		if !errors.As(err, &apiErr) || apiErr.StatusCode != http.StatusTooManyRequests || apiErr.Code != "reject_deadline" {
			t.Errorf("a deadline within the reserve: %v", err)
		}
		if len(tape.at) != 1 || tape.headers[0].Get("X-Should-Retry") != "false" || tape.headers[0].Get("Retry-After") != "" {
			t.Errorf("tried %d times; %v", len(tape.at), tape.headers)
		}
		w.balance(ends, 1)
	})
}

// A client that goes away takes its job back: waiting or running, streaming or
// not.
func TestOfficialClientGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		labs[slackgate.Paid][0].tail = "5s"
		cfg.Pools.Paid.HoldP95MS = 6500
		w := start(t, cfg, labs)
		c, tape := w.official()
		ctx, cancel := context.WithCancel(t.Context())
		stream := c.Chat.Completions.NewStreaming(ctx, chatOf(document))
		for pieces := 0; pieces < 3 && stream.Next(); pieces++ {
		}
		cancel()
		_ = stream.Close()
		end := w.wait(tape.headers[0].Get(wire.HeaderJobID))
		if end.Outcome != broker.OutcomeCancelled || end.ElapsedMS > 4000 {
			t.Errorf("the job of a stream that was left: %s after %d ms", end.Outcome, end.ElapsedMS)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := c.Chat.Completions.New(ctx, chatOf(document), option.WithMaxRetries(0))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the call ended with %v", err)
		}
		time.Sleep(4 * time.Second)
		settled, open, err := w.client.Spend(t.Context())
		must(t, err)
		if len(settled) != 2 || len(open) != 0 || settled[1].Result != "cancelled" {
			t.Errorf("spend %+v, open %d", settled, len(open))
		}
		w.balance([]*broker.Job{end, w.wait(settled[1].JobID)}, 0)
	})
}

// Once text was relayed nothing is generated again elsewhere: the stream ends
// in an error.
func TestNoFailoverOnceRelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		labs[slackgate.Paid] = append(labs[slackgate.Paid], lives{profile: "fixed:800ms", tail: "0"})
		w := start(t, cfg, labs)
		c, tape := w.official()
		must(t, w.labs["paid-1"].SetFault(lab.Fault{Name: "cut"}))
		stream := c.Chat.Completions.NewStreaming(t.Context(), chatOf(document))
		text := ""
		for stream.Next() {
			text += stream.Current().Choices[0].Delta.Content
		}
		if err := stream.Err(); err == nil || !strings.Contains(err.Error(), "truncated") || text == "" {
			t.Errorf("relayed %q, then %v", text, err)
		}
		end := w.wait(tape.headers[0].Get(wire.HeaderJobID))
		if end.Outcome != broker.OutcomeTruncated || end.Attempts != 1 || len(tape.at) != 1 {
			t.Errorf("%s after %d attempts and %d requests", end.Outcome, end.Attempts, len(tape.at))
		}
		// The same without a stream fails over.
		_, err := c.Chat.Completions.New(t.Context(), chatOf(document))
		must(t, err)
		second := w.wait(tape.headers[1].Get(wire.HeaderJobID))
		if second.Outcome != broker.OutcomeUsable || second.Attempts != 2 {
			t.Errorf("%s after %d attempts", second.Outcome, second.Attempts)
		}
		w.balance([]*broker.Job{end, second}, 0)
	})
}

// A stream that is relayed whole fails over like a completion that is none, and
// begins when the answer is whole.
func TestWholeStreamFailsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		labs[slackgate.Paid] = append(labs[slackgate.Paid], lives{profile: "fixed:800ms", tail: "0"})
		w := start(t, cfg, labs)
		c, tape := w.official()
		must(t, w.labs["paid-1"].SetFault(lab.Fault{Name: "cut"}))
		stream := c.Chat.Completions.NewStreaming(t.Context(), chatOf(document), option.WithJSONSet("relay", config.RelayWhole))
		var texts []string
		for stream.Next() {
			if choices := stream.Current().Choices; len(choices) > 0 && choices[0].Delta.Content != "" {
				texts = append(texts, choices[0].Delta.Content)
			}
		}
		must(t, stream.Err())
		end := w.wait(tape.headers[0].Get(wire.HeaderJobID))
		if end.Outcome != broker.OutcomeUsable || end.Attempts != 2 || len(tape.at) != 1 || !slices.Equal(texts, []string{end.Answer}) {
			t.Errorf("%s after %d attempts and %d requests, streamed %q", end.Outcome, end.Attempts, len(tape.at), texts)
		}
		w.balance([]*broker.Job{end}, 0)
	})
}

// What relay: whole costs: the first text comes with the end of the answer, for
// the same answer that live begins with the backend's first byte.
func TestWholeStreamCost(t *testing.T) {
	const firstByte, tail = 1200 * time.Millisecond, 2800 * time.Millisecond
	for _, tt := range []struct {
		relay config.Relay
		first time.Duration
	}{{config.RelayLive, firstByte}, {config.RelayWhole, firstByte + tail}} {
		synctest.Test(t, func(t *testing.T) {
			cfg, labs := declared(slackgate.Predictive)
			cfg.Pools.Paid.HoldP95MS = (firstByte + tail).Milliseconds()
			labs[slackgate.Paid][0].tail = tail.String()
			w := start(t, cfg, labs)
			c, _ := w.official()
			sent := time.Now()
			stream := c.Chat.Completions.NewStreaming(t.Context(), chatOf(document), option.WithJSONSet("relay", tt.relay))
			var text strings.Builder
			var first, last time.Duration
			pieces := 0
			for stream.Next() {
				choices := stream.Current().Choices
				if len(choices) == 0 || choices[0].Delta.Content == "" {
					continue
				}
				pieces++
				text.WriteString(choices[0].Delta.Content)
				if last = time.Since(sent); pieces == 1 {
					first = last
				}
			}
			must(t, stream.Err())
			t.Logf("relay %s: %d words in %d pieces, the first after %v, the last after %v", tt.relay, len(strings.Fields(text.String())), pieces, first, last)
			if first.Round(100*time.Millisecond) != tt.first {
				t.Errorf("%s: the first text after %v, want %v", tt.relay, first, tt.first)
			}
		})
	}
}

// A key makes a repeated completion the same job, and keeps it when the client
// goes away.
func TestKeyedCompletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		w := start(t, cfg, labs)
		c, tape := w.official()
		key := option.WithHeader(wire.HeaderIdempotencyKey, "k1")
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if _, err := c.Chat.Completions.New(ctx, chatOf(document), key); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		stream := c.Chat.Completions.NewStreaming(t.Context(), chatOf(document), key)
		for stream.Next() {
		}
		var conflict *openai.Error // a stream is another body
		if !errors.As(stream.Err(), &conflict) || conflict.StatusCode != http.StatusConflict {
			t.Errorf("another body under the key: %v", stream.Err())
		}
		got, err := c.Chat.Completions.New(t.Context(), chatOf(document), key)
		must(t, err)
		end := w.wait(tape.headers[len(tape.headers)-1].Get(wire.HeaderJobID))
		if end.Answer != got.Choices[0].Message.Content || end.Attempts != 1 {
			t.Errorf("%+v", end)
		}
		w.balance([]*broker.Job{end}, 0)
	})
}

func TestModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		w := start(t, cfg, labs)
		c, _ := w.official()
		page, err := c.Models.List(t.Context())
		must(t, err)
		if len(page.Data) != 1 || page.Data[0].ID != "summary" || page.Data[0].Created < time.Now().Unix()-60 {
			t.Errorf("models %s", page.RawJSON())
		}
		var apiErr *openai.Error
		params := chatOf(document)
		params.Model = "gpt-4o"
		if _, err := c.Chat.Completions.New(t.Context(), params); !errors.As(err, &apiErr) || apiErr.StatusCode != http.StatusNotFound || apiErr.Code != "model_not_found" {
			t.Errorf("an unknown model: %v", err)
		}
	})
}

// What an official client may ask and Leeway has not, it is told in the words that
// such clients show.
func TestOfficialClientAsksForMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		w := start(t, cfg, labs)
		c, _ := w.official()
		for name, ask := range map[string]func() error{
			"batches.list": func() error { _, err := c.Batches.List(t.Context(), openai.BatchListParams{}); return err },
			"batches.list after": func() error {
				_, err := c.Batches.List(t.Context(), openai.BatchListParams{After: openai.String("b")})
				return err
			},
			"batches.retrieve": func() error { _, err := c.Batches.Get(t.Context(), "b"); return err },
			"batches.create":   func() error { _, err := c.Batches.New(t.Context(), openai.BatchNewParams{}); return err },
			"embeddings":       func() error { _, err := c.Embeddings.New(t.Context(), openai.EmbeddingNewParams{}); return err },
			"models.retrieve":  func() error { _, err := c.Models.Get(t.Context(), "gpt"); return err },
			"no such method":   func() error { return c.Delete(t.Context(), "models", nil, nil) },
		} {
			err := ask()
			apiErr, ok := errors.AsType[*openai.Error](err)
			if !ok || apiErr.StatusCode/100 != 4 || apiErr.Message == "" || apiErr.Code == "" || apiErr.Type != "invalid_request_error" {
				t.Errorf("%s: %v", name, err)
			}
			if strings.HasPrefix(name, "batches") && (apiErr == nil || !strings.Contains(apiErr.Message, "/v1/jobs/batch")) {
				t.Errorf("%s does not say where batches are: %v", name, err)
			}
		}
	})
}

// A provider that refuses a text says why, and its words reach who asked.
func TestContentRefusalSaysWhy(t *testing.T) {
	for fault, want := range map[string]struct{ code, says string }{
		"refused.policy": {"content_filter", "rejected as a result of our safety system"}, "refused.finish": {"content_filter", "finish reason content_filter"},
		"context-length": {"context_length_exceeded", "maximum context length is 16 tokens"},
	} {
		synctest.Test(t, func(t *testing.T) {
			cfg, labs := declared(slackgate.Predictive)
			w := start(t, cfg, labs)
			must(t, w.labs["paid-1"].SetFault(lab.Fault{Name: fault}))
			c, tape := w.official()
			_, err := c.Chat.Completions.New(t.Context(), chatOf(document))
			apiErr, ok := errors.AsType[*openai.Error](err)
			if !ok || apiErr.StatusCode != http.StatusBadRequest || apiErr.Code != want.code || !strings.Contains(apiErr.Message, want.says) || len(tape.status) != 1 {
				t.Errorf("%s: after %v: %v", fault, tape.status, err)
			}
			end := w.wait(tape.headers[0].Get(wire.HeaderJobID))
			if end.Reason == "" || !strings.Contains(end.Detail, want.says) {
				t.Errorf("%s: the job's reason is %q, %q", fault, end.Reason, end.Detail)
			}
		})
	}
}

// The events of a job, told while they happen and again to who comes late.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		labs[slackgate.Paid][0].tail = "1s"
		w := start(t, cfg, labs)
		v := w.submit(&client.Job{Text: document})
		begin := time.Now()
		var names []string
		var at []time.Duration
		end, err := w.client.Events(t.Context(), v.JobID, func(e client.Event) {
			names, at = append(names, e.Name), append(at, time.Since(begin).Round(100*time.Millisecond))
		})
		must(t, err)
		if strings.Join(names, " ") != "verdict running first_byte outcome" || end.Outcome != broker.OutcomeUsable {
			t.Errorf("events %v at %v, outcome %+v", names, at, end)
		}
		if at[1] > 200*time.Millisecond || at[2] < time.Second || at[2] > 1500*time.Millisecond || at[3] < 2*time.Second || at[3] > 2500*time.Millisecond {
			t.Errorf("events %v at %v: not live", names, at)
		}
		var again []string
		_, err = w.client.Events(t.Context(), v.JobID, func(e client.Event) {
			again = append(again, e.Name)
			if e.Name == wire.EventOutcome {
				var late broker.Job
				if err := json.Unmarshal(e.Data, &late); err != nil || late.Answer != end.Answer {
					t.Errorf("outcome %s: %v", e.Data, err)
				}
			}
		})
		must(t, err)
		if strings.Join(again, " ") != strings.Join(names, " ") {
			t.Errorf("events once more: %v", again)
		}
	})
}

// A pool that is left out does not keep a class that would also take it from
// the other one.
func TestPoolLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		cfg.Pools.Free.Limit = 0
		delete(labs, slackgate.Free)
		w := start(t, cfg, labs)
		v := w.submit(&client.Job{Text: document})
		if v.Path != slackgate.Paid {
			t.Fatalf("without a free pool: %s", v.Reason)
		}
		w.balance([]*broker.Job{w.wait(v.JobID)}, 0)
	})
}

// After a failover the model of an answer is the one that gave it, in the answer
// and wherever else it is shown; a client that books by model booked the class.
func TestAnswerNamesItsModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		const model = "lab-small"
		labs[slackgate.Paid] = []lives{{profile: "fixed:100ms", tail: "1s", slots: 2}, {profile: "fixed:100ms", tail: "1s", slots: 2, model: model}}
		w := start(t, cfg, labs)
		must(t, w.labs["paid-1"].SetFault(lab.Fault{Name: "context-length"}))
		c, tape := w.official()
		got, err := c.Chat.Completions.New(t.Context(), chatOf(document))
		must(t, err)
		h := tape.headers[0]
		if got.Model != model || h.Get(wire.HeaderClass) != "summary" || h.Get(wire.HeaderBackend) != "paid-2" || number(t, h, wire.HeaderAttempts) != 2 {
			t.Errorf("model %s, headers %v", got.Model, h)
		}
		if end := w.wait(h.Get(wire.HeaderJobID)); end.Model != model || end.Backend != "paid-2" {
			t.Errorf("job %+v", end)
		}
		stream := c.Chat.Completions.NewStreaming(t.Context(), chatOf(document))
		last := ""
		for stream.Next() {
			chunk := stream.Current()
			if chunk.Model != model {
				t.Errorf("a chunk of %s", chunk.Model)
			}
			if len(chunk.Choices) > 0 && chunk.Choices[0].FinishReason != "" {
				last = chunk.RawJSON()
			}
		}
		must(t, stream.Err())
		if want := `"leeway":{"class":"summary","backend":"paid-2","model":"` + model + `","attempts":2}`; !strings.Contains(last, want) {
			t.Errorf("the last chunk is %s, want %s", last, want)
		}
	})
}
