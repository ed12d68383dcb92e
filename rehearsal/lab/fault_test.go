package lab

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// tableRows are the backend rows of the fault table; the lab must know each.
var tableRows = []string{
	"ok", "retry-after", "throttled", "flaky", "down", "flap", "reset", "silent", "headers-only", "slow", "stall", "drip",
	"cut", "bad-chunk", "no-done", "comments", "no-space", "big-line", "empty", "reasoning-only", "one-token", "tool-only",
	"error-in-200", "context-length", "refused", "auth", "usage-forms", "usage-missing", "usage-absurd", "usage-apart", "gzip",
	"prose-error", "paid-in-disguise", "cost-absurd",
}

// healthy is what an undisturbed client sees of the same request.
func healthy(l *lab, stream bool) reply {
	rep := l.send(ask{stream: stream, usage: true})
	l.ClearAttempts()
	return rep
}

// look checks one reply; ok is the undisturbed one.
type look func(t *testing.T, rep, ok reply)

func status(want int, contains string) look {
	return func(t *testing.T, rep, _ reply) {
		if rep.status != want || !strings.Contains(string(rep.raw), contains) {
			t.Errorf("status %d, body %.300s; want %d and %q", rep.status, rep.raw, want, contains)
		}
	}
}

// whole is an answer like the undisturbed one.
func whole(t *testing.T, rep, ok reply) {
	t.Helper()
	if rep.status != 200 || rep.err != nil || rep.bad != 0 || rep.text != ok.text || rep.finish != "stop" {
		t.Errorf("status %d, %v, %d bad events, finish %q, text %q", rep.status, rep.err, rep.bad, rep.finish, rep.text)
	}
}

// usageHas is a whole answer whose last usage block has what is wanted.
func usageHas(blocks int, want ...string) look {
	return func(t *testing.T, rep, ok reply) {
		whole(t, rep, ok)
		for _, w := range want {
			if !strings.Contains(rep.usage, w) {
				t.Errorf("usage %s, want %s in it", rep.usage, w)
			}
		}
		if blocks >= 0 && rep.usages != blocks {
			t.Errorf("%d usage blocks, want %d", rep.usages, blocks)
		}
	}
}

// part is the beginning of an answer, with neither finish reason nor
// terminator.
func part(broken bool, tokens int) look {
	return func(t *testing.T, rep, ok reply) {
		if rep.status != 200 || (rep.err != nil) != broken || rep.done || rep.finish != "" {
			t.Errorf("status %d, %v, done %v, finish %q", rep.status, rep.err, rep.done, rep.finish)
		}
		if n := CountTokens(rep.text); n != tokens || !strings.HasPrefix(ok.text, rep.text) {
			t.Errorf("%d tokens, want the first %d", n, tokens)
		}
	}
}

func both(a, b look) look {
	return func(t *testing.T, rep, ok reply) { a(t, rep, ok); b(t, rep, ok) }
}

func at(first, end time.Duration) look {
	return func(t *testing.T, rep, _ reply) {
		if rep.firstAt != first || rep.endAt != end {
			t.Errorf("first byte at %v, end at %v; want %v, %v", rep.firstAt, rep.endAt, first, end)
		}
	}
}

