package config

import (
	"strings"
	"text/template"

	"leeway/slackgate"
)

// Classes by name.
type Classes map[string]Class

// Preference is the order in which a class wants the pools.
type Preference string

// The preferences.
const (
	PaidFirst Preference = "paid-first"
	FreeFirst Preference = "free-first"
	PaidOnly  Preference = "paid-only"
	FreeOnly  Preference = "free-only"
)

// Paths is the preference as the gate takes it; false for an unknown one.
func (p Preference) Paths() (paths [2]slackgate.Path, ok bool) {
	paths, ok = preferred[p]
	return paths, ok
}

var preferred = map[Preference][2]slackgate.Path{
	PaidFirst: {slackgate.Paid, slackgate.Free},
	FreeFirst: {slackgate.Free, slackgate.Paid},
	PaidOnly:  {slackgate.Paid},
	FreeOnly:  {slackgate.Free},
}

// Success is what a class counts as an answer in time.
type Success string

// The kinds of success.
const (
	SuccessWhole     Success = "whole"
	SuccessFirstByte Success = "first_byte"
)

// Relay says when a chat completion's stream begins to tell the answer.
type Relay string

// The kinds of relay.
const (
	RelayLive  Relay = "live"  // as the backend gives it; from then on no other backend is tried
	RelayWhole Relay = "whole" // once it is whole and usable
)

// Class is a named set of defaults and rules for jobs.
type Class struct {
	// DeadlineMS is used when a job names none. Defaults to 15000.
	DeadlineMS int64 `yaml:"deadline_ms"`
	// MaxDeadlineMS is the longest allowed. Defaults to 24 h.
	MaxDeadlineMS int64 `yaml:"max_deadline_ms"`
	// ReserveMS is kept back from the deadline. Defaults to 2000.
	ReserveMS *int64 `yaml:"reserve_ms"`
	// Prefer is the pools and their order. Defaults to paid-first.
	Prefer Preference `yaml:"prefer"`
	// Success is "whole" or "first_byte". Defaults to whole.
	Success Success `yaml:"success"`
	// Relay is for streams that do not choose. Defaults to live.
	Relay Relay `yaml:"relay"`
	// MaxOutputTokens is the output limit. Defaults to 400.
	MaxOutputTokens int `yaml:"max_output_tokens"`
	// WordLimit is the longest summary asked for. Defaults to 200.
	WordLimit int `yaml:"word_limit"`
	// Prompt is the system prompt, a text/template in which {{.WordLimit}} and
	// {{.MaxOutputTokens}} stand for the class's limits. Defaults to
	// [DefaultPrompt].
	Prompt string `yaml:"prompt"`
	// Rescue lets a job that free has become too slow for be offered to paid. One
	// whose pool has lost its capacity is offered to the other one in any case, if
	// Prefer names both.
	Rescue bool `yaml:"rescue"`
	// BudgetMicroPerDay caps what the class's jobs may cost in a day, all
	// producers together, in micro-units. Left out: no cap.
	BudgetMicroPerDay *int64 `yaml:"budget_micro_per_day"`

	// Options go before those of the backends that its jobs are sent to.
	Options Options `yaml:"options"`

	promptBytes int64 // of the system prompt
}

// Class is the class of a name; the default class for one that has left the
// configuration.
func (c *Config) Class(name string) Class {
	class, ok := c.Classes[name]
	if !ok {
		class = c.Classes[c.DefaultClass]
	}
	return class
}

// SystemPromptBytes is how long the system prompt is.
func (c *Class) SystemPromptBytes() int64 { return c.promptBytes }

// DefaultPrompt is the system prompt of a class that has none.
const DefaultPrompt = "Summarise the text in at most {{.WordLimit}} words. Answer with the summary alone."

// SystemPrompt is the class's prompt with its limits filled in. The template
// was checked when the configuration was read.
func (c *Class) SystemPrompt() (string, error) {
	t, err := template.New("prompt").Option("missingkey=error").Parse(c.Prompt)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, struct{ WordLimit, MaxOutputTokens int }{c.WordLimit, c.MaxOutputTokens})
	return b.String(), err
}
