package backend

import (
	"strings"
	"testing"
)

// A text that is too long is known by the words of each server, and is no
// rate limit and no fault of the server.
func TestOverflowInAnyWords(t *testing.T) {
	tests := []struct {
		name   string
		status int
		body   string
		retry  Retry
	}{
		{"OpenAI", 400, `{"error":{"message":"Your input exceeds the context window of this model.","code":"context_length_exceeded"}}`, RetryOtherModel},
		{"OpenAI, beyond the tokens of a minute", 429, `{"error":{"message":"Request too large for gpt on tokens per min (TPM): Limit 10000, Requested 20000.","type":"tokens","code":"rate_limit_exceeded"}}`, RetryOther},
		{"Groq", 413, `{"error":{"message":"Request too large for model: Limit 6000, Requested 9000","type":"tokens","code":"rate_limit_exceeded"}}`, RetryOther},
		{"Anthropic", 400, `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}`, RetryOtherModel},
		{"Anthropic, with the answer", 400, `{"type":"error","error":{"type":"invalid_request_error","message":"input length and max_tokens exceed context limit: 199000 + 4096 > 200000"}}`, RetryOtherModel},
		{"Anthropic, in bytes", 413, `{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}`, RetryOther},
		{"Bedrock", 400, `{"message":"Input is too long for requested model."}`, RetryOtherModel},
		{"Bedrock, Nova", 400, `{"message":"Too many input tokens. Max input tokens: 128000, request input token count: 150000"}`, RetryOtherModel},
		{"Gemini", 400, `{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}`, RetryOtherModel},
		{"Gemini, in an array", 400, `[{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]`, RetryOtherModel},
		{"vLLM", 400, `{"object":"error","message":"The decoder prompt (length 5000) is longer than the maximum model length of 4096.","type":"BadRequestError","code":400}`, RetryOtherModel},
		{"Ollama", 500, `{"error":"the input length exceeds the context length"}`, RetryOtherModel},
		{"llama.cpp", 400, `{"error":{"code":400,"message":"request (5000 tokens) exceeds the available context size (4096 tokens)","type":"exceed_context_size_error"}}`, RetryOtherModel},
		{"llama.cpp, of old", 500, `{"error":{"code":500,"message":"the request exceeds the available context size. try increasing the context size","type":"server_error"}}`, RetryOtherModel},
		{"TGI", 422, "{\"error\":\"Input validation error: `inputs` must have less than 4096 tokens. Given: 5000\",\"error_type\":\"validation\"}", RetryOtherModel},
		{"a proxy", 413, `<html><head><title>413 Request Entity Too Large</title></head></html>`, RetryOther},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w, _ := findError([]byte(tt.body))
			e := w.asError(tt.status)
			e.Status = tt.status
			if e.Reason != ReasonContextLength || e.Retry() != tt.retry {
				t.Errorf("%s, retry %d; want %s, retry %d", e.Reason, e.Retry(), ReasonContextLength, tt.retry)
			}
		})
	}
}

