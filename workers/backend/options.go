package backend

// Options are what a call asks for besides its text. A field that is left out is
// not sent, and neither is one that the protocol has no word for.
type Options struct {
	// Temperature is 0 to 2 (Anthropic: to 1).
	Temperature *float64
	// ReasoningEffort is how much the model should reason: none, minimal, low,
	// medium, high, xhigh or max. OpenAI is sent the word; which of them a model
	// takes is its own affair. With Anthropic none disables thinking, and minimal
	// is sent as low. With Ollama none is sent as false, and what is beyond low and
	// high as those.
	ReasoningEffort string
	// ReasoningBudget is how many tokens the model may think for, at least 1024:
	// Anthropic's thinking.budget_tokens.
	ReasoningBudget *int
	// ReasoningTokens is what is kept for reasoning, in tokens, beside the output
	// limit: it is added to the limit that is sent, and to the largest cost of a
	// call. Providers count reasoning as output, so that without it a model may
	// think up to the limit, which is billed, and answer nothing.
	ReasoningTokens *int
	// ServiceTier is the provider's word for how the call is served and billed.
	ServiceTier string
	// Stop are texts at which the answer ends. nil: left out.
	Stop []string
	// Seed is for backends that sample the same for the same seed.
	Seed *int64
}

// Allowance is ReasoningTokens; 0 if left out.
func (o *Options) Allowance() int {
	if o.ReasoningTokens == nil {
		return 0
	}
	return *o.ReasoningTokens
}

// The fields in which an OpenAI-compatible backend takes the output limit.
const (
	LimitMaxTokens           = "max_tokens"
	LimitMaxCompletionTokens = "max_completion_tokens"
	LimitMaxOutputTokens     = "max_output_tokens"
)

// fields are a request's body as it grows.
type fields map[string]any

// put adds a field unless its value is left out.
func put[T any](f fields, name string, v *T) {
	if v != nil {
		f[name] = *v
	}
}

// say adds a text unless it is empty.
func (f fields) say(name, v string) {
	if v != "" {
		f[name] = v
	}
}

// list adds a list unless it is empty.
func (f fields) list(name string, v []string) {
	if len(v) > 0 {
		f[name] = v
	}
}

// limit adds the output limit unless there is none.
func (f fields) limit(name string, r *Request) {
	if n := r.OutputLimit(); n > 0 {
		f[name] = n
	}
}

// extend adds a backend's own fields. What is an object on both sides is put
// together; else what is there already stays.
func (f fields) extend(more map[string]any) {
	for name, v := range more {
		own, there := f[name]
		if !there {
			f[name] = v
			continue
		}
		object, ok := own.(fields)
		if inner, both := v.(map[string]any); ok && both {
			object.extend(inner)
		}
	}
}
