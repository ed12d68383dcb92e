package backend

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
)

// adviseAllowance is the advice where reasoning used up the output limit.
const adviseAllowance = "raise options.reasoning_tokens, or lower options.reasoning_effort"

// advices say what to change in a backend's options when it does not take a
// field of a request, by the field's name on the wire.
var advices = map[string]string{
	"max_tokens":            "set options.limit_field: max_completion_tokens",
	"max_completion_tokens": "set options.limit_field: max_tokens",
	"max_output_tokens":     "set options.limit_field: max_tokens",
	"stream_options":        "set options.stream_usage: false",
	"stream":                "set options.stream: false",
	"temperature":           omit("temperature"),
	"reasoning_effort":      adviseEffort,
	"reasoning":             adviseEffort,
	"output_config":         adviseEffort,
	"effort":                adviseEffort,
	"think":                 adviseEffort,
	"thinking":              "leave out options.reasoning_budget, or change options.reasoning_effort",
	"budget_tokens":         omit("reasoning_budget"),
	"service_tier":          omit("service_tier"),
	"stop":                  omit("stop"),
	"stop_sequences":        omit("stop"),
	"seed":                  omit("seed"),
}

const adviseEffort = "change or leave out options.reasoning_effort, or name it in options.omit"

// omit is the advice to do without an option, also where a class has it.
func omit(option string) string {
	return "leave out options." + option + ", or name it in options.omit"
}

// word is a name as it may stand in a message.
var word = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)

// fieldName is a field's name, or a path to one, that is fit to be repeated.
var fieldName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.\[\]-]{0,63}$`)

// advise says what to change in the options of a backend that does not take a
// field: the one that it names, else the first in its message that is known here.
func advise(w wireError) string {
	for part := range strings.SplitSeq(w.param, ".") {
		part, _, _ = strings.Cut(part, "[")
		if a, ok := advices[part]; ok {
			return a
		}
		if part == "messages" || part == "model" {
			return "no option changes that: use another model or protocol"
		}
	}
	if fieldName.MatchString(w.param) {
		return "take " + w.param + " out of options.body"
	}
	for _, name := range word.FindAllString(strings.ToLower(w.message), -1) {
		if a, ok := advices[name]; ok {
			return a
		}
	}
	return "look at options.body for a field that it does not take"
}

// extraInput is one entry of the list in which FastAPI says what is wrong with a
// request, by itself or in the words of an error's message.
type extraInput struct {
	Type     text              `json:"type"`
	Location []json.RawMessage `json:"loc"`
	Message  text              `json:"msg"`
}

// extraInputs reads such a list: {"detail": [{"type": "extra_forbidden", "loc":
// ["body", "seed"], "msg": "Extra inputs are not permitted"}]}.
func extraInputs(detail json.RawMessage) (w wireError, found bool) {
	var list []extraInput
	if !bytes.HasPrefix(detail, []byte("[")) || json.Unmarshal(detail, &list) != nil || len(list) == 0 {
		return wireError{}, false
	}
	w = wireError{kind: string(list[0].Type), message: string(list[0].Message)}
	if n := len(list[0].Location); n > 0 {
		w.param = scalar(list[0].Location[n-1])
	}
	return w, w.message != ""
}

// quotedExtra finds the same list in Python's words in a message, as vLLM sends
// it: [{'type': 'extra_forbidden', 'loc': ('body', 'seed'), ...}].
var quotedExtra = regexp.MustCompile(`'loc': \('body', '([A-Za-z0-9_]+)'`)

// leadingField finds Anthropic's words: seed: Extra inputs are not permitted.
var leadingField = regexp.MustCompile(`^([A-Za-z0-9_.]+): Extra inputs are not permitted`)

// named is w with the field that its message names in a form of its own.
func (w wireError) named() wireError {
	if w.param != "" {
		return w
	}
	for _, form := range []*regexp.Regexp{quotedExtra, leadingField} {
		if m := form.FindStringSubmatch(w.message); m != nil {
			w.param = m[1]
			return w
		}
	}
	return w
}
