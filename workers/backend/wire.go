package backend

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// wire is one protocol.
type wire struct {
	// path is appended to the base URL.
	path string
	// header sets what the protocol wants besides the content type.
	header func(key Secret, h http.Header)
	// body is the request body, to be written as JSON.
	body func(c *Config, r *Request) fields
	// event takes one event of a stream (name is empty unless the protocol
	// names its events) and reports whether it was the terminator. One that
	// says nothing in the protocol's words is passed over.
	event func(s *sink, name string, data []byte) (done bool, err error)
	// whole takes what was sent in one piece.
	whole func(s *sink, body []byte) error
	// lines is set when a stream is one JSON value a line instead of SSE.
	lines bool
}

// wires holds every protocol, each from its own file.
var wires = map[Protocol]wire{
	OpenAI:    openAIWire,
	Anthropic: anthropicWire,
	Ollama:    ollamaWire,
}

// bearer sends the key as most services want it.
func bearer(key Secret, h http.Header) {
	if key != "" {
		h.Set("Authorization", "Bearer "+string(key))
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

// text is a piece of text in a response: a string, null, or a list of parts of
// which those of type "text" count. Anything else is no text. It may begin or
// end with half a character: see [unquote].
type text string

// UnmarshalJSON implements [json.Unmarshaler]. It accepts anything.
func (t *text) UnmarshalJSON(b []byte) error {
	*t = ""
	switch b[0] {
	case '"':
		*t = text(unquote(b))
	case '[':
		var parts []json.RawMessage
		if err := json.Unmarshal(b, &parts); err != nil {
			return err
		}
		var all strings.Builder
		for _, raw := range parts {
			var part struct {
				Type string `json:"type"`
				Text text   `json:"text"`
			}
			if json.Unmarshal(raw, &part) == nil && part.Type == "text" {
				all.WriteString(string(part.Text))
			}
		}
		*t = text(all.String())
	}
	return nil
}

// loose is a value that is left out where it cannot be read, so that what
// stands beside it can.
type loose[T any] struct {
	v   T
	bad bool // it could not be read
}

// UnmarshalJSON implements [json.Unmarshaler]. It accepts anything.
func (l *loose[T]) UnmarshalJSON(b []byte) error {
	if json.Unmarshal(b, &l.v) != nil {
		*l = loose[T]{bad: true}
	}
	return nil
}

// says reports whether a JSON value holds anything: a text, a number but zero,
// true, or something that has one of them inside.
func says(raw json.RawMessage) bool {
	var v any
	return !missing(raw) && (json.Unmarshal(raw, &v) != nil || holds(v))
}

func holds(v any) bool {
	switch v := v.(type) {
	case string:
		return strings.TrimSpace(v) != ""
	case float64:
		return v != 0
	case bool:
		return v
	case []any:
		return slices.ContainsFunc(v, holds)
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(v)), holds)
	}
	return false
}

// missing reports whether a field of a JSON object was left out or null.
func missing(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) == 0 || string(raw) == "null"
}

// notOfProtocol is what a reader says of a body that it cannot take.
func notOfProtocol(detail string) error { return &Error{Reason: ReasonBadAnswer, Detail: detail} }
