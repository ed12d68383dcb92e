package lab

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"leeway/rehearsal/lab/extract"
)

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
	prefilled    bool // it ends in the beginning of its own answer
	maxTokens    bool // it has max_tokens
	streamOpts   bool // it has stream_options
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
	req.maxTokens, req.streamOpts = in.MaxTokens != nil, in.StreamOptions != nil
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
		req.prefilled = m.Role == "assistant"
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
	var text string
	if len(raw) == 0 || json.Unmarshal(raw, &text) == nil { // null leaves it empty
		return text, nil
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

// answer summarises the request's text.
func (r *request) answer() answer {
	a := answer{
		pieces: splitTokens(extract.Summary(r.text, r.words)), finish: "stop", asked: r.text, prompt: r.promptTokens,
		prefilled: r.prefilled, maxTokens: r.maxTokens, streamOpts: r.streamOpts,
	}
	if r.limit >= 0 && len(a.pieces) > r.limit {
		a.pieces, a.finish = a.pieces[:r.limit], "length"
	}
	return a
}
