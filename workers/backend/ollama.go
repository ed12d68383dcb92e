package backend

import (
	"bytes"
	"encoding/json"
)

// ollamaWire speaks Ollama's native chat, one JSON value a line.
var ollamaWire = wire{
	path:   "/api/chat",
	header: bearer, // Ollama wants no key, a proxy before it may
	body:   ollamaBody,
	event:  func(s *sink, _ string, data []byte) (bool, error) { return false, ollamaRead(s, data) },
	whole:  ollamaWhole,
	lines:  true,
}

func ollamaBody(c *Config, r *Request) fields {
	o := &r.Options
	body := fields{"model": c.Model, "messages": messages(r), "stream": !c.NoStream}
	switch o.ReasoningEffort {
	case "":
	case "none":
		body["think"] = false
	case "minimal":
		body["think"] = "low"
	case "xhigh", "max":
		body["think"] = "high"
	default:
		body["think"] = o.ReasoningEffort
	}
	options := fields{}
	options.limit("num_predict", r)
	put(options, "temperature", o.Temperature)
	options.list("stop", o.Stop)
	put(options, "seed", o.Seed)
	if len(options) > 0 {
		body["options"] = options
	}
	return body
}

func ollamaWhole(s *sink, body []byte) error {
	if json.Valid(body) {
		return ollamaRead(s, body)
	}
	// Lines after all, under the name of one JSON value.
	for line := range bytes.Lines(body) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if err := ollamaRead(s, line); err != nil {
			return err
		}
	}
	return nil
}

func ollamaRead(s *sink, data []byte) error {
	if err := reported(s, data, false); err != nil {
		return err
	}
	var v struct {
		Message *struct {
			Content   text            `json:"content"`
			Thinking  text            `json:"thinking"`
			ToolCalls json.RawMessage `json:"tool_calls"`
		} `json:"message"`
		Done       *bool `json:"done"`
		DoneReason text  `json:"done_reason"`
		Input      count `json:"prompt_eval_count"`
		Output     count `json:"eval_count"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return notOfProtocol("not JSON of the protocol")
	}
	s.any = s.any || v.Message != nil || v.Done != nil
	s.usage.merge(report{input: v.Input, output: v.Output})
	if m := v.Message; m != nil {
		s.toolCall = s.toolCall || says(m.ToolCalls)
		s.addReasoning(string(m.Thinking))
		if err := s.addText(string(m.Content)); err != nil {
			return err
		}
	}
	if v.Done == nil || !*v.Done {
		return nil
	}
	reason := string(v.DoneReason)
	if reason == "" {
		// Versions before done_reason said only that it was done.
		reason = "stop"
	}
	// No terminator: gateways put it into every line, and the body ends after it.
	s.end(reason)
	return nil
}