// faultCases are what a client sees of each fault within its patience, streaming; and
// not streaming, where that is something else. A nil look is the same.
var faultCases = []struct {
	name         string // with variant
	stream, body look
	ended        Ended
}{
	{"ok", usageHas(1, `"prompt_tokens":123`), nil, EndedOK},
	{"retry-after", both(status(429, "rate_limit"), header("Retry-After", "2")), nil, EndedFault},
	{"retry-after.date", both(status(429, "rate_limit"), header("Retry-After", "Sat, 01 Jan 2000 00:00:02 GMT")), nil, EndedFault},
	{"throttled", both(status(429, "rate_limit"), header("Retry-After", "")), nil, EndedFault},
	{"flaky", status(500, "server_error"), nil, EndedFault},
	{"down", status(503, "server_error"), nil, EndedFault},
	{"down.refused", resetSeen, nil, EndedFault},
	{"flap", status(503, "server_error"), nil, EndedFault},
	{"loading", status(503, "Loading model"), nil, EndedFault},
	{"reset", resetSeen, nil, EndedFault},
	{"silent", func(t *testing.T, rep, _ reply) {
		if !errors.Is(rep.dialErr, context.DeadlineExceeded) || rep.status != 0 || rep.endAt != patience {
			t.Errorf("%v, status %d at %v; want nothing until the client's deadline", rep.dialErr, rep.status, rep.endAt)
		}
	}, nil, EndedClientGone},
	{"headers-only", func(t *testing.T, rep, _ reply) {
		if rep.status != 200 || rep.headersAt != 0 || len(rep.raw) != 0 || rep.endAt != patience {
			t.Errorf("status %d at %v, %d bytes, end at %v", rep.status, rep.headersAt, len(rep.raw), rep.endAt)
		}
	}, nil, EndedClientGone},
	{"slow", both(whole, at(6*time.Second, 6*time.Second)), nil, EndedOK},
	{"slow.20s", both(whole, at(20*time.Second, 20*time.Second)), nil, EndedOK},
	{"stall", both(whole, at(0, 30*time.Second)), both(whole, at(30*time.Second, 30*time.Second)), EndedOK},
	{"drip", func(t *testing.T, rep, ok reply) {
		// One at once and one every five seconds, until the client's patience ends.
		part(true, 1+int(patience/(5*time.Second)))(t, rep, ok)
	}, nothingUntilDeadline, EndedClientGone},
	{"cut", part(false, 40), notJSON(false), EndedFault},
	{"cut.abrupt", part(true, 40), notJSON(true), EndedFault},
	{"bad-chunk", func(t *testing.T, rep, ok reply) {
		if rep.bad != 1 || CountTokens(rep.text) != CountTokens(ok.text)-1 || !rep.done || rep.finish != "stop" {
			t.Errorf("%d bad events, %d tokens of %d, done %v", rep.bad, CountTokens(rep.text), CountTokens(ok.text), rep.done)
		}
	}, notJSON(false), EndedOK},
	{"no-done", func(t *testing.T, rep, ok reply) {
		whole(t, rep, ok)
		if rep.done || rep.endAt != 0 {
			t.Errorf("done %v, end at %v", rep.done, rep.endAt)
		}
	}, whole, EndedOK},
	{"finish-early", words(`"finish_reason":"stop"`, 100), whole, EndedOK},
	{"finish-early.length", words(`"finish_reason":"length"`, 1), whole, EndedOK},
	{"finish-early.stop", words(`"finish_reason":"stop"`, 2), whole, EndedOK},
	{"comments", func(t *testing.T, rep, ok reply) {
		whole(t, rep, ok)
		if !bytes.HasPrefix(rep.raw, []byte(": keep-alive\n\n")) || bytes.Count(rep.raw, []byte(": keep-alive\n")) < 100 {
			t.Errorf("body begins %.60q", rep.raw)
		}
	}, whole, EndedOK},
	{"no-space", func(t *testing.T, rep, ok reply) {
		whole(t, rep, ok)
		if bytes.Contains(rep.raw, []byte("data: {")) || bytes.Contains(rep.raw, []byte("data:{\"id")) || !bytes.Contains(rep.raw, []byte("data:{\ndata: \"id")) {
			t.Errorf("body begins %.80q", rep.raw)
		}
	}, whole, EndedOK},
	{"no-space.space", func(t *testing.T, rep, ok reply) {
		whole(t, rep, ok)
		if bytes.Contains(rep.raw, []byte("data: ")) || !bytes.HasPrefix(rep.raw, []byte(`data:{"id"`)) {
			t.Errorf("body begins %.80q", rep.raw)
		}
	}, whole, EndedOK},
	{"no-space.lines", func(t *testing.T, rep, ok reply) {
		whole(t, rep, ok)
		if !bytes.HasPrefix(rep.raw, []byte("data: {\ndata:  \"id\"")) {
			t.Errorf("body begins %.80q", rep.raw)
		}
	}, whole, EndedOK},
	{"mislabelled", func(t *testing.T, rep, ok reply) {
		header("Content-Type", "text/event-stream")(t, rep, ok)
		if rep.firstAt >= 0 || !json.Valid(rep.raw) || len(rep.raw) < 8<<10 {
			t.Errorf("body begins %.80q", rep.raw)
		}
	}, nil, EndedOK},
	{"mislabelled.stream", both(header("Content-Type", "application/json"), status(200, "data: {")), whole, EndedOK},
	{"mislabelled.bom", status(200, "\ufeff{"), nil, EndedOK},
	{"mislabelled.201", status(201, `"finish_reason":"stop"`), nil, EndedOK},
	{"mislabelled.206", status(206, `"finish_reason":"stop"`), nil, EndedOK},
	{"pings", both(whole, status(200, "data: null")), whole, EndedOK},
	{"choice-index", both(whole, status(200, `"index":1,`)), nil, EndedOK},
	{"choice-index.growing", both(whole, status(200, `"index":100,`)), whole, EndedOK},
	{"empty-error", both(whole, status(200, `"error":{}`)), nil, EndedOK},
	{"empty-error.text", both(whole, status(200, `"error":""`)), nil, EndedOK},
	{"split-pair", status(200, `\ud83d"`), status(200, `\ud83d\ude00`), EndedOK},
	{"big-line", longest(100<<10, 1), longest(100<<10, 1), EndedOK},
	{"big-line.12MiB", longest(12<<20, 1), nil, EndedOK},
	{"big-line.lines", longest(0, 1_000_000), nil, EndedOK},
	{"empty", noText("stop", `"completion_tokens":32`), nil, EndedOK},
	{"empty.body", func(t *testing.T, rep, _ reply) {
		if rep.status != 200 || rep.err != nil || len(rep.raw) != 0 {
			t.Errorf("status %d, %v, body %.80q", rep.status, rep.err, rep.raw)
		}
	}, nil, EndedOK},
	{"empty.invisible", status(200, "\u200b"), nil, EndedOK},
	{"reasoning-only", reasoned(`"reasoning_content":"`), nil, EndedOK},
	{"reasoning-only.reasoning", reasoned(`"reasoning":"`), nil, EndedOK},
	{"one-token", func(t *testing.T, rep, ok reply) {
		if CountTokens(rep.text) != 1 || rep.finish != "stop" || !strings.Contains(rep.usage, `"completion_tokens":1,`) {
			t.Errorf("text %q, finish %q, usage %s", rep.text, rep.finish, rep.usage)
		}
	}, nil, EndedOK},
	{"tool-only", both(noText("tool_calls", `"completion_tokens":12`), status(200, `"tool_calls":[{`)), nil, EndedOK},
	{"error-in-200", both(noText("", ""), status(200, `{"error":{"message":`)), nil, EndedFault},
	{"error-in-200.choices", both(noText("", ""), status(200, `"choices":[],"error":{`)), nil, EndedFault},
	{"error-in-200.midstream", func(t *testing.T, rep, ok reply) {
		status(200, `"error":{"message":`)(t, rep, ok)
		if rep.text == "" || rep.text == ok.text || !strings.HasPrefix(ok.text, rep.text) || rep.finish != "error" {
			t.Errorf("text %q, finish %q", rep.text, rep.finish)
		}
	}, nil, EndedFault},
	{"context-length", status(400, `"code":"context_length_exceeded"`), nil, EndedFault},
	{"context-length.anthropic", status(400, `exceed context limit`), nil, EndedFault},
	{"context-length.bedrock", status(400, `Input is too long`), nil, EndedFault},
	{"context-length.gemini", status(400, `[{"error":{"code":400`), nil, EndedFault},
	{"context-length.vllm", status(400, `maximum model length`), nil, EndedFault},
	{"context-length.ollama", status(500, `exceeds the context length`), nil, EndedFault},
	{"context-length.llamacpp", status(500, `available context size`), nil, EndedFault},
	{"context-length.body", both(status(413, `Request Entity Too Large`), header("Content-Type", "text/html")), nil, EndedFault},
	{"context-length.tokens", status(413, `"code":"rate_limit_exceeded"`), nil, EndedFault},
	{"long-text", whole, nil, EndedOK}, // the text is short
	{"long-text.403", whole, nil, EndedOK},
	{"long-text.422", whole, nil, EndedOK},
	{"long-text.500", whole, nil, EndedOK},
	{"firewall", whole, nil, EndedOK},
	{"firewall.all", both(status(403, "<title>Request blocked"), header("Content-Type", "text/html; charset=utf-8")), nil, EndedFault},
	{"no-prefill", whole, nil, EndedOK},
	{"no-max-tokens", whole, nil, EndedOK}, // the request has no limit
	{"no-stream-options", status(400, "Unrecognized request argument supplied: stream_options"), nil, EndedFault},
	{"no-stream-options.mistral", status(422, `"loc":["body","stream_options"]`), nil, EndedFault},
	{"refused", status(400, `"code":"content_policy_violation"`), nil, EndedFault},
	{"refused.filter", status(400, `"code":"content_filter"`), nil, EndedFault},
	{"refused.finish", func(t *testing.T, rep, ok reply) {
		if rep.finish != "content_filter" || len(rep.text) >= len(ok.text) {
			t.Errorf("finish %q, text %q", rep.finish, rep.text)
		}
	}, nil, EndedOK},
	{"refused.refusal", both(noText("stop", `"completion_tokens"`), status(200, `"refusal":"`)), nil, EndedOK},
	{"auth", status(401, `"code":"invalid_api_key"`), nil, EndedFault},
	{"auth.403", status(403, `"code":"permission_denied"`), nil, EndedFault},
	{"usage-forms", both(usageHas(1, `"prompt_tokens":123`), status(200, `"choices":[],"usage":{`)), usageHas(1), EndedOK},
	{"usage-forms.last", both(usageHas(1, `"prompt_tokens":123`), status(200, `"finish_reason":"stop"}],"usage":{`)), usageHas(1), EndedOK},
	{"usage-forms.cumulative", func(t *testing.T, rep, ok reply) {
		// The role chunk, each token and the end.
		usageHas(CountTokens(ok.text)+2, `"prompt_tokens":123`)(t, rep, ok)
		if rep.usage != ok.usage {
			t.Errorf("last usage %s, want %s", rep.usage, ok.usage)
		}
	}, usageHas(1), EndedOK},
	{"usage-forms.late", both(usageHas(1, `"prompt_tokens":123`), at(0, 1500*time.Millisecond)), usageHas(1), EndedOK},
	{"usage-missing", both(usageHas(0), func(t *testing.T, rep, _ reply) {
		if bytes.Contains(rep.raw, []byte(`"usage"`)) {
			t.Errorf("there is a usage field")
		}
	}), nil, EndedOK},
	{"usage-missing.null", both(usageHas(0), status(200, `"usage":null`)), nil, EndedOK},
	{"usage-missing.zeros", usageHas(1, `"prompt_tokens":0,"completion_tokens":0`), nil, EndedOK},
	{"usage-absurd", usageHas(1, `"prompt_tokens":-123`, `"completion_tokens":-`), nil, EndedOK},
	{"usage-absurd.huge", usageHas(1, `"prompt_tokens":1000000000000000000`), nil, EndedOK},
	{"usage-absurd.strings", usageHas(1, `"prompt_tokens":"123"`), nil, EndedOK},
	{"usage-apart", usageHas(1, `"prompt_tokens":123`, `"reasoning_tokens":2809`), nil, EndedOK},
	{"usage-apart.untold", usageHas(1, `"prompt_tokens":123`, `"reasoning_tokens":2809`), nil, EndedOK},
	{"usage-apart.total", usageHas(1, `"prompt_tokens":123`, `"reasoning_tokens":0`), nil, EndedOK},
	{"usage-absurd.cached", usageHas(1, `"prompt_tokens":123`, `"cached_tokens":1123`), nil, EndedOK},
	{"usage-absurd.details", usageHas(1, `"prompt_tokens_details":"none"`), nil, EndedOK},
	{"gzip", zipped("gzip"), nil, EndedOK},
	{"gzip.undeclared", zipped(""), nil, EndedOK},
	{"prose-error", func(t *testing.T, rep, _ reply) {
		if !strings.HasPrefix(rep.text, "You have run out of credits.") || rep.finish != "stop" {
			t.Errorf("text %q, finish %q", rep.text, rep.finish)
		}
	}, nil, EndedOK},
	{"cost-absurd", usageHas(1, `"prompt_tokens":123`, `"cost":25`), nil, EndedOK},
	{"cost-absurd.zero", usageHas(1, `"prompt_tokens":123`, `"cost":0`), nil, EndedOK},
	{"cost-absurd.zeros", usageHas(1, `"prompt_tokens":0`, `"cost":0`), nil, EndedOK},
	{"paid-in-disguise", usageHas(1, `"cost":0.0023`), nil, EndedOK},
	{"not-an-answer", exactly(`{"ok":true,"bytes":0}`, "application/json"), nil, EndedFault},
	{"not-an-answer.html", both(status(200, "<!doctype html>"), header("Content-Type", "text/html; charset=utf-8")), nil, EndedFault},
	{"redirect", both(status(307, ""), header("Location", "http://192.0.2.1/v1/chat/completions")), nil, EndedFault},
}

