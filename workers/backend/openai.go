package backend

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
)

// openAIWire speaks OpenAI-compatible chat completions.
var openAIWire = wire{
	path:   "/chat/completions",
	header: bearer,
	encode: encodeOpenAI,
	event:  openAIEvent,
	whole:  openAIWhole,
}

// bearer sends the key as most services want it.
func bearer(cfg *Config, h http.Header) {
	if cfg.Key != "" {
		h.Set("Authorization", "Bearer "+string(cfg.Key))
	}
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// messages is the conversation: the instruction, if any, and the text.
func messages(r *Request) []message {
	m := make([]message, 0, 2)
	if r.System != "" {
		m = append(m, message{"system", r.System})
	}
	return append(m, message{"user", r.Text})
}

func encodeOpenAI(cfg *Config, r *Request) ([]byte, error) {
	body := maps.Clone(cfg.Options)
	if body == nil {
		body = make(map[string]any, 5)
	}
	body["model"] = cfg.Model
	body["messages"] = messages(r)
	body["stream"] = !cfg.NoStream
	delete(body, "stream_options")
	if !cfg.NoStream && !cfg.NoUsageOption {
		body["stream_options"] = map[string]bool{"include_usage": true}
	}
	if r.MaxOutputTokens > 0 {
		body[cfg.MaxTokensField] = r.MaxOutputTokens
	}
	return json.Marshal(body)
}

// text is a piece of text in a response: a string, null, or a list of parts of
// which those of type "text" count. Anything else is no text.
type text string

// UnmarshalJSON implements [json.Unmarshaler]. It accepts anything.
func (t *text) UnmarshalJSON(b []byte) error {
	*t = ""
	switch b[0] {
	case '"':
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		*t = text(s)
	case '[':
		var parts []json.RawMessage
		if err := json.Unmarshal(b, &parts); err != nil {
			return err
		}
		var all strings.Builder
		for _, raw := range parts {
			var part struct {
				Type string `json:"type"`
				Text string `json:"text"`
			}
			if json.Unmarshal(raw, &part) == nil && part.Type == "text" {
				all.WriteString(part.Text)
			}
		}
		*t = text(all.String())
	}
	return nil
}

// openAIMessage is a delta of a stream or the message of a whole answer.
type openAIMessage struct {
	Content          text              `json:"content"`
	ReasoningContent text              `json:"reasoning_content"`
	Reasoning        text              `json:"reasoning"`
	Refusal          text              `json:"refusal"`
	ToolCalls        []json.RawMessage `json:"tool_calls"`
	FunctionCall     json.RawMessage   `json:"function_call"`
}

// openAIChunk is one event of a stream or a whole answer.
type openAIChunk struct {
	ID      text `json:"id"`
	Choices *[]struct {
		Index        int            `json:"index"`
		Delta        *openAIMessage `json:"delta"`
		Message      *openAIMessage `json:"message"`
		FinishReason text           `json:"finish_reason"`
	} `json:"choices"`
	Usage json.RawMessage `json:"usage"`
}

func openAIEvent(s *sink, name string, data []byte) (bool, error) {
	if string(bytes.TrimSpace(data)) == "[DONE]" {
		s.any = true
		return true, nil
	}
	return false, openAIRead(s, data, name == "error")
}

func openAIWhole(s *sink, body []byte) error { return openAIRead(s, body, false) }

// openAIRead takes one JSON value. isError is set when the event was named so.
func openAIRead(s *sink, data []byte, isError bool) error {
	if err := reported(s, data, isError); err != nil {
		return err
	}
	var chunk openAIChunk
	if err := json.Unmarshal(data, &chunk); err != nil {
		return &Error{Reason: ReasonBadAnswer, Detail: "not JSON of the protocol"}
	}
	usage := parseOpenAIUsage(chunk.Usage)
	s.usage.merge(usage)
	if chunk.Choices == nil {
		// Some servers leave out choices in the chunk that holds the usage.
		if len(chunk.Usage) == 0 {
			return &Error{Reason: ReasonBadAnswer, Detail: "neither choices nor usage"}
		}
		return nil
	}
	s.any = true
	s.named(string(chunk.ID))
	for i := range *chunk.Choices {
		choice := &(*chunk.Choices)[i]
		if choice.Index != 0 {
			continue
		}
		m := choice.Delta
		if m == nil {
			m = choice.Message
		}
		if m != nil {
			if err := s.openAIMessage(m); err != nil {
				return err
			}
		}
		s.end(string(choice.FinishReason))
	}
	return nil
}

func (s *sink) openAIMessage(m *openAIMessage) error {
	s.toolCall = s.toolCall || len(m.ToolCalls) > 0 || (len(m.FunctionCall) > 0 && !bytes.Equal(m.FunctionCall, []byte("null")))
	s.refusal = s.refusal || strings.TrimSpace(string(m.Refusal)) != ""
	// Servers that know both names for reasoning send the same text twice.
	if m.ReasoningContent != "" {
		s.addReasoning(string(m.ReasoningContent))
	} else {
		s.addReasoning(string(m.Reasoning))
	}
	return s.addText(string(m.Content))
}

// named keeps the backend's own name for the answer.
func (s *sink) named(id string) {
	if s.id == "" && id != "" {
		s.id = clean(id[:min(len(id), 128)])
	}
}

// reported is the error a backend put in a place where an answer was expected.
// isError is set when the event itself was named so.
func reported(s *sink, data []byte, isError bool) error {
	// Each form of an error object holds the word; most events do not.
	if !isError && !bytes.Contains(data, []byte("error")) {
		return nil
	}
	w, found := findError(data)
	if !found && !isError {
		return nil
	}
	s.any = true
	e := &Error{Reason: classify(http.StatusOK, w)}
	// Services quote parts of the key when they refuse it.
	if e.Reason != ReasonAuth {
		e.Detail = w.message
	}
	return e
}

// findError looks for an error object in a body, in the forms servers use:
// {"error": {...}}, {"error": "..."}, {"object": "error", ...},
// {"type": "error", "error": {...}}, {"detail": ...} and {"message": ...}
// beside an error code.
func findError(data []byte) (wireError, bool) {
	var body struct {
		Error   json.RawMessage `json:"error"`
		Object  text            `json:"object"`
		Type    text            `json:"type"`
		Code    json.RawMessage `json:"code"`
		Message text            `json:"message"`
		Detail  text            `json:"detail"`
	}
	if json.Unmarshal(data, &body) != nil {
		return wireError{}, false
	}
	top := wireError{code: scalar(body.Code), kind: string(body.Type), message: string(body.Message)}
	if top.message == "" {
		top.message = string(body.Detail)
	}
	if len(body.Error) == 0 || bytes.Equal(body.Error, []byte("null")) || bytes.Equal(body.Error, []byte("false")) {
		return top, body.Object == "error" || body.Type == "error"
	}
	var inner struct {
		Code    json.RawMessage `json:"code"`
		Type    text            `json:"type"`
		Message text            `json:"message"`
	}
	if json.Unmarshal(body.Error, &inner) == nil {
		return wireError{code: scalar(inner.Code), kind: string(inner.Type), message: string(inner.Message)}, true
	}
	top.message = scalar(body.Error)
	return top, true
}

// scalar is the text of a JSON string or number.
func scalar(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	if len(raw) > 0 && len(raw) <= 32 && raw[0] != '{' && raw[0] != '[' {
		return string(raw)
	}
	return ""
}
