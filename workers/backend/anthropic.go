package backend

import (
	"encoding/json"
	"maps"
	"net/http"
)

// anthropicWire speaks Anthropic's messages.
var anthropicWire = wire{
	path:   "/messages",
	header: anthropicHeader,
	encode: encodeAnthropic,
	event:  anthropicEvent,
	whole:  anthropicWhole,
}

const (
	anthropicVersion = "2023-06-01"
	// anthropicMaxTokens is sent when a request sets no limit, because this
	// protocol wants one.
	anthropicMaxTokens = 4096
)

func anthropicHeader(cfg *Config, h http.Header) {
	h.Set("Anthropic-Version", anthropicVersion)
	if cfg.Key != "" {
		h.Set("X-Api-Key", string(cfg.Key))
	}
}

func encodeAnthropic(cfg *Config, r *Request) ([]byte, error) {
	body := maps.Clone(cfg.Options)
	if body == nil {
		body = make(map[string]any, 5)
	}
	body["model"] = cfg.Model
	body["messages"] = []message{{"user", r.Text}}
	body["stream"] = !cfg.NoStream
	body["max_tokens"] = anthropicMaxTokens
	if r.MaxOutputTokens > 0 {
		body["max_tokens"] = r.MaxOutputTokens
	}
	delete(body, "system")
	if r.System != "" {
		body["system"] = r.System
	}
	return json.Marshal(body)
}

// anthropicBlock is a content block, or the delta of one: the fields do not
// collide.
type anthropicBlock struct {
	Type     string `json:"type"`
	Text     text   `json:"text"`
	Thinking text   `json:"thinking"`
}

type anthropicEventBody struct {
	Type    string `json:"type"`
	Message *struct {
		ID    text            `json:"id"`
		Usage json.RawMessage `json:"usage"`
	} `json:"message"`
	ContentBlock *anthropicBlock `json:"content_block"`
	Delta        *struct {
		anthropicBlock
		StopReason text `json:"stop_reason"`
	} `json:"delta"`
	Usage json.RawMessage `json:"usage"`
}

func anthropicEvent(s *sink, name string, data []byte) (bool, error) {
	if err := reported(s, data, name == "error"); err != nil {
		return false, err
	}
	var ev anthropicEventBody
	if err := json.Unmarshal(data, &ev); err != nil {
		return false, &Error{Reason: ReasonBadAnswer, Detail: "not JSON of the protocol"}
	}
	if ev.Type == "" {
		return false, &Error{Reason: ReasonBadAnswer, Detail: "an event without a type"}
	}
	if ev.Message != nil {
		s.any = true
		s.named(string(ev.Message.ID))
		s.usage.merge(parseAnthropicUsage(ev.Message.Usage))
	}
	s.usage.merge(parseAnthropicUsage(ev.Usage))
	if ev.ContentBlock != nil {
		if err := s.anthropicBlock(ev.ContentBlock); err != nil {
			return false, err
		}
	}
	if ev.Delta != nil {
		if err := s.anthropicBlock(&ev.Delta.anthropicBlock); err != nil {
			return false, err
		}
		s.end(string(ev.Delta.StopReason))
	}
	// Types that are not known are to be passed over, says the protocol.
	return ev.Type == "message_stop", nil
}

func anthropicWhole(s *sink, body []byte) error {
	if err := reported(s, body, false); err != nil {
		return err
	}
	var m struct {
		Type       string           `json:"type"`
		ID         text             `json:"id"`
		Content    []anthropicBlock `json:"content"`
		StopReason text             `json:"stop_reason"`
		Usage      json.RawMessage  `json:"usage"`
	}
	if err := json.Unmarshal(body, &m); err != nil || m.Type != "message" {
		return &Error{Reason: ReasonBadAnswer, Detail: "not a message of the protocol"}
	}
	s.any = true
	s.named(string(m.ID))
	s.usage.merge(parseAnthropicUsage(m.Usage))
	for i := range m.Content {
		if err := s.anthropicBlock(&m.Content[i]); err != nil {
			return err
		}
	}
	s.end(string(m.StopReason))
	return nil
}

func (s *sink) anthropicBlock(b *anthropicBlock) error {
	switch b.Type {
	case "text", "text_delta":
		return s.addText(string(b.Text))
	case "thinking", "thinking_delta":
		s.addReasoning(string(b.Thinking))
	case "tool_use", "server_tool_use", "input_json_delta":
		s.any = true
		s.toolCall = true
	}
	return nil
}

// parseAnthropicUsage reads a usage block. What was read from or written to the
// cache is not part of input_tokens in this protocol; here it is.
func parseAnthropicUsage(b json.RawMessage) report {
	if len(b) == 0 || string(b) == "null" {
		return report{}
	}
	var u struct {
		Input      count `json:"input_tokens"`
		Output     count `json:"output_tokens"`
		CacheRead  count `json:"cache_read_input_tokens"`
		CacheWrite count `json:"cache_creation_input_tokens"`
		Cost       money `json:"cost"`
	}
	if err := json.Unmarshal(b, &u); err != nil {
		return report{bad: true}
	}
	r := report{input: u.Input, output: u.Output, cached: u.CacheRead, cost: u.Cost}
	r.bad = u.CacheWrite.bad
	if r.input.set {
		r.input.n += u.CacheRead.n + u.CacheWrite.n
	}
	return r
}
