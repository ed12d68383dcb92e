package backend

import (
	"encoding/json"
	"net/http"
)

// anthropicWire speaks Anthropic's messages.
var anthropicWire = wire{
	path:   "/messages",
	header: anthropicHeader,
	body:   anthropicBody,
	event: func(s *sink, name string, data []byte) (bool, error) {
		return anthropicRead(s, data, name == "error")
	},
	whole: func(s *sink, body []byte) error {
		_, err := anthropicRead(s, body, false)
		return err
	},
}

const (
	anthropicVersion = "2023-06-01"
	// anthropicMaxTokens is sent when a request sets no limit, because this
	// protocol wants one.
	anthropicMaxTokens = 4096
)

func anthropicHeader(key Secret, h http.Header) {
	h.Set("Anthropic-Version", anthropicVersion)
	if key != "" {
		h.Set("X-Api-Key", string(key))
	}
}

func anthropicBody(c *Config, r *Request) fields {
	o := &r.Options
	body := fields{
		"model": c.Model, "messages": []message{{"user", r.Text}}, "stream": !c.NoStream,
		"max_tokens": anthropicMaxTokens + o.Allowance(),
	}
	body.limit("max_tokens", r)
	body.say("system", r.System)
	put(body, "temperature", o.Temperature)
	switch o.ReasoningEffort {
	case "":
	case "none":
		body["thinking"] = fields{"type": "disabled"}
	case "minimal":
		body["output_config"] = fields{"effort": "low"}
	default:
		body["output_config"] = fields{"effort": o.ReasoningEffort}
	}
	if o.ReasoningBudget != nil && o.ReasoningEffort != "none" {
		body["thinking"] = fields{"type": "enabled", "budget_tokens": *o.ReasoningBudget}
	}
	body.say("service_tier", o.ServiceTier)
	body.list("stop_sequences", o.Stop)
	return body
}

// anthropicBlock is a content block, or the delta of one: the fields do not
// collide.
type anthropicBlock struct {
	Type     string `json:"type"`
	Text     text   `json:"text"`
	Thinking text   `json:"thinking"`
}

// anthropicMessage is an answer, or the beginning of one.
type anthropicMessage struct {
	Content    []anthropicBlock `json:"content"`
	StopReason text             `json:"stop_reason"`
	Usage      json.RawMessage  `json:"usage"`
}

// anthropicRead takes an event of a stream, or a whole message. isError is set
// when the event was named so.
func anthropicRead(s *sink, data []byte, isError bool) (done bool, err error) {
	if err := reported(s, data, isError); err != nil {
		return false, err
	}
	var v struct {
		Type string `json:"type"`
		anthropicMessage
		Message      *anthropicMessage `json:"message"`
		ContentBlock *anthropicBlock   `json:"content_block"`
		Delta        *struct {
			anthropicBlock
			StopReason text `json:"stop_reason"`
		} `json:"delta"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return false, notOfProtocol("not JSON of the protocol")
	}
	blocks, stop := v.Content, v.StopReason
	if v.Message != nil {
		s.any = true
		s.usage.merge(parseUsage[anthropicUsage](v.Message.Usage))
	}
	s.usage.merge(parseUsage[anthropicUsage](v.Usage))
	if v.ContentBlock != nil {
		blocks = append(blocks, *v.ContentBlock)
	}
	if v.Delta != nil {
		blocks, stop = append(blocks, v.Delta.anthropicBlock), v.Delta.StopReason
	}
	s.any = s.any || v.Type == "message"
	for i := range blocks {
		if err := s.anthropicBlock(&blocks[i]); err != nil {
			return false, err
		}
	}
	s.end(string(stop))
	// Types that are not known are to be passed over, says the protocol.
	return v.Type == "message_stop", nil
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

// anthropicUsage is the usage block of this protocol. What was read from or
// written to the cache is not part of its input_tokens; in a report it is.
type anthropicUsage struct {
	Input      count `json:"input_tokens"`
	Output     count `json:"output_tokens"`
	CacheRead  count `json:"cache_read_input_tokens"`
	CacheWrite count `json:"cache_creation_input_tokens"`
	Cost       money `json:"cost"`
}

func (u anthropicUsage) report() report {
	r := report{input: u.Input, output: u.Output, cached: u.CacheRead, cost: u.Cost.count, bad: u.CacheWrite.bad}
	if r.input.set {
		r.input.n += u.CacheRead.n + u.CacheWrite.n
	}
	return r
}
