package app_test

import (
	"errors"
	"strconv"
	"strings"
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
	"leeway/rehearsal/stage"
	"leeway/slackgate"
)

// met is what a client of the chat endpoint meets.
type met string

const (
	metAnswer  met = "usable"      // the whole answer, in time
	metError   met = "clean error" // an error and no text
	metPartial met = "partial"     // text, and then an error that takes it back
)

// sixteen are the faults that a gateway in front of a primary and a fallback is
// judged by, and what a client meets without a stream, or with one that begins
// once the answer is whole, and with one that is relayed live.
var sixteen = []struct {
	name        string
	primary     lab.Fault
	fallback    string // its fault
	whole, live met
}{
	{"429 with Retry-After", lab.Fault{Name: "retry-after"}, "ok", metAnswer, metAnswer},
	{"429 without", lab.Fault{Name: "throttled"}, "ok", metAnswer, metAnswer},
	{"500 once", lab.Fault{Name: "flaky"}, "ok", metAnswer, metAnswer},
	{"503 for ever", lab.Fault{Name: "down"}, "ok", metAnswer, metAnswer},
	{"reset before headers", lab.Fault{Name: "reset"}, "ok", metAnswer, metAnswer},
	{"no response", lab.Fault{Name: "silent"}, "ok", metAnswer, metAnswer},
	{"slow first token", lab.Fault{Name: "slow.20s"}, "ok", metAnswer, metAnswer},
	{"stream cut", lab.Fault{Name: "cut.abrupt"}, "ok", metAnswer, metPartial},
	{"stall", lab.Fault{Name: "stall"}, "ok", metAnswer, metPartial},
	{"malformed chunk", lab.Fault{Name: "bad-chunk"}, "ok", metAnswer, metPartial},
	{"no [DONE]", lab.Fault{Name: "no-done"}, "ok", metAnswer, metAnswer},
	{"context overflow", lab.Fault{Name: "context-length"}, "ok", metAnswer, metAnswer},
	{"content filter", lab.Fault{Name: "refused.filter", Count: 1}, "ok", metError, metError},
	{"cut, and the fallback refuses prefill", lab.Fault{Name: "cut"}, "no-prefill", metAnswer, metPartial},
	{"down for 60 s, then back", lab.Fault{Name: "flap"}, "ok", metAnswer, metAnswer},
	{"503, the fallback reports model and usage", lab.Fault{Name: "down"}, "usage-forms.last", metAnswer, metAnswer},
}

// Sixteen faults of a primary, met by the official client without a stream and
// with both kinds. Nothing ends but in a usable answer or in an error that says so, and
// the same pool serves the next small job, while the fault lasts.
func TestSixteenFaults(t *testing.T) {
	for _, way := range []struct {
		name     string
		deadline time.Duration
		relay    config.Relay // empty: no stream
	}{
		{"not streamed, 15 s", 15 * time.Second, ""},
		{"live, 15 s", 15 * time.Second, config.RelayLive},
		{"whole, 60 s", time.Minute, config.RelayWhole},
	} {
		for _, tt := range sixteen {
			t.Run(way.name+"/"+tt.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := pair(t)
					must(t, w.labs["primary"].SetFault(tt.primary))
					must(t, w.labs["fallback"].SetFault(lab.Fault{Name: tt.fallback}))
					want := tt.whole
					if way.relay == config.RelayLive {
						want = tt.live
					}
					begin := time.Now()
					got, end := w.chat(way.deadline, way.relay)
					if took := time.Since(begin); got != want || took > way.deadline {
						t.Errorf("%s after %v (%s by %s, %d attempts), want %s", got, took, end.Outcome, end.Backend, end.Attempts, want)
					}
					w.alive(way.deadline, "")
					if tt.primary.Name == "flap" {
						time.Sleep(time.Minute)
						w.alive(way.deadline, "primary")
					}
				})
			})
		}
	}
}

// pair is a paid pool of two backends with a model each.
func pair(t *testing.T) *world {
	cfg := config.Default()
	cfg.Pools.Free.Limit = 0
	cfg.Pools.Paid = config.Pool{Limit: 4, FirstByteP95MS: 800, HoldP95MS: 1800}
	cfg.Classes = config.Classes{"summary": {Prefer: config.PaidOnly}}
	cfg.Worker.PollMS = 100 // these tests take minutes
	var o stage.Options
	for _, name := range []string{"primary", "fallback"} {
		o.Labs = append(o.Labs, stage.Lab{Name: name, Path: slackgate.Paid, Model: name + "-model", Profile: "fixed:400ms", Tail: "1s"})
	}
	return startWith(t, cfg, nil, o)
}

// chat asks for a completion, streamed unless relay is empty, and returns what the
// client met and the job. A usable one is held against the job: the answer, the
// model, and the usage.
func (w *world) chat(deadline time.Duration, relay config.Relay) (met, *broker.Job) {
	w.t.Helper()
	c, tape := w.official()
	params := chatOf(document)
	opts := []option.RequestOption{option.WithMaxRetries(0), option.WithHeader(wire.HeaderDeadline, strconv.FormatInt(deadline.Milliseconds(), 10))}
	var got *openai.ChatCompletion
	var err error
	text := ""
	if relay != "" {
		opts = append(opts, option.WithJSONSet("relay", relay))
		params.StreamOptions.IncludeUsage = openai.Bool(true)
		stream := c.Chat.Completions.NewStreaming(w.t.Context(), params, opts...)
		var acc openai.ChatCompletionAccumulator
		for stream.Next() {
			acc.AddChunk(stream.Current())
		}
		got, err = &acc.ChatCompletion, stream.Err()
	} else {
		got, err = c.Chat.Completions.New(w.t.Context(), params, opts...)
	}
	if got != nil && len(got.Choices) > 0 {
		text = got.Choices[0].Message.Content
	}
	end := w.wait(tape.headers[0].Get(wire.HeaderJobID))
	var said *openai.Error
	switch {
	case err == nil:
		if end.Outcome != broker.OutcomeUsable || text == "" || text != end.Answer || got.Choices[0].FinishReason != "stop" {
			w.t.Errorf("%q is no answer of a job that is %s with %q", text, end.Outcome, end.Answer)
		}
		if u := got.Usage; u.CompletionTokens == 0 || u.PromptTokens != end.Usage.InputTokens || u.CompletionTokens != end.Usage.OutputTokens {
			w.t.Errorf("usage %s, the job's is %+v", u.RawJSON(), end.Usage)
		}
		if got.Model != end.Model || end.Model != end.Backend+"-model" {
			w.t.Errorf("model %q, the job's is %q by %s", got.Model, end.Model, end.Backend)
		}
		return metAnswer, end
	case !errors.As(err, &said) && !strings.Contains(err.Error(), "received error while streaming"):
		w.t.Errorf("the connection broke: %v", err)
	case end.Outcome == broker.OutcomeUsable || end.Answer != "":
		w.t.Errorf("%v, and the job is %s with %q", err, end.Outcome, end.Answer)
	}
	if text != "" {
		return metPartial, end
	}
	return metError, end
}

// alive holds that the pool serves a small job, by that backend if it is named.
func (w *world) alive(deadline time.Duration, by string) {
	w.t.Helper()
	v := w.submit(&client.Job{Text: document, DeadlineMS: deadline.Milliseconds()})
	if v.Path != slackgate.Paid {
		w.t.Errorf("the next job: %s", v.Reason)
		return
	}
	if end := w.wait(v.JobID); end.Outcome != broker.OutcomeUsable || by != "" && end.Backend != by {
		w.t.Errorf("the next job is %s by %s", end.Outcome, end.Backend)
	}
}
