package backend

import "testing"

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