// words is a whole answer with a finish reason at least so often.
func words(word string, least int) look {
	return func(t *testing.T, rep, ok reply) {
		whole(t, rep, ok)
		if n := strings.Count(string(rep.raw), word); n < least {
			t.Errorf("%s %d times, want %d", word, n, least)
		}
	}
}

// patience is how long the client of the fault tests waits.
const patience = 99 * time.Second

func header(name, want string) look {
	return func(t *testing.T, rep, _ reply) {
		if got := rep.header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func resetSeen(t *testing.T, rep, _ reply) {
	if !errors.Is(rep.dialErr, syscall.ECONNRESET) {
		t.Errorf("%v, status %d; want a reset before headers", rep.dialErr, rep.status)
	}
}

func nothingUntilDeadline(t *testing.T, rep, _ reply) {
	if !errors.Is(rep.dialErr, context.DeadlineExceeded) {
		t.Errorf("%v, status %d; want nothing until the deadline", rep.dialErr, rep.status)
	}
}

func notJSON(broken bool) look {
	return func(t *testing.T, rep, ok reply) {
		if rep.status != 200 || rep.bad != 1 || (rep.err != nil) != broken {
			t.Errorf("status %d, %d bad, %v", rep.status, rep.bad, rep.err)
		}
	}
}

func longest(size, lines int) look {
	return func(t *testing.T, rep, ok reply) {
		whole(t, rep, ok)
		most := 0
		n := 0
		for line := range bytes.SplitSeq(rep.raw, []byte("\n")) {
			most = max(most, len(line))
			n++
		}
		if most < size || n < lines || (size == 0 && most > 10_000) {
			t.Errorf("longest line %d bytes, %d lines; want %d, %d", most, n, size, lines)
		}
	}
}

func noText(finish, usage string) look {
	return func(t *testing.T, rep, _ reply) {
		if rep.status != 200 || rep.err != nil || rep.text != "" || rep.finish != finish || !strings.Contains(rep.usage, usage) {
			t.Errorf("status %d, %v, text %q, finish %q, usage %s", rep.status, rep.err, rep.text, rep.finish, rep.usage)
		}
	}
}

func reasoned(field string) look {
	return func(t *testing.T, rep, ok reply) {
		noText("length", `"completion_tokens":32`)(t, rep, ok)
		if !strings.Contains(rep.usage, `"reasoning_tokens":32`) || CountTokens(rep.reasoning) != 32 || !bytes.Contains(rep.raw, []byte(field)) {
			t.Errorf("usage %s, reasoning %q", rep.usage, rep.reasoning)
		}
	}
}

func zipped(encoding string) look {
	return func(t *testing.T, rep, ok reply) {
		z, err := gzip.NewReader(bytes.NewReader(rep.raw))
		if err != nil {
			t.Fatalf("%v: %.80q", err, rep.raw)
		}
		plain, err := io.ReadAll(z)
		if err != nil || !bytes.Contains(plain, []byte(`"finish_reason":"stop"`)) {
			t.Errorf("%v: %.80q", err, plain)
		}
		header("Content-Encoding", encoding)(t, rep, ok)
	}
}

func exactly(body, mime string) look {
	return func(t *testing.T, rep, ok reply) {
		if string(rep.raw) != body {
			t.Errorf("body %q, want %q", rep.raw, body)
		}
		header("Content-Type", mime)(t, rep, ok)
	}
}

func TestEveryFaultFromTheClientsSide(t *testing.T) {
	for _, tt := range faultCases {
		for _, stream := range []bool{true, false} {
			name, want := tt.name+"/stream", tt.stream
			if !stream {
				name = tt.name + "/body"
				if tt.body != nil {
					want = tt.body
				}
			}
			t.Run(name, func(t *testing.T) {
				inLab(t, Config{Slots: 1}, func(l *lab) {
					ok := healthy(l, stream)
					start := time.Now()
					ctx, cancel := context.WithTimeout(l.t.Context(), patience)
					defer cancel()
					rep := l.send(ask{model: FaultModelPrefix + tt.name, stream: stream, usage: true, ctx: ctx})
					want(t, rep, ok)
					synctest.Wait()
					attempts, _ := l.Attempts(0)
					if len(attempts) != 1 {
						t.Fatalf("%d attempts logged", len(attempts))
					}
					a := attempts[0]
					wantFault := tt.name
					if f, _ := (Fault{Name: tt.name}).parse(); !strings.Contains(wantFault, ".") {
						wantFault = f.String()
					}
					ended := tt.ended
					if a.Fault != wantFault || a.Ended != ended || a.Status != rep.status || a.Stream != stream {
						t.Errorf("attempt %+v, want fault %s ended %s with status %d", a, wantFault, ended, rep.status)
					}
					if sawText := rep.firstAt >= 0; sawText != (a.FirstByteMS >= 0) && !strings.HasPrefix(tt.name, "gzip") && tt.name != "mislabelled" && rep.bad == 0 {
						t.Errorf("attempt has first byte %v ms, client saw text: %v", a.FirstByteMS, sawText)
					}
					// Whatever happened, the only slot is free again.
					if st := l.State(); st.InService != 0 || time.Since(start) > patience {
						t.Errorf("state %+v after %v", st, time.Since(start))
					}
					whole(t, l.send(ask{stream: stream, usage: true}), ok)
				})
			})
		}
	}
}

func TestEveryFaultIsListedAndTested(t *testing.T) {
	var tested, known []string
	for _, c := range faultCases {
		tested = append(tested, FaultModelPrefix+c.name)
	}
	for _, m := range FaultModels() {
		if !slices.Contains(tested, m) {
			t.Errorf("%s has no test", m)
		}
	}
	for _, k := range FaultKinds() {
		known = append(known, k.Name)
	}
	for _, row := range tableRows {
		if !slices.Contains(known, row) {
			t.Errorf("%s of the fault table is not known", row)
		}
	}
}

func TestFaultsThatPass(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		statuses := func(n int, a ask) []int {
			var out []int
			for range n {
				out = append(out, l.send(a).status)
			}
			return out
		}
		for _, tt := range []struct {
			name string
			a    ask
			want []int
		}{
			{"flaky without a key, once for all", ask{model: "fault-flaky"}, []int{500, 200, 200}},
			{"flaky, once for a key", ask{model: "fault-flaky", key: "k1"}, []int{500, 200, 200}},
			{"flaky, once for another key", ask{model: "fault-flaky", key: "k2"}, []int{500, 200, 200}},
			{"retry-after", ask{model: "fault-retry-after", key: "k1"}, []int{429, 200, 200}},
			{"throttled does not pass", ask{model: "fault-throttled"}, []int{429, 429, 429}},
			{"by header", ask{fault: "throttled"}, []int{429, 429, 429}},
			{"the header goes before the model", ask{model: "fault-throttled", fault: "down"}, []int{503, 503, 503}},
			{"unknown header", ask{fault: "meteor"}, []int{400, 400, 400}},
			{"unknown variant", ask{fault: "slow.7s"}, []int{400, 400, 400}},
			{"unknown model", ask{model: "fault-meteor"}, []int{404, 404, 404}},
		} {
			if got := statuses(3, tt.a); !slices.Equal(got, tt.want) {
				t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
			}
		}
		set := func(f Fault) {
			if err := l.SetFault(f); err != nil {
				t.Fatal(err)
			}
		}
		set(Fault{Name: "flaky"})
		if got := statuses(2, ask{key: "k1"}); !slices.Equal(got, []int{500, 200}) {
			t.Errorf("set anew, flaky counts anew: %v", got)
		}
		set(Fault{Name: "down", Count: 2})
		if got := statuses(3, ask{}); !slices.Equal(got, []int{503, 503, 200}) {
			t.Errorf("count 2: %v", got)
		}
		set(Fault{Name: "down"})
		l.ClearFault()
		if got := statuses(1, ask{}); !slices.Equal(got, []int{200}) {
			t.Errorf("cleared: %v", got)
		}
	})
}

