package backend

import (
	"encoding/json"
	"strings"
)

// openAIWire speaks OpenAI-compatible chat completions.
var openAIWire = wire{
	path:   "/chat/completions",
	header: bearer,
	body:   openAIBody,
	event:  openAIEvent,
	whole:  func(s *sink, body []byte) error { return openAIRead(s, body, false) },
}

func openAIBody(model string, r *Request) map[string]any {
	body := map[string]any{
		"model": model, "messages": messages(r),
		"stream": true, "stream_options": map[string]bool{"include_usage": true},
	}
	if r.MaxOutputTokens > 0 {
		body["max_tokens"] = r.MaxOutputTokens
	}
	return body
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
	Choices *[]struct {
		Index        int            `json:"index"`
		Delta        *openAIMessage `json:"delta"`
		Message      *openAIMessage `json:"message"`
		FinishReason text           `json:"finish_reason"`
	} `json:"choices"`
	Usage json.RawMessage `json:"usage"`
}

func openAIEvent(s *sink, name string, data []byte) (bool, error) {
	if strings.TrimSpace(string(data)) == "[DONE]" {
		s.any = true
		return true, nil
	}
	return false, openAIRead(s, data, name == "error")
}

// openAIRead takes one JSON value. isError is set when the event was named so.
func openAIRead(s *sink, data []byte, isError bool) error {
	if err := reported(s, data, isError); err != nil {
		return err
	}
	var chunk openAIChunk
	if err := json.Unmarshal(data, &chunk); err != nil {
		return notOfProtocol("not JSON of the protocol")
	}
	s.usage.merge(parseUsage[openAIUsage](chunk.Usage))
	if chunk.Choices == nil {
		// Some servers leave out choices in the chunk that holds the usage.
		if len(chunk.Usage) == 0 {
			return notOfProtocol("neither choices nor usage")
		}
		return nil
	}
	s.any = true
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
	s.toolCall = s.toolCall || len(m.ToolCalls) > 0 || !missing(m.FunctionCall)
	s.refusal = s.refusal || strings.TrimSpace(string(m.Refusal)) != ""
	// Servers that know both names for reasoning send the same text twice.
	if m.ReasoningContent != "" {
		s.addReasoning(string(m.ReasoningContent))
	} else {
		s.addReasoning(string(m.Reasoning))
	}
	return s.addText(string(m.Content))
}

// openAIUsage is the usage block of the OpenAI protocol and its relatives.
type openAIUsage struct {
	PromptTokens     count `json:"prompt_tokens"`
	CompletionTokens count `json:"completion_tokens"`
	TotalTokens      count `json:"total_tokens"`
	InputTokens      count `json:"input_tokens"`
	OutputTokens     count `json:"output_tokens"`
	CacheHitTokens   count `json:"prompt_cache_hit_tokens"`
	PromptDetails    struct {
		CachedTokens count `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		ReasoningTokens count `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
	Cost money `json:"cost"`
}

func (u openAIUsage) report() report {
	r := report{
		input:     u.PromptTokens,
		output:    u.CompletionTokens,
		cached:    u.PromptDetails.CachedTokens,
		reasoning: u.CompletionDetails.ReasoningTokens,
		cost:      u.Cost.count,
		bad:       u.TotalTokens.bad,
	}
	r.input.merge(u.InputTokens)
	r.output.merge(u.OutputTokens)
	r.cached.merge(u.CacheHitTokens)
	if !r.output.set && r.input.set && u.TotalTokens.n > r.input.n {
		r.output = count{n: u.TotalTokens.n - r.input.n, set: true}
	}
	return r
}
