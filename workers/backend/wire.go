package backend

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
)

// wire is one protocol.
type wire struct {
	// path is appended to the base URL.
	path string
	// header sets what the protocol wants besides the content type.
	header func(key Secret, h http.Header)
	// body is the request body, to be written as JSON.
	body func(model string, r *Request) map[string]any
	// event takes one event of a stream (name is empty unless the protocol
	// names its events) and reports whether it was the terminator.
	event func(s *sink, name string, data []byte) (done bool, err error)
	// whole takes an answer sent in one piece.
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
// which those of type "text" count. Anything else is no text.
type text string

// UnmarshalJSON implements [json.Unmarshaler]. It accepts anything.
func (t *text) UnmarshalJSON(b []byte) error {
	*t = ""
	switch b[0] {
	case '"':
		return json.Unmarshal(b, (*string)(t))
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

// missing reports whether a field of a JSON object was left out or null.
func missing(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) == 0 || string(raw) == "null"
}

// notOfProtocol is what a reader says of a body that it cannot take.
func notOfProtocol(detail string) error { return &Error{Reason: ReasonBadAnswer, Detail: detail} }