func TestFlapEndsAfterItsTime(t *testing.T) {
	for name, lasts := range map[string]time.Duration{"flap": 60 * time.Second, "loading": 3 * time.Second} {
		inLab(t, Config{}, func(l *lab) {
			if err := l.SetFault(Fault{Name: name}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour) // it is down from the first request on, not from when it was set
			for _, tt := range []struct {
				after time.Duration
				want  int
			}{{0, 503}, {lasts - 1, 503}, {1, 200}, {time.Hour, 200}} {
				time.Sleep(tt.after)
				if got := l.send(ask{}).status; got != tt.want {
					t.Errorf("%s, %v later: %d, want %d", name, tt.after, got, tt.want)
				}
			}
		})
	}
}

func TestFaultTimesCanBeSet(t *testing.T) {
	for _, tt := range []struct {
		f     Fault
		first time.Duration // negative: no text
		end   time.Duration
	}{
		{Fault{Name: "slow", MS: 9000}, 9 * time.Second, 9 * time.Second},
		{Fault{Name: "stall", MS: 7000}, 1200 * time.Millisecond, 8200 * time.Millisecond},
		{Fault{Name: "drip", MS: 10}, 1200 * time.Millisecond, 1200*time.Millisecond + 123*10*time.Millisecond},
		{Fault{Name: "empty.body", MS: 8000}, -1, 8 * time.Second},
		{Fault{Name: "throttled", MS: 500}, -1, 500 * time.Millisecond},
		{Fault{Name: "down"}, -1, 0},
		{Fault{Name: "down", MS: 500}, -1, 500 * time.Millisecond},
		{Fault{Name: "ok", MS: 50}, 50 * time.Millisecond, 50 * time.Millisecond},
	} {
		t.Run(fmt.Sprintf("%s for %d ms", tt.f.Name, tt.f.MS), func(t *testing.T) {
			inLab(t, Config{Profile: "fixed:1200ms"}, func(l *lab) {
				if err := l.SetFault(tt.f); err != nil {
					t.Fatal(err)
				}
				rep := l.send(ask{stream: true})
				if rep.firstAt != tt.first || rep.endAt != tt.end {
					t.Errorf("first byte at %v, end at %v; want %v, %v", rep.firstAt, rep.endAt, tt.first, tt.end)
				}
			})
		})
	}
}

