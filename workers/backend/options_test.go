package backend

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// taken is a transport that keeps the request and brings a whole answer.
type taken struct {
	d    *dialect
	req  *http.Request
	body []byte
}

func (t *taken) RoundTrip(req *http.Request) (*http.Response, error) {
	t.req = req
	t.body, _ = io.ReadAll(req.Body)
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(t.d.whole("Hello.", "", FinishStop, 3, 2))),
	}, nil
}

// requestOf is what a client with that configuration sends.
func requestOf(t *testing.T, d *dialect, cfg Config, r Request) *taken {
	t.Helper()
	tr := &taken{d: d}
	cfg.Name, cfg.Protocol, cfg.Model, cfg.Transport = "b", d.protocol, "m", tr
	if cfg.BaseURL == "" {
		cfg.BaseURL = "http://h/v1"
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Generate(t.Context(), r, Observer{}); err != nil {
		t.Fatal(err)
	}
	return tr
}

// Each option as each protocol has it; what a protocol has no word for is not sent.
func TestOptionsOnTheWire(t *testing.T) {
	plain := map[Protocol]string{
		OpenAI:    `{"max_tokens":99,"messages":[{"role":"user","content":"T"}],"model":"m","stream":true,"stream_options":{"include_usage":true}}`,
		Anthropic: `{"max_tokens":99,"messages":[{"role":"user","content":"T"}],"model":"m","stream":true}`,
		Ollama:    `{"messages":[{"role":"user","content":"T"}],"model":"m","options":{"num_predict":99},"stream":true}`,
	}
	// with is the plain body with fields changed (null: taken out); those of an
	// object are changed one by one.
	with := func(p Protocol, change string) string {
		var body, more map[string]any
		_ = json.Unmarshal([]byte(plain[p]), &body)
		if err := json.Unmarshal([]byte(change), &more); err != nil {
			t.Fatal(err)
		}
		var merge func(into, from map[string]any)
		merge = func(into, from map[string]any) {
			for k, v := range from {
				inner, both := v.(map[string]any)
				own, is := into[k].(map[string]any)
				switch {
				case v == nil:
					delete(into, k)
				case both && is:
					merge(own, inner)
				default:
					into[k] = v
				}
			}
		}
		merge(body, more)
		out, _ := json.Marshal(body)
		return string(out)
	}
	for _, tt := range []struct {
		name                      string
		cfg                       Config
		options                   Options
		openAI, anthropic, ollama string // what it changes
	}{
		{"none", Config{}, Options{}, `{}`, `{}`, `{}`},
		{"limit_field", Config{LimitField: LimitMaxCompletionTokens}, Options{}, `{"max_tokens":null,"max_completion_tokens":99}`, `{}`, `{}`},
		{"limit_field of a gateway", Config{LimitField: LimitMaxOutputTokens}, Options{}, `{"max_tokens":null,"max_output_tokens":99}`, `{}`, `{}`},
		{"reasoning_tokens", Config{}, Options{ReasoningTokens: new(1000)}, `{"max_tokens":1099}`, `{"max_tokens":1099}`, `{"options":{"num_predict":1099}}`},
		{"temperature of nothing", Config{}, Options{Temperature: new(0.0)}, `{"temperature":0}`, `{"temperature":0}`, `{"options":{"temperature":0}}`},
		{"seed", Config{}, Options{Seed: new(int64(7))}, `{"seed":7}`, `{}`, `{"options":{"seed":7}}`},
		{"stop", Config{}, Options{Stop: []string{"END"}}, `{"stop":["END"]}`, `{"stop_sequences":["END"]}`, `{"options":{"stop":["END"]}}`},
		{"stop, taken away", Config{}, Options{Stop: []string{}}, `{}`, `{}`, `{}`},
		{"service_tier", Config{}, Options{ServiceTier: "auto"}, `{"service_tier":"auto"}`, `{"service_tier":"auto"}`, `{}`},
		{"effort none", Config{}, Options{ReasoningEffort: "none"}, `{"reasoning_effort":"none"}`, `{"thinking":{"type":"disabled"}}`, `{"think":false}`},
		{"effort minimal", Config{}, Options{ReasoningEffort: "minimal"}, `{"reasoning_effort":"minimal"}`, `{"output_config":{"effort":"low"}}`, `{"think":"low"}`},
		{"effort medium", Config{}, Options{ReasoningEffort: "medium"}, `{"reasoning_effort":"medium"}`, `{"output_config":{"effort":"medium"}}`, `{"think":"medium"}`},
		{"effort xhigh", Config{}, Options{ReasoningEffort: "xhigh"}, `{"reasoning_effort":"xhigh"}`, `{"output_config":{"effort":"xhigh"}}`, `{"think":"high"}`},
		{
			"a budget", Config{}, Options{ReasoningBudget: new(2048), ReasoningTokens: new(4096)},
			`{"max_tokens":4195}`, `{"max_tokens":4195,"thinking":{"type":"enabled","budget_tokens":2048}}`, `{"options":{"num_predict":4195}}`,
		},
		{
			"a budget for no effort", Config{}, Options{ReasoningBudget: new(2048), ReasoningEffort: "none"},
			`{"reasoning_effort":"none"}`, `{"thinking":{"type":"disabled"}}`, `{"think":false}`,
		},
		{"no stream", Config{NoStream: true}, Options{}, `{"stream":false,"stream_options":null}`, `{"stream":false}`, `{"stream":false}`},
		{"no usage in the stream", Config{NoStreamUsage: true}, Options{}, `{"stream_options":null}`, `{}`, `{}`},
		{
			"a body", Config{Body: map[string]any{
				"top_p": 0.5, "options": map[string]any{"num_ctx": 8192, "num_predict": 1}, "model": "other",
				"thinking": map[string]any{"type": "adaptive"}, "output_config": map[string]any{"format": "x"},
			}}, Options{ReasoningEffort: "low"},
			`{"reasoning_effort":"low","top_p":0.5,"options":{"num_ctx":8192,"num_predict":1},"thinking":{"type":"adaptive"},"output_config":{"format":"x"}}`,
			`{"top_p":0.5,"options":{"num_ctx":8192,"num_predict":1},"thinking":{"type":"adaptive"},"output_config":{"effort":"low","format":"x"}}`,
			`{"think":"low","top_p":0.5,"options":{"num_ctx":8192},"thinking":{"type":"adaptive"},"output_config":{"format":"x"}}`,
		},
	} {
		for i, change := range []string{tt.openAI, tt.anthropic, tt.ollama} {
			d := dialects[i]
			t.Run(tt.name+", "+string(d.protocol), func(t *testing.T) {
				body := maps.Clone(tt.cfg.Body)
				got := requestOf(t, d, tt.cfg, Request{Text: "T", MaxOutputTokens: 99, Options: tt.options})
				var sent any
				_ = json.Unmarshal(got.body, &sent)
				if in, _ := json.Marshal(sent); string(in) != with(d.protocol, change) {
					t.Errorf("body %s\nwant %s", in, with(d.protocol, change))
				}
				accept := map[bool]string{true: "application/json"}[tt.cfg.NoStream]
				if a := got.req.Header.Get("Accept"); accept != "" && a != accept || accept == "" && !strings.Contains(a, ", ") {
					t.Errorf("Accept: %s", a)
				}
				// One request leaves nothing in the next.
				again := requestOf(t, d, tt.cfg, Request{Text: "T", MaxOutputTokens: 99, Options: tt.options})
				if !bytes.Equal(got.body, again.body) || len(body) != len(tt.cfg.Body) {
					t.Errorf("then %s", again.body)
				}
			})
		}
	}
	// Anthropic wants a limit in any case.
	got := requestOf(t, &anthropicDialect, Config{}, Request{Text: "T", Options: Options{ReasoningTokens: new(1000)}})
	if !strings.Contains(string(got.body), `"max_tokens":5096`) {
		t.Errorf("without a limit: %s", got.body)
	}
}

func TestAddressAndKey(t *testing.T) {
	azure := Config{
		BaseURL: "https://r.openai.azure.com/openai/", Path: "/deployments/d%2F1/chat/completions",
		Query: map[string]string{"api-version": "2024-10-21", "a b": "c&d"}, Key: "sk-secret", KeyHeader: "api-key",
	}
	for _, tt := range []struct {
		name   string
		d      *dialect
		cfg    Config
		url    string
		header map[string]string // "": not there
	}{
		{"the protocol's", &openAIDialect, Config{Key: "sk-secret"}, "http://h/v1/chat/completions", map[string]string{"Authorization": "Bearer sk-secret"}},
		{"the protocol's", &anthropicDialect, Config{Key: "sk-secret"}, "http://h/v1/messages", map[string]string{"X-Api-Key": "sk-secret", "Anthropic-Version": "2023-06-01"}},
		{
			"Azure's", &openAIDialect, azure, "https://r.openai.azure.com/openai/deployments/d%2F1/chat/completions?a+b=c%26d&api-version=2024-10-21",
			map[string]string{"Api-Key": "sk-secret", "Authorization": ""},
		},
		{
			"another header, and the version stays", &anthropicDialect, Config{Key: "sk-secret", KeyHeader: "X-Gateway-Key"}, "http://h/v1/messages",
			map[string]string{"X-Gateway-Key": "sk-secret", "X-Api-Key": "", "Anthropic-Version": "2023-06-01"},
		},
		{"another header without a key", &openAIDialect, Config{KeyHeader: "api-key"}, "http://h/v1/chat/completions", map[string]string{"Api-Key": "", "Authorization": ""}},
	} {
		t.Run(tt.name+", "+string(tt.d.protocol), func(t *testing.T) {
			got := requestOf(t, tt.d, tt.cfg, Request{Text: "T"})
			if u := got.req.URL.String(); u != tt.url {
				t.Errorf("address %s, want %s", u, tt.url)
			}
			for name, want := range tt.header {
				if v, there := got.req.Header[name]; there != (want != "") || there && !slices.Equal(v, []string{want}) {
					t.Errorf("%s: %q, want %q", name, v, want)
				}
			}
		})
	}
}

// What is kept for reasoning is part of the limit that is sent, and an answer that
// reasoning has left less than its own limit to is not whole.
func TestReasoningAllowance(t *testing.T) {
	usage := func(out, reasoning string) string {
		return `data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":` + out +
			`,"completion_tokens_details":{"reasoning_tokens":` + reasoning + "}}}\n\n"
	}
	d := &openAIDialect
	word := func(f Finish) string { return d.end(f, -1, 0) }
	for _, tt := range []struct {
		name   string
		kept   int
		body   []string
		reason Reason
		advice string
	}{
		{"an answer as long as may be, after less reasoning than was kept", 100, []string{d.text("x"), word(FinishLength), usage("150", "90")}, "", ""},
		{"an answer as long as its limit, after all of it", 100, []string{d.text("x"), word(FinishLength), usage("150", "101")}, "", ""},
		{"reasoning took from the answer", 100, []string{d.text("x"), word(FinishLength), usage("150", "140")}, ReasonTruncated, adviseAllowance},
		{"reasoning took from the answer, for which nothing was kept", 0, []string{d.text("x"), word(FinishLength), usage("50", "40")}, ReasonTruncated, adviseAllowance},
		{"it ended before what was sent", 100, []string{d.text("x"), word(FinishLength), usage("60", "0")}, ReasonTruncated, ""},
		{"reasoning took it all", 100, []string{word(FinishLength), usage("150", "150")}, ReasonEmpty, adviseAllowance},
		{"reasoning took it all, and was seen", 0, []string{d.reasoning("hm"), word(FinishLength), usage("50", "0")}, ReasonEmpty, adviseAllowance},
		{"an answer of nothing", 100, []string{word(FinishStop), usage("1", "0")}, ReasonEmpty, ""},
		{"an answer that ends by itself", 100, []string{d.text("x"), word(FinishStop), usage("140", "139")}, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := Request{Text: "T", MaxOutputTokens: 50, Options: Options{ReasoningTokens: &tt.kept}}
			g := call(t, Config{}, req, time.Minute, d, func(o *out) { o.send(append(tt.body, d.terminator)...) })
			reason, advice := Reason(""), ""
			if g.err != nil {
				reason, advice = g.err.Reason, g.err.Advice
			}
			if reason != tt.reason || advice != tt.advice {
				t.Errorf("%q, %q; want %q, %q", reason, advice, tt.reason, tt.advice)
			}
		})
	}
	p := Price{OutputMicroPerMTok: 1_000_000}
	if a, b := p.LargestCostMicro(10, 50, 100), p.LargestCostMicro(10, 0, 100); a != 150 || b != 110 {
		t.Errorf("largest costs %d and %d, want 150 and 110", a, b)
	}
}
