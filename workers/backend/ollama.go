package backend

import (
	"bytes"
	"encoding/json"
	"maps"
)

// ollamaWire speaks Ollama's native chat, one JSON value a line.
var ollamaWire = wire{
	path:   "/api/chat",
	header: bearer, // Ollama wants no key, a proxy before it may
	encode: encodeOllama,
	event:  ollamaEvent,
	whole:  ollamaWhole,
	lines:  true,
}

func encodeOllama(cfg *Config, r *Request) ([]byte, error) {
	body := maps.Clone(cfg.Options)
	if body == nil {
		body = make(map[string]any, 4)
	}
	body["model"] = cfg.Model
	body["messages"] = messages(r)
	body["stream"] = !cfg.NoStream
	if r.MaxOutputTokens > 0 {
		// The limit is one of the model's options, which may be configured too.
		configured, _ := body["options"].(map[string]any)
		options := maps.Clone(configured)
		if options == nil {
			options = make(map[string]any, 1)
		}
		options["num_predict"] = r.MaxOutputTokens
		body["options"] = options
	}
	return json.Marshal(body)
}

func ollamaEvent(s *sink, _ string, data []byte) (bool, error) { return ollamaRead(s, data) }

func ollamaWhole(s *sink, body []byte) error {
	if json.Valid(body) {
		_, err := ollamaRead(s, body)
		return err
	}
	// Lines after all, under the name of one JSON value.
	for line := range bytes.Lines(body) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if done, err := ollamaRead(s, line); err != nil || done {
			return err
		}
	}
	return nil
}

func ollamaRead(s *sink, data []byte) (bool, error) {
	if err := reported(s, data, false); err != nil {
		return false, err
	}
	var v struct {
		Message *struct {
			Content   text              `json:"content"`
			Thinking  text              `json:"thinking"`
			ToolCalls []json.RawMessage `json:"tool_calls"`
		} `json:"message"`
		Done       *bool `json:"done"`
		DoneReason text  `json:"done_reason"`
		Input      count `json:"prompt_eval_count"`
		Output     count `json:"eval_count"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return false, &Error{Reason: ReasonBadAnswer, Detail: "not JSON of the protocol"}
	}
	if v.Message == nil && v.Done == nil {
		return false, &Error{Reason: ReasonBadAnswer, Detail: "neither message nor done"}
	}
	s.any = true
	s.usage.merge(report{input: v.Input, output: v.Output})
	if m := v.Message; m != nil {
		s.toolCall = s.toolCall || len(m.ToolCalls) > 0
		s.addReasoning(string(m.Thinking))
		if err := s.addText(string(m.Content)); err != nil {
			return false, err
		}
	}
	if v.Done == nil || !*v.Done {
		return false, nil
	}
	reason := string(v.DoneReason)
	if reason == "" {
		// Versions before done_reason said only that it was done.
		reason = "stop"
	}
	s.end(reason)
	return true, nil
}
