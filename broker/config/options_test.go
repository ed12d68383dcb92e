package config

import (
	"fmt"
	"reflect"
	"testing"
)

func TestOptionsAreRead(t *testing.T) {
	c := parse(t, `
pools:
  paid:
    backends:
      - name: azure
        url: https://r.openai.azure.com/openai
        model: m
        key_env: AZURE_KEY
        key_header: api-key
        headers: {X-Team: blue}
        options:
          limit_field: max_completion_tokens
          temperature: 0
          reasoning_effort: low
          reasoning_tokens: 2000
          service_tier: flex
          stop: [END]
          seed: -7
          stream: false
          stream_usage: false
          path: /deployments/d/chat/completions
          query: {api-version: "2024-10-21"}
          body: {top_p: 0.5, limit: 1.5, reasoning: {exclude: true}, max_deadline_ms: 0}
`)
	got := c.Pools.Paid.Backends[0].Options
	want := BackendOptions{
		Options: Options{
			Temperature: new(0.0), ReasoningEffort: "low", ReasoningTokens: new(2000), ServiceTier: "flex", Stop: []string{"END"}, Seed: new(int64(-7)),
		},
		LimitField: "max_completion_tokens", Stream: new(false), StreamUsage: new(false),
		Path: "/deployments/d/chat/completions", Query: map[string]string{"api-version": "2024-10-21"},
		// What a request's fields are called is none of this file's business.
		Body: map[string]any{"top_p": 0.5, "limit": 1.5, "reasoning": map[string]any{"exclude": true}, "max_deadline_ms": uint64(0)},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	other := c.Pools.Paid.Backends[0]
	other.Options.Path = "/deployments/e/chat/completions"
	if other.Fingerprint() == c.Pools.Paid.Backends[0].Fingerprint() {
		t.Error("two deployments have one fingerprint")
	}
}

// Each mistake in a backend's options, by the field that the error names.
func TestBadOptions(t *testing.T) {
	const at = "pools.paid.backends[0]."
	for _, tt := range []struct{ field, backend string }{
		{"", "options: {temperature: 2, stop: [a, b, c, d]}"},
		{"options.temperature", "options: {temperature: 2.1}"},
		{"options.temperature", "options: {temperature: -0.1}"},
		{"options.temperature", "options: {temperature: .nan}"},
		{"", "protocol: anthropic, options: {temperature: 1}"},
		{"options.temperature", "protocol: anthropic, options: {temperature: 1.1}"},
		{"options.reasoning_effort", "options: {reasoning_effort: hard}"},
		{"options.reasoning_tokens", "options: {reasoning_tokens: 1.5}"},
		{"options.reasoning_budget", "options: {reasoning_budget: 2048}"},
		{"options.reasoning_budget", "protocol: anthropic, options: {reasoning_budget: 2048}"},
		{"options.reasoning_budget", "protocol: anthropic, options: {reasoning_budget: 2048, reasoning_tokens: 2047}"},
		{"options.service_tier", "options: {service_tier: 'a b'}"},
		{"options.service_tier", "protocol: anthropic, options: {service_tier: flex}"},
		{"options.service_tier", "protocol: ollama, options: {service_tier: auto}"},
		{"options.stop", "options: {stop: [a, b, c, d, e]}"},
		{"options.stop[1]", "options: {stop: [a, '']}"},
		{"options.seed", "protocol: anthropic, options: {seed: 1}"},
		{"options.seed", "options: {seed: 1.5}"},
		{"options.limit_field", "options: {limit_field: num_predict}"},
		{"options.limit_field", "protocol: anthropic, options: {limit_field: max_tokens}"},
		{"options.limit_field", "protocol: ollama, options: {limit_field: max_tokens}"},
		{"options.stream_usage", "protocol: ollama, options: {stream_usage: true}"},
		{"", "options: {omit: [temperature, reasoning_effort, reasoning_budget, reasoning_tokens, service_tier, stop, seed]}"},
		{"options.omit[1]", "options: {omit: [seed, max_tokens]}"},
		{"options.omit[0]", "options: {omit: [temperature], temperature: 0}"},
		{"options.path", "options: {path: chat}"},
		{"options.path", "options: {path: '/chat?a=b'}"},
		{"options.path", "options: {path: '/../admin'}"},
		{"options.path", "options: {path: '/%2e%2e/admin'}"},
		{"options.path", "options: {path: '//elsewhere/chat'}"},
		{"options.query", "options: {query: {'a&b': c}}"},
		{"options.query.a", "options: {query: {a: ''}}"},
		{"", "options: {body: {top_k: 5, options: {num_ctx: 8192}, thinking: {type: adaptive}}}"},
		{"options.body.Model", "options: {body: {Model: other}}"},
		{"options.body.prompt", "options: {body: {prompt: x}}"},
		{"options.body.n", "options: {body: {n: 2}}"},
		{"options.body.stream", "options: {body: {stream: false}}"},
		{"options.body.stream_options", "options: {body: {stream_options: {include_usage: true}}}"},
		{"options.body.seed", "options: {body: {seed: 1}}"},
		{"options.body.think", "options: {body: {think: true}}"},
		{"options.body.options.num_predict", "options: {body: {options: {num_predict: 5}}}"},
		{"options.body.options", "options: {body: {options: 5}}"},
		{"options.body.thinking.budget_tokens", "options: {body: {thinking: {budget_tokens: 5}}}"},
		{"options.body.reasoning.max_tokens", "options: {body: {reasoning: {max_tokens: 5}}}"},
		{"options.body", "options: {body: {x: .inf}}"},
		{"", "key_env: K, key_header: api-key"},
		{"key_header", "key_header: api-key"},
		{"key_header", "key_env: K, key_header: 'api key'"},
		{"key_header", "key_env: K, key_header: Content-Type"},
		{"key_header", "key_env: K, key_header: X-Gateway-Key, headers: {x-gateway-key: x}"},
		{"", "headers: {anthropic-version: '2023-06-01', OpenAI-Organization: o}"},
		{"headers.X-Api-Key", "headers: {X-Api-Key: x}"},
		{"headers.host", "headers: {host: x}"},
		{"headers.Transfer-Encoding", "headers: {Transfer-Encoding: chunked}"},
	} {
		want := tt.field
		if want != "" {
			want = at + want
		}
		_, err := Parse(fmt.Appendf(nil, oneBackend, tt.backend))
		if (err == nil) != (want == "") || fieldOf(err) != want {
			t.Errorf("%s: %v, want an error of %q", tt.backend, err, want)
		}
	}
}

const mixed = `
pools:
  paid:
    backends:
      - {name: a, url: "http://h/v1", model: m, options: {temperature: 0.5, reasoning_tokens: 1000, reasoning_effort: high, stop: [END]}}
      - {name: b, url: "http://h/v1", model: m, protocol: anthropic}
      - {name: plain, url: "http://h/v1", model: m, options: {omit: [temperature, reasoning_tokens, stop, seed]}}
  free:
    backends: [{name: c, url: "http://h", model: m, protocol: ollama}]
classes:
  summary: {}
  own: {%s}
`

// A class's options go before a backend's, field by field.
func TestOptionsOfAClass(t *testing.T) {
	c := parse(t, fmt.Sprintf(mixed, "options: {temperature: 0, reasoning_tokens: 0, stop: [], seed: 3}"))
	a := c.Backend("a")
	for _, tt := range []struct {
		class   string
		backend *Backend
		want    Options
	}{
		{"", a, a.Options.Options},
		{"summary", a, a.Options.Options},
		{"gone", a, a.Options.Options}, // as the default class
		{"own", a, Options{Temperature: new(0.0), ReasoningTokens: new(0), ReasoningEffort: "high", Stop: []string{}, Seed: new(int64(3))}},
		{"own", c.Backend("plain"), Options{}},
		{"own", c.Backend("b"), Options{Temperature: new(0.0), ReasoningTokens: new(0), Stop: []string{}, Seed: new(int64(3))}},
	} {
		if got := c.OptionsFor(tt.class, tt.backend); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("class %q at %s: %+v, want %+v", tt.class, tt.backend.Name, got, tt.want)
		}
	}
}

// A class may ask for what only some backends have a word for, and not for what
// one of them must refuse.
func TestBadOptionsOfAClass(t *testing.T) {
	for _, tt := range []struct{ field, class string }{
		{"", "options: {seed: 1, reasoning_effort: minimal, temperature: 1}"},
		{"options.temperature", "options: {temperature: 3}"},
		{"options.temperature", "options: {temperature: 1.5}"},
		{"", "prefer: free-only, options: {temperature: 1.5}"},
		{"options.service_tier", "options: {service_tier: flex}"},
		{"", "prefer: free-only, options: {service_tier: flex}"},
		{"options.reasoning_budget", "options: {reasoning_budget: 1024, reasoning_tokens: 1023}"},
		{"", "options: {reasoning_budget: 1024, reasoning_tokens: 1024}"},
	} {
		want := tt.field
		if want != "" {
			want = "classes.own." + want
		}
		_, err := Parse(fmt.Appendf(nil, mixed, tt.class))
		if (err == nil) != (want == "") || fieldOf(err) != want {
			t.Errorf("%s: %v, want an error of %q", tt.class, err, want)
		}
	}
}