// A field that a backend does not take is known by the words of each server, and
// what to change in its options is said.
func TestUnsupportedInAnyWords(t *testing.T) {
	tests := []struct {
		name   string
		status int
		body   string
		reason Reason
		advice string
	}{
		{"OpenAI, the limit", 400, `{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","type":"invalid_request_error","param":"max_tokens","code":"unsupported_parameter"}}`, ReasonUnsupported, "set options.limit_field: max_completion_tokens"},
		{"OpenAI, the limit, without a param", 400, `{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","code":"unsupported_parameter"}}`, ReasonUnsupported, "set options.limit_field: max_completion_tokens"},
		{"OpenAI, a value", 400, `{"error":{"message":"Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) value is supported.","type":"invalid_request_error","param":"temperature","code":"unsupported_value"}}`, ReasonUnsupported, omit("temperature")},
		{"OpenAI, a stream", 400, `{"error":{"message":"Your organization must be verified to stream this model.","param":"stream","code":"unsupported_value"}}`, ReasonUnsupported, "set options.stream: false"},
		{"OpenAI, an effort", 400, `{"error":{"message":"Unsupported value: 'reasoning_effort' does not support 'minimal' with this model.","param":"reasoning_effort","code":"unsupported_value"}}`, ReasonUnsupported, adviseEffort},
		{"OpenAI, a role", 400, `{"error":{"message":"Unsupported value: 'messages[0].role' does not support 'system' with this model.","param":"messages[0].role","code":"unsupported_value"}}`, ReasonUnsupported, "no option changes that: use another model or protocol"},
		{"OpenAI, unknown", 400, `{"error":{"message":"Unknown parameter: 'top_kk'.","param":"top_kk","code":"unknown_parameter"}}`, ReasonUnsupported, "take top_kk out of options.body"},
		{"OpenAI, in a stream", 200, `{"error":{"message":"Unsupported parameter: 'seed'","code":"unsupported_parameter","param":"seed"}}`, ReasonUnsupported, omit("seed")},
		{"Azure", 400, `{"error":{"message":"Unrecognized request argument supplied: stream_options","type":"invalid_request_error","param":null,"code":null}}`, ReasonUnsupported, "set options.stream_usage: false"},
		{"Mistral", 422, `{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted","input":{}}]}`, ReasonUnsupported, "set options.stream_usage: false"},
		{"Mistral, another list", 422, `{"detail":[{"type":"missing","loc":["body","model"],"msg":"Field required"}]}`, ReasonBadRequest, ""},
		{"vLLM", 400, `{"object":"error","message":"[{'type': 'extra_forbidden', 'loc': ('body', 'service_tier'), 'msg': 'Extra inputs are not permitted', 'input': 'flex'}]","type":"BadRequestError","param":null,"code":400}`, ReasonUnsupported, omit("service_tier")},
		{"Anthropic", 400, `{"type":"error","error":{"type":"invalid_request_error","message":"min_p: Extra inputs are not permitted"}}`, ReasonUnsupported, "take min_p out of options.body"},
		{"Anthropic, thinking and temperature", 400, `{"type":"error","error":{"type":"invalid_request_error","message":"` + "`temperature`" + ` may only be set to 1 when thinking is enabled."}}`, ReasonUnsupported, omit("temperature")},
		{"Anthropic, a budget", 400, `{"type":"error","error":{"type":"invalid_request_error","message":"\"thinking.type.enabled\" is not supported for this model."}}`, ReasonUnsupported, "leave out options.reasoning_budget, or change options.reasoning_effort"},
		{"Gemini", 400, `[{"error":{"code":400,"message":"Invalid JSON payload received. Unknown name \"seed\": Cannot find field.","status":"INVALID_ARGUMENT"}}]`, ReasonUnsupported, omit("seed")},
		{"Groq", 400, `{"error":{"message":"property 'logit_bias' is unsupported","type":"invalid_request_error"}}`, ReasonUnsupported, "look at options.body for a field that it does not take"},
		{"xAI", 400, `{"code":"Client specified an invalid argument","error":"Argument not supported on this model: stop"}`, ReasonUnsupported, omit("stop")},
		{"llama.cpp", 400, `{"error":{"code":400,"message":"Unsupported param: n_probs","type":"invalid_request_error"}}`, ReasonUnsupported, "look at options.body for a field that it does not take"},
		{"LiteLLM", 400, `{"error":{"message":"litellm.UnsupportedParamsError: x does not support parameters: ['reasoning_effort']","type":"None","param":null,"code":"400"}}`, ReasonUnsupported, adviseEffort},
		{"Ollama", 400, `{"error":"\"gemma3\" does not support thinking"}`, ReasonUnsupported, "leave out options.reasoning_budget, or change options.reasoning_effort"},
		{"a hostile name", 400, `{"error":{"message":"no","param":"x\u001b[2J; rm -rf","code":"unknown_parameter"}}`, ReasonUnsupported, "look at options.body for a field that it does not take"},
		{"the text is too long, with a field's name", 400, `{"error":{"message":"This model's maximum context length is 16 tokens.","param":"messages","code":"context_length_exceeded"}}`, ReasonContextLength, ""},
		{"no reason", 400, `{"error":{"message":"The request could not be processed."}}`, ReasonBadRequest, ""},
		{"the words with another status", 500, `{"error":{"message":"Unsupported parameter: seed"}}`, ReasonUpstreamError, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w, _ := findError([]byte(tt.body))
			e := w.asError(tt.status)
			if e.Reason != tt.reason || e.Advice != tt.advice {
				t.Errorf("%s, %q; want %s, %q", e.Reason, e.Advice, tt.reason, tt.advice)
			}
			if tt.advice != "" && (e.Retry() != RetryOther || !strings.Contains(e.Error(), tt.advice)) {
				t.Errorf("retry %d, %v", e.Retry(), e)
			}
		})
	}
}