// Comments come each second while the first byte is waited for.
func TestCommentsKeepTheConnectionAlive(t *testing.T) {
	inLab(t, Config{Profile: "fixed:3500ms"}, func(l *lab) {
		rep := l.send(ask{model: "fault-comments", stream: true})
		if rep.headersAt != 0 || rep.firstAt != 3500*time.Millisecond {
			t.Errorf("headers at %v, first byte at %v", rep.headersAt, rep.firstAt)
		}
		if before, _, _ := bytes.Cut(rep.raw, []byte("data:")); bytes.Count(before, []byte(": keep-alive")) != 5 {
			t.Errorf("%q before the first event, want a comment at 0, 1, 2, 3 s and before it", before)
		}
	})
}

// A connection really is refused, and open ones are cut, until health returns.
func TestRefused(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		for range 3 {
			if got := l.send(ask{}).status; got != 200 {
				t.Fatalf("healthy: %d", got)
			}
			if err := l.SetFault(Fault{Name: "down.refused"}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			for range 2 {
				if rep := l.send(ask{}); !errors.Is(rep.dialErr, syscall.ECONNREFUSED) {
					t.Errorf("%v, status %d; want refused", rep.dialErr, rep.status)
				}
			}
			l.ClearFault()
		}
	})
}

func TestBadRequests(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		msgs := `"messages":[{"role":"user","content":"Hi there."}]`
		for _, tt := range []struct {
			body  string
			want  int
			param string
		}{
			{``, 400, ""},
			{`[]`, 400, ""},
			{`{`, 400, ""},
			{"{\"model\":\"\xff\"}", 400, ""},
			{`{` + msgs + `}`, 400, "model"},
			{`{"model":"lab-summary"}`, 400, "messages"},
			{`{"model":"lab-summary","messages":[]}`, 400, "messages"},
			{`{"model":"lab-summary","messages":[{"role":"user","content":5}]}`, 400, "messages[0].content"},
			{`{"model":"lab-summary","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 400, "messages[0].content"},
			{`{"model":"lab-summary","messages":[{"role":"clown","content":"x"}]}`, 400, "messages[0].role"},
			{`{"model":"lab-summary","max_tokens":0,` + msgs + `}`, 400, "max_tokens"},
			{`{"model":"lab-summary","max_completion_tokens":-1,` + msgs + `}`, 400, "max_completion_tokens"},
			{`{"model":"lab-summary","max_tokens":1.5,` + msgs + `}`, 400, ""},
			{`{"model":"lab-summary","n":2,` + msgs + `}`, 400, "n"},
			{`{"model":"` + strings.Repeat("m", 201) + `",` + msgs + `}`, 400, "model"},
			{`{"model":"gpt",` + msgs + `}`, 404, "model"},
			{`{"model":"lab-summary","n":1,"temperature":0,"unknown":{},` + msgs + `}`, 200, ""},
			{`{"model":"lab-summary","messages":[{"role":"user","content":[{"type":"text","text":"Hi there."}]}]}`, 200, ""},
			{`{"model":"lab-summary","messages":[{"role":"user","content":null}]}`, 200, ""},
			{`{"model":"fault-no-prefill","messages":[{"role":"user","content":"Sum up."},{"role":"assistant","content":"In"}]}`, 400, "messages"},
			{`{"model":"fault-no-max-tokens","max_tokens":5,` + msgs + `}`, 400, "max_tokens"},
			{`{"model":"fault-no-max-tokens","max_completion_tokens":5,` + msgs + `}`, 200, ""},
			{strings.Repeat(" ", MaxBodyBytes) + `{}`, 413, ""},
		} {
			resp, err := l.client.Post("http://lab/v1/chat/completions", "application/json", strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Error struct{ Message, Type, Param string }
			}
			err = errors.Join(json.NewDecoder(resp.Body).Decode(&got), resp.Body.Close())
			if err != nil || resp.StatusCode != tt.want || got.Error.Param != tt.param {
				t.Errorf("%.120s: %d %+v, %v; want %d, param %q", tt.body, resp.StatusCode, got.Error, err, tt.want, tt.param)
			}
			if tt.want != http.StatusOK && (got.Error.Message == "" || got.Error.Type == "") {
				t.Errorf("%.120s: error %+v says nothing", tt.body, got.Error)
			}
		}
	})
}
