package backend

import (
	"cmp"
	"encoding/json"
)

// openAIWire speaks OpenAI-compatible chat completions.
var openAIWire = wire{
	path:   "/chat/completions",
	header: bearer,
	body:   openAIBody,
	event: func(s *sink, name string, data []byte) (bool, error) {
		return false, openAIRead(s, data, name == "error")
	},
	whole: func(s *sink, body []byte) error { return openAIRead(s, body, false) },
}

func openAIBody(c *Config, r *Request) fields {
	o := &r.Options
	body := fields{"model": c.Model, "messages": messages(r), "stream": !c.NoStream}
	if !c.NoStream && !c.NoStreamUsage {
		body["stream_options"] = map[string]bool{"include_usage": true}
	}
	body.limit(c.LimitField, r)
	put(body, "temperature", o.Temperature)
	body.say("reasoning_effort", o.ReasoningEffort)
	body.say("service_tier", o.ServiceTier)
	body.list("stop", o.Stop)
	put(body, "seed", o.Seed)
	return body
}

// openAIMessage is a delta of a stream or the message of a whole answer.
type openAIMessage struct {
	Content          text            `json:"content"`
	ReasoningContent text            `json:"reasoning_content"`
	Reasoning        text            `json:"reasoning"`
	Refusal          text            `json:"refusal"`
	ToolCalls        json.RawMessage `json:"tool_calls"`
	FunctionCall     json.RawMessage `json:"function_call"`
}

// openAIChoice is the answer, or a piece of it.
type openAIChoice struct {
	Index        count                 `json:"index"`
	Delta        *loose[openAIMessage] `json:"delta"`
	Message      *loose[openAIMessage] `json:"message"`
	FinishReason text                  `json:"finish_reason"`
}

// openAIChunk is one event of a stream or a whole answer.
type openAIChunk struct {
	Choices []openAIChoice  `json:"choices"`
	Usage   json.RawMessage `json:"usage"`
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
	s.any = s.any || chunk.Choices != nil
	for i := range chunk.Choices {
		choice := &chunk.Choices[i]
		if choice.Index.n != chunk.Choices[0].Index.n {
			continue
		}
		if m := cmp.Or(choice.Delta, choice.Message); m != nil {
			if err := s.openAIMessage(&m.v, choice.Index.n); err != nil {
				return err
			}
		}
		s.end(string(choice.FinishReason))
	}
	return nil
}

// openAIMessage takes what came under the index of a choice.
func (s *sink) openAIMessage(m *openAIMessage, index int64) error {
	s.toolCall = s.toolCall || says(m.ToolCalls) || says(m.FunctionCall)
	s.refusal = s.refusal || !Blank(string(m.Refusal))
	// Servers that know both names for reasoning send the same text twice.
	s.addReasoning(string(cmp.Or(m.ReasoningContent, m.Reasoning)))
	if m.Content == "" {
		return nil
	}
	// One choice was asked for, whatever its index; some servers count their
	// chunks there. Where two texts had the same, another is another answer.
	switch {
	case index == s.choice:
		s.chosen = true
	case s.chosen:
		return nil
	case index < s.choice:
		return notOfProtocol("several answers mingled")
	}
	s.choice = index
	return s.addText(string(m.Content))
}

// openAIUsage is the usage block of the OpenAI protocol and its relatives. Of the
// cost fields that are about, those here are read, in the units they are in;
// others, like the costs of parts, are not.
type openAIUsage struct {
	PromptTokens      count                `json:"prompt_tokens"`
	CompletionTokens  count                `json:"completion_tokens"`
	TotalTokens       count                `json:"total_tokens"`
	InputTokens       count                `json:"input_tokens"`
	OutputTokens      count                `json:"output_tokens"`
	ReasoningTokens   count                `json:"reasoning_tokens"`
	CacheHitTokens    count                `json:"prompt_cache_hit_tokens"`
	PromptDetails     loose[openAIDetails] `json:"prompt_tokens_details"`
	InputDetails      loose[openAIDetails] `json:"input_tokens_details"`
	CompletionDetails loose[openAIDetails] `json:"completion_tokens_details"`
	OutputDetails     loose[openAIDetails] `json:"output_tokens_details"`
	Cost              money                `json:"cost"`
	EstimatedCost     money                `json:"estimated_cost"`
	CostTicks         ticks                `json:"cost_in_usd_ticks"`
}

type openAIDetails struct {
	CachedTokens    count `json:"cached_tokens"`
	ReasoningTokens count `json:"reasoning_tokens"`
}

func (u openAIUsage) report() report {
	r := report{
		input:     u.PromptTokens,
		output:    u.CompletionTokens,
		total:     u.TotalTokens,
		cached:    u.PromptDetails.v.CachedTokens,
		reasoning: u.CompletionDetails.v.ReasoningTokens,
		cost:      u.Cost.count,
		bad:       u.PromptDetails.bad || u.InputDetails.bad || u.CompletionDetails.bad || u.OutputDetails.bad,
	}
	r.input.atLeast(u.InputTokens)
	r.output.atLeast(u.OutputTokens)
	r.cached.merge(u.InputDetails.v.CachedTokens)
	r.cached.merge(u.CacheHitTokens)
	r.reasoning.atLeast(u.OutputDetails.v.ReasoningTokens)
	r.reasoning.atLeast(u.ReasoningTokens)
	r.cost.atLeast(u.EstimatedCost.count)
	r.cost.atLeast(u.CostTicks.count)
	return r
}
