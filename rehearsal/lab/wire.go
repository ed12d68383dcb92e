package lab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
)

// Types of errors.
const (
	invalidRequest = "invalid_request_error"
	rateLimit      = "rate_limit_error"
	serverError    = "server_error"
)

// apiError is an error object of the OpenAI wire with its HTTP status.
type apiError struct {
	status  int
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// newError makes an error object; param and code may be empty, which is null
// on the wire.
func newError(status int, typ, param, code, message string) *apiError {
	e := &apiError{status: status, Type: typ, Message: message}
	if param != "" {
		e.Param = &param
	}
	if code != "" {
		e.Code = &code
	}
	return e
}

func badRequest(param, format string, args ...any) *apiError {
	return newError(http.StatusBadRequest, invalidRequest, param, "", fmt.Sprintf(format, args...))
}

// chunk is one event of a stream, or with object chat.completion a whole
// answer.
type chunk struct {
	ID      string          `json:"id"`
	Object  string          `json:"object"`
	Created int64           `json:"created"`
	Model   string          `json:"model"`
	Choices []choice        `json:"choices"`
	Usage   json.RawMessage `json:"usage,omitempty"`
	Error   any             `json:"error,omitempty"`
	Deduped bool            `json:"deduped,omitempty"`
	Padding string          `json:"lab_padding,omitempty"`
}

type choice struct {
	Index        int      `json:"index"`
	Delta        *content `json:"delta,omitempty"`
	Message      *content `json:"message,omitempty"`
	Logprobs     *string  `json:"logprobs"`
	FinishReason *string  `json:"finish_reason"`
}

// content is a delta of a stream or a whole message.
type content struct {
	Role             string     `json:"role,omitempty"`
	Content          *string    `json:"content,omitempty"`
	ReasoningContent string     `json:"reasoning_content,omitempty"`
	Reasoning        string     `json:"reasoning,omitempty"`
	Refusal          *string    `json:"refusal,omitempty"`
	ToolCalls        []toolCall `json:"tool_calls,omitempty"`
}

type toolCall struct {
	Index    int          `json:"index"`
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function toolFunction `json:"function"`
}

type toolFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// usage is the wire's usage block.
type usage struct {
	PromptTokens        int `json:"prompt_tokens"`
	CompletionTokens    int `json:"completion_tokens"`
	TotalTokens         int `json:"total_tokens"`
	PromptTokensDetails struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionTokensDetails struct {
		ReasoningTokens int `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

func newUsage(prompt, completion, reasoning int) usage {
	u := usage{PromptTokens: prompt, CompletionTokens: completion, TotalTokens: prompt + completion}
	u.CompletionTokensDetails.ReasoningTokens = reasoning
	return u
}

// modelObject is a model as GET /v1/models lists it.
type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

// newModel describes a model. The lab's models have no date: they are all of
// one fixed instant.
func newModel(id string) modelObject {
	return modelObject{ID: id, Object: "model", Created: 1_750_000_000, OwnedBy: "leeway-lab"}
}

// marshal encodes what cannot fail to encode.
func marshal(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("lab: %v", err)) // only our own structs come here
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// response is a response that is ready, whole and no stream.
type response struct {
	status int
	header http.Header
	body   []byte
}

func newResponse(status int, mime, body string) *response {
	return &response{status: status, header: http.Header{"Content-Type": {mime}}, body: []byte(body)}
}

func jsonResponse(status int, v any) *response {
	return newResponse(status, "application/json", string(marshal(v))+"\n")
}

func errorResponse(e *apiError) *response { return jsonResponse(e.status, errorObject{e}) }

// errorObject is an error as the body of a response has it.
type errorObject struct {
	Error *apiError `json:"error"`
}

func (r *response) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), r.header)
	w.WriteHeader(r.status)
	_, _ = w.Write(r.body) //nolint:gosec // JSON and event streams of made-up text; a client that has gone needs no answer
}
