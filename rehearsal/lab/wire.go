package lab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// apiError is an error object of the OpenAI wire with its HTTP status.
type apiError struct {
	status  int
	header  map[string]string // sent along, such as Retry-After
	Message string            `json:"message"`
	Type    string            `json:"type"`
	Param   *string           `json:"param"`
	Code    *string           `json:"code"`
}

func (e *apiError) Error() string { return e.Message }

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
	return newError(http.StatusBadRequest, "invalid_request_error", param, "", fmt.Sprintf(format, args...))
}

// Bounds on a request.
const (
	maxMessages = 1024
	maxParts    = 1024
	maxModel    = 200 // bytes of a model name
)

// chatRequest is the part of the wire's request that the lab reads. Fields it
// does not know are ignored, as compatible servers do.
type chatRequest struct {
	Model         string        `json:"model"`
	Messages      []chatMessage `json:"messages"`
	Stream        bool          `json:"stream"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	MaxTokens           *int64 `json:"max_tokens"`
	MaxCompletionTokens *int64 `json:"max_completion_tokens"`
	N                   *int64 `json:"n"`
}

type chatMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// request is a decoded request, checked.
type request struct {
	model        string
	text         string // of the user's messages
	words        int    // how many words the summary may have
	limit        int    // how many tokens the answer may have; negative: any number
	promptTokens int
	stream       bool
	includeUsage bool
}

// decodeRequest reads a request body. The error's status is 400.
func decodeRequest(body []byte) (*request, *apiError) {
	if !utf8.Valid(body) {
		return nil, badRequest("", "the body is not valid UTF-8")
	}
	var in chatRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, badRequest("", "the body is not a valid request: %v", err)
	}
	if in.Model == "" || len(in.Model) > maxModel {
		return nil, badRequest("model", "model: want a name of 1 to %d bytes", maxModel)
	}
	if len(in.Messages) == 0 || len(in.Messages) > maxMessages {
		return nil, badRequest("messages", "messages: want 1 to %d", maxMessages)
	}
	if in.N != nil && *in.N != 1 {
		return nil, badRequest("n", "n: only 1 is supported")
	}
	req := &request{model: in.Model, stream: in.Stream, limit: -1, words: MaxSummaryWords}
	req.includeUsage = in.StreamOptions != nil && in.StreamOptions.IncludeUsage
	for _, field := range [...]struct {
		name  string
		limit *int64
	}{{"max_tokens", in.MaxTokens}, {"max_completion_tokens", in.MaxCompletionTokens}} {
		if field.limit == nil {
			continue
		}
		if *field.limit < 1 {
			return nil, badRequest(field.name, "%s: want 1 or more", field.name)
		}
		// No summary comes near a million tokens.
		if n := int(min(*field.limit, 1_000_000)); req.limit < 0 || n < req.limit {
			req.limit = n
		}
	}
	var user []string
	for i, m := range in.Messages {
		text, err := contentText(m.Content)
		if err != nil {
			return nil, badRequest(fmt.Sprintf("messages[%d].content", i), "messages[%d].content: %v", i, err)
		}
		req.promptTokens += CountTokens(text)
		switch m.Role {
		case "user":
			user = append(user, text)
		case "system", "developer":
			req.words = min(req.words, askedWords(text))
		case "assistant", "tool", "function":
		default:
			return nil, badRequest(fmt.Sprintf("messages[%d].role", i), "messages[%d].role: unknown role %.32q", i, m.Role)
		}
	}
	req.text = strings.Join(user, "\n\n")
	return req, nil
}

// contentText returns the text of a message's content: a string, a list of
// text parts, or null.
func contentText(raw json.RawMessage) (string, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	if raw[0] == '"' {
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", fmt.Errorf("want a string or a list of parts: %w", err)
	}
	if len(parts) > maxParts {
		return "", fmt.Errorf("more than %d parts", maxParts)
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		if p.Type != "text" {
			return "", fmt.Errorf("part %d is of type %.32q: only text is supported", i, p.Type)
		}
		texts[i] = p.Text
	}
	return strings.Join(texts, "\n"), nil
}

var wordLimit = regexp.MustCompile(`\b(\d{1,4})[ -]words?\b`)

// askedWords returns the smallest number of words that a system prompt names,
// as in "at most 120 words" or "a 200-word summary".
func askedWords(prompt string) int {
	least := MaxSummaryWords
	for _, m := range wordLimit.FindAllStringSubmatch(prompt, 16) {
		if n, err := strconv.Atoi(m[1]); err == nil && n > 0 {
			least = min(least, n)
		}
	}
	return least
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
	Error   *apiError       `json:"error,omitempty"`
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
	Index    int    `json:"index"`
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// usage is the wire's usage block.
type usage struct {
	PromptTokens        int64 `json:"prompt_tokens"`
	CompletionTokens    int64 `json:"completion_tokens"`
	TotalTokens         int64 `json:"total_tokens"`
	PromptTokensDetails struct {
		CachedTokens int64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionTokensDetails struct {
		ReasoningTokens int64 `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

func newUsage(prompt, completion, reasoning int) usage {
	u := usage{PromptTokens: int64(prompt), CompletionTokens: int64(completion), TotalTokens: int64(prompt + completion)}
	u.CompletionTokensDetails.ReasoningTokens = int64(reasoning)
	return u
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

// writeError answers with an error object.
func writeError(w http.ResponseWriter, e *apiError) {
	for k, v := range e.header {
		w.Header().Set(k, v)
	}
	writeJSON(w, e.status, struct {
		Error *apiError `json:"error"`
	}{e})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body := marshal(v)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a client that has gone needs no answer
}
