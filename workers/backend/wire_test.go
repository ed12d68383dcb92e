package backend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"leeway/broker"
	"leeway/rehearsal/pipenet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// notBilled is short for tables.
const notBilled = broker.KnownUnbilled

// dialect writes the events of one protocol, so that a fault is written once
// and played over all of them.
type dialect struct {
	protocol    Protocol
	path        string
	contentType string
	open        string              // before any text: a role chunk or its like
	text        func(string) string // one piece of answer text
	reasoning   func(string) string
	tool        string
	// worded is a piece of answer text that says in the same breath how the
	// answer ended.
	worded func(piece string, f Finish) string
	// end says how the answer ended, in the protocol's words; usage is left
	// out if in is negative.
	end        func(f Finish, in, out int) string
	terminator string
	comment    string // keeps the connection alive and says nothing
	whole      func(answer, reasoning string, f Finish, in, out int) string
}

func quoted(s string) string { b, _ := json.Marshal(s); return string(b) }

var openAIDialect = dialect{
	protocol:    OpenAI,
	path:        "/chat/completions",
	contentType: "text/event-stream",
	open:        `data: {"id":"c1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n",
	text: func(s string) string {
		return `data: {"id":"c1","choices":[{"index":0,"delta":{"content":` + quoted(s) + `},"finish_reason":null}],"usage":null}` + "\n\n"
	},
	reasoning: func(s string) string {
		return `data: {"id":"c1","choices":[{"index":0,"delta":{"reasoning_content":` + quoted(s) + `}}]}` + "\n\n"
	},
	tool: `data: {"id":"c1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"t","function":{"name":"f","arguments":"{}"}}]}}]}` + "\n\n",
	worded: func(s string, f Finish) string {
		return `data: {"id":"c1","choices":[{"index":0,"delta":{"content":` + quoted(s) + `},"finish_reason":` + quoted(openAIWords[f]) + `}]}` + "\n\n"
	},
	end: func(f Finish, in, out int) string {
		s := `data: {"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":` + quoted(openAIWords[f]) + `}]}` + "\n\n"
		if in >= 0 {
			s += fmt.Sprintf(`data: {"id":"c1","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`+"\n\n", in, out)
		}
		return s
	},
	terminator: "data: [DONE]\n\n",
	comment:    ": keep-alive\n\n",
	whole: func(answer, reasoning string, f Finish, in, out int) string {
		return fmt.Sprintf(`{"id":"c1","choices":[{"index":0,"message":{"role":"assistant","content":%s,"reasoning":%s},"finish_reason":%s}],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`,
			quoted(answer), quoted(reasoning), quoted(openAIWords[f]), in, out)
	},
}

var openAIWords = map[Finish]string{FinishStop: "stop", FinishLength: "length", FinishTool: "tool_calls", FinishFilter: "content_filter", FinishError: "error", FinishOther: "because"}

var anthropicDialect = dialect{
	protocol:    Anthropic,
	path:        "/messages",
	contentType: "text/event-stream; charset=utf-8",
	open:        "event: message_start\n" + `data: {"type":"message_start","message":{"id":"c1","type":"message","role":"assistant","content":[]}}` + "\n\n" + "event: ping\ndata: {\"type\": \"ping\"}\n\n",
	text: func(s string) string {
		return "event: content_block_delta\n" + `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":` + quoted(s) + `}}` + "\n\n"
	},
	reasoning: func(s string) string {
		return "event: content_block_delta\n" + `data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":` + quoted(s) + `}}` + "\n\n"
	},
	tool: "event: content_block_start\n" + `data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}` + "\n\n",
	worded: func(s string, f Finish) string {
		return "event: content_block_delta\n" + `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":` + quoted(s) + `}}` + "\n\n" +
			"event: message_delta\n" + `data: {"type":"message_delta","delta":{"stop_reason":` + quoted(anthropicWords[f]) + `}}` + "\n\n"
	},
	end: func(f Finish, in, out int) string {
		usage := ""
		if in >= 0 {
			usage = fmt.Sprintf(`,"usage":{"input_tokens":%d,"output_tokens":%d}`, in, out)
		}
		return "event: message_delta\n" + `data: {"type":"message_delta","delta":{"stop_reason":` + quoted(anthropicWords[f]) + `}` + usage + `}` + "\n\n"
	},
	terminator: "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
	comment:    ": keep-alive\n\n",
	whole: func(answer, reasoning string, f Finish, in, out int) string {
		return fmt.Sprintf(`{"id":"c1","type":"message","content":[{"type":"thinking","thinking":%s},{"type":"text","text":%s}],"stop_reason":%s,"usage":{"input_tokens":%d,"output_tokens":%d}}`,
			quoted(reasoning), quoted(answer), quoted(anthropicWords[f]), in, out)
	},
}

var anthropicWords = map[Finish]string{FinishStop: "end_turn", FinishLength: "max_tokens", FinishTool: "tool_use", FinishFilter: "refusal", FinishError: "error", FinishOther: "because"}

var ollamaDialect = dialect{
	protocol:    Ollama,
	path:        "/api/chat",
	contentType: "application/x-ndjson",
	text: func(s string) string {
		return `{"model":"m","message":{"role":"assistant","content":` + quoted(s) + `},"done":false}` + "\n"
	},
	reasoning: func(s string) string {
		return `{"model":"m","message":{"role":"assistant","content":"","thinking":` + quoted(s) + `},"done":false}` + "\n"
	},
	tool: `{"message":{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{}}}]},"done":false}` + "\n",
	worded: func(s string, f Finish) string {
		return `{"message":{"role":"assistant","content":` + quoted(s) + `},"done":true,"done_reason":` + quoted(openAIWords[f]) + "}\n"
	},
	end: func(f Finish, in, out int) string {
		usage := ""
		if in >= 0 {
			usage = fmt.Sprintf(`,"prompt_eval_count":%d,"eval_count":%d`, in, out)
		}
		return `{"message":{"role":"assistant","content":""},"done":true,"done_reason":` + quoted(openAIWords[f]) + usage + "}\n"
	},
	comment: "\n",
	whole: func(answer, reasoning string, f Finish, in, out int) string {
		return fmt.Sprintf(`{"message":{"content":%s,"thinking":%s},"done":true,"done_reason":%s,"prompt_eval_count":%d,"eval_count":%d}`,
			quoted(answer), quoted(reasoning), quoted(openAIWords[f]), in, out)
	},
}

var dialects = []*dialect{&openAIDialect, &anthropicDialect, &ollamaDialect}

// out writes a response piece by piece.
type out struct {
	w http.ResponseWriter
	r *http.Request
}

// send writes and flushes. A client that has gone ends the handler.
func (o *out) send(pieces ...string) {
	for _, p := range pieces {
		if _, err := io.WriteString(o.w, p); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	if err := http.NewResponseController(o.w).Flush(); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// sleep waits, or ends the handler when the client has gone.
func (o *out) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-o.r.Context().Done():
		panic(http.ErrAbortHandler)
	}
}

func (o *out) header(name, value string) { o.w.Header().Set(name, value) }

// got is what a call brought, and when.
type got struct {
	answer    Answer
	err       *Error
	took      time.Duration
	first     time.Duration
	firsts    int
	relayed   string
	reqHeader http.Header
	reqBody   []byte
}

// call plays one response to one call, in virtual time.
func call(t *testing.T, cfg Config, req Request, deadline time.Duration, d *dialect, play func(*out)) got {
	t.Helper()
	var g got
	synctest.Test(t, func(t *testing.T) {
		l := pipenet.Listen()
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			g.reqBody, _ = io.ReadAll(r.Body)
			g.reqHeader = r.Header.Clone()
			if r.URL.Path != "/v1"+d.path {
				t.Errorf("path %s", r.URL.Path)
			}
			w.Header().Set("Content-Type", d.contentType)
			play(&out{w, r})
		})}
		go func() { _ = srv.Serve(l) }()
		tr := newTransport()
		tr.DialContext = l.DialContext
		cfg.Name, cfg.Protocol, cfg.BaseURL, cfg.Model, cfg.Transport = "b", d.protocol, "http://backend/v1", "m", tr
		c, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		start := time.Now()
		g.answer, err = c.Generate(ctx, req, Observer{
			FirstByte: func(after time.Duration) { g.first = after; g.firsts++ },
			Text:      func(p string) { g.relayed += p },
		})
		g.took = time.Since(start)
		if err != nil && !errors.As(err, &g.err) {
			t.Fatalf("error of type %T: %v", err, err)
		}
		if g.answer.Whole != (err == nil) {
			t.Errorf("whole %v with error %v", g.answer.Whole, err)
		}
		if g.relayed != g.answer.Text {
			t.Errorf("relayed %q of %q", g.relayed, g.answer.Text)
		}
		tr.CloseIdleConnections()
		_ = srv.Close()
		_ = l
		synctest.Wait()
	})
	return g
}
