package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// Options are what calls ask for besides their text: a backend's, and a class's,
// which go before the backend's field by field. A field that is left out is not
// sent. One of a class's that a backend's protocol has no word for is not sent to
// that backend; a backend's own may only be what its protocol has.
type Options struct {
	// Temperature is 0 to 2; with anthropic, to 1.
	Temperature *float64 `yaml:"temperature"`
	// ReasoningEffort is none, minimal, low, medium, high, xhigh or max. Models
	// take some of them. openai: reasoning_effort; anthropic: output_config.effort,
	// and none disables thinking; ollama: think.
	ReasoningEffort string `yaml:"reasoning_effort"`
	// ReasoningBudget is how many tokens the model may think for: anthropic's
	// thinking.budget_tokens, which some of its models no longer take. 1024 to
	// what reasoning_tokens keeps.
	ReasoningBudget *int `yaml:"reasoning_budget"`
	// ReasoningTokens is what is kept for reasoning, beside max_output_tokens: it
	// is added to the limit that is sent and to the most that a job may cost.
	// Providers count reasoning as output, so that without it a reasoning model
	// may use up the limit before it answers, which is billed. 0 to 1000000;
	// defaults to 0.
	ReasoningTokens *int `yaml:"reasoning_tokens"`
	// ServiceTier is the provider's word: with openai auto, default, flex or
	// priority, with anthropic auto or standard_only. ollama has none. The price
	// beside it must be that of the tier.
	ServiceTier string `yaml:"service_tier"`
	// Stop are at most 4 texts at which an answer ends. An empty list in a class
	// takes the backend's away.
	Stop []string `yaml:"stop"`
	// Seed makes sampling repeatable as far as the backend does. anthropic has
	// none.
	Seed *int64 `yaml:"seed"`
}

// BackendOptions are a backend's options, with what no class changes.
type BackendOptions struct {
	Options `yaml:",inline"`
	// LimitField is where an openai backend takes the output limit: max_tokens,
	// max_completion_tokens (OpenAI's reasoning models) or max_output_tokens.
	// Defaults to max_tokens.
	LimitField string `yaml:"limit_field"`
	// Stream asks for answers as they come. Without it the first byte comes with
	// the last: first_byte_p95_ms must say so. Defaults to true.
	Stream *bool `yaml:"stream"`
	// StreamUsage asks an openai backend for a stream's usage (stream_options).
	// Without it usage that is not told is estimated. Defaults to true.
	StreamUsage *bool `yaml:"stream_usage"`
	// Omit names options that a class may have and that are never sent to this
	// backend, because its model does not take them: of temperature,
	// reasoning_effort, reasoning_budget, reasoning_tokens, service_tier, stop and
	// seed.
	Omit []string `yaml:"omit"`
	// Path goes after url in the place of the protocol's, such as
	// /deployments/NAME/chat/completions with Azure; Query is added to the
	// address, such as api-version.
	Path  string            `yaml:"path"`
	Query map[string]string `yaml:"query"`
	// Body are further fields of each request, of at most 16 KiB as JSON. It may
	// not hold what Leeway sends itself or another option covers.
	Body map[string]any `yaml:"body"`
}

// Limits of options.
const (
	MaxReasoningTokens = 1_000_000
	MinReasoningBudget = 1024
	MaxStops           = 4
	MaxStopBytes       = 256
	MaxQuery           = 16
	MaxBodyBytes       = 16 << 10
)

var (
	efforts     = []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}
	limitFields = []string{"max_tokens", "max_completion_tokens", "max_output_tokens"}
	// tier is what a service tier may be called.
	tier = regexp.MustCompile(`^[a-z0-9_-]{1,32}$`)
	// queryName is what a field of a query may be called.
	queryName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
)

// OptionsFor are the options of a class's calls to a backend; without a class the
// backend's own.
func (c *Config) OptionsFor(class string, b *Backend) Options {
	if class == "" {
		return b.Options.Options
	}
	o, base := c.Class(class).Options, &b.Options.Options
	o.Temperature = cmp.Or(o.Temperature, base.Temperature)
	o.ReasoningEffort = cmp.Or(o.ReasoningEffort, base.ReasoningEffort)
	o.ReasoningBudget = cmp.Or(o.ReasoningBudget, base.ReasoningBudget)
	o.ReasoningTokens = cmp.Or(o.ReasoningTokens, base.ReasoningTokens)
	o.ServiceTier = cmp.Or(o.ServiceTier, base.ServiceTier)
	o.Seed = cmp.Or(o.Seed, base.Seed)
	if o.Stop == nil {
		o.Stop = base.Stop
	}
	for _, name := range b.Options.Omit {
		o.omit(name)
	}
	return o
}

// omittable are the options that a backend may refuse to be sent.
var omittable = []string{"temperature", "reasoning_effort", "reasoning_budget", "reasoning_tokens", "service_tier", "stop", "seed"}

// omit leaves out the option of that name.
func (o *Options) omit(name string) {
	switch name {
	case "temperature":
		o.Temperature = nil
	case "reasoning_effort":
		o.ReasoningEffort = ""
	case "reasoning_budget":
		o.ReasoningBudget = nil
	case "reasoning_tokens":
		o.ReasoningTokens = nil
	case "service_tier":
		o.ServiceTier = ""
	case "stop":
		o.Stop = nil
	case "seed":
		o.Seed = nil
	}
}

// check validates what holds of options anywhere.
func (o *Options) check(at string) error {
	temperature, budget, reasoning := 0.0, MinReasoningBudget, 0
	if o.Temperature != nil {
		temperature = *o.Temperature
	}
	if o.ReasoningBudget != nil {
		budget = *o.ReasoningBudget
	}
	if o.ReasoningTokens != nil {
		reasoning = *o.ReasoningTokens
	}
	err := cmp.Or(
		within(at+".temperature", temperature, 0, 2),
		checkf(o.ReasoningEffort == "" || slices.Contains(efforts, o.ReasoningEffort), at+".reasoning_effort", "%.64q is not one of %v", o.ReasoningEffort, efforts),
		within(at+".reasoning_budget", budget, MinReasoningBudget, MaxReasoningTokens),
		within(at+".reasoning_tokens", reasoning, 0, MaxReasoningTokens),
		checkf(o.ServiceTier == "" || tier.MatchString(o.ServiceTier), at+".service_tier", "%.64q: use a-z, 0-9, '_' and '-'", o.ServiceTier),
		atMost(at+".stop", len(o.Stop), MaxStops),
	)
	for i, s := range o.Stop {
		err = cmp.Or(err, within(fmt.Sprintf("%s.stop[%d]", at, i), len(s), 1, MaxStopBytes))
	}
	return err
}

// checkFor validates what holds of the options of a call to a backend of a
// protocol. An error says of which backend, unless they stand there.
func (o *Options) checkFor(at, protocol, of string) error {
	anthropic := protocol == "anthropic"
	kept := 0
	if o.ReasoningTokens != nil {
		kept = *o.ReasoningTokens
	}
	return cmp.Or(
		checkf(!anthropic || o.Temperature == nil || *o.Temperature <= 1, at+".temperature", "is above 1, the most that anthropic takes%s", of),
		checkf(!anthropic || o.ServiceTier == "" || o.ServiceTier == "auto" || o.ServiceTier == "standard_only",
			at+".service_tier", "%q is not one of [auto standard_only], which anthropic has%s", o.ServiceTier, of),
		checkf(!anthropic || o.ReasoningBudget == nil || *o.ReasoningBudget <= kept,
			at+".reasoning_budget", "is more than reasoning_tokens keeps for it (%d)%s", kept, of),
	)
}

// complete fills what was left out of a backend's options and validates them.
func (o *BackendOptions) complete(at, protocol string) error {
	openai := protocol == "openai"
	if openai {
		orDefault(&o.LimitField, limitFields[0])
	}
	return cmp.Or(
		o.check(at),
		o.checkFor(at, protocol, ""),
		checkf(openai || o.LimitField == "", at+".limit_field", "is for openai: %s has one field for it", protocol),
		checkf(!openai || slices.Contains(limitFields, o.LimitField), at+".limit_field", "%.64q is not one of %v", o.LimitField, limitFields),
		checkf(openai || o.StreamUsage == nil, at+".stream_usage", "is for openai: %s tells its usage unasked", protocol),
		checkf(protocol == "anthropic" || o.ReasoningBudget == nil, at+".reasoning_budget", "is for anthropic: %s has none", protocol),
		checkf(protocol != "anthropic" || o.Seed == nil, at+".seed", "anthropic has none"),
		checkf(protocol != "ollama" || o.ServiceTier == "", at+".service_tier", "ollama has none"),
		checkf(o.Path == "" || plainPath(o.Path), at+".path", "must begin with a slash, and hold no query, fragment or '..'"),
		o.checkOmit(at+".omit"),
		checkQuery(at+".query", o.Query),
		checkBody(at+".body", o.Body),
	)
}

// checkOmit refuses what is no option, and one that the backend itself has.
func (o *BackendOptions) checkOmit(at string) error {
	for i, name := range o.Omit {
		without := o.Options
		without.omit(name)
		if err := cmp.Or(
			oneOf(fmt.Sprintf("%s[%d]", at, i), name, omittable...),
			checkf(reflect.DeepEqual(without, o.Options), fmt.Sprintf("%s[%d]", at, i), "%s is set beside it", name),
		); err != nil {
			return err
		}
	}
	return nil
}

// checkOptions validates the options of classes, alone and with those of each
// backend that their jobs may be sent to.
func (c *Config) checkOptions() error {
	for _, name := range slices.Sorted(maps.Keys(c.Classes)) {
		class, at := c.Classes[name], "classes."+name+".options"
		if err := class.Options.check(at); err != nil {
			return err
		}
		paths, _ := class.Prefer.Paths()
		for _, path := range paths {
			backends := c.Pool(path).Backends // none where there is no second path
			for i := range backends {
				o := c.OptionsFor(name, &backends[i])
				if err := o.checkFor(at, backends[i].Protocol, ", with backend "+backends[i].Name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// plainPath reports whether s is the path of an address and nothing more.
func plainPath(s string) bool {
	u, err := url.Parse(s)
	return err == nil && strings.HasPrefix(s, "/") && u.Host == "" && !strings.ContainsAny(s, "?#") && !slices.Contains(strings.Split(u.Path, "/"), "..")
}

// checkQuery refuses what cannot be a query. An error never shows a value: it may
// be a secret.
func checkQuery(at string, query map[string]string) error {
	err := atMost(at, len(query), MaxQuery)
	for _, name := range slices.Sorted(maps.Keys(query)) {
		err = cmp.Or(err,
			checkf(queryName.MatchString(name), at, "%.64q cannot be a field's name", name),
			checkf(len(query[name]) >= 1 && len(query[name]) <= 1024, at+"."+name, "must be of 1 to 1024 bytes"),
		)
	}
	return err
}

// ownFields are the fields of a request that Leeway sends itself or that an option
// covers, with the option's name.
var ownFields = map[string]string{
	"model": "", "messages": "", "input": "", "prompt": "", "system": "", "instructions": "", "n": "", "best_of": "",
	"max_tokens": "limit_field", "max_completion_tokens": "limit_field", "max_output_tokens": "limit_field", "max_tokens_to_sample": "limit_field",
	"max_new_tokens": "limit_field", "num_predict": "limit_field", "n_predict": "limit_field", "options.num_predict": "limit_field",
	"stream": "stream", "stream_options": "stream_usage", "service_tier": "service_tier",
	"temperature": "temperature", "options.temperature": "temperature", "seed": "seed", "options.seed": "seed",
	"stop": "stop", "stop_sequences": "stop", "options.stop": "stop",
	"reasoning_effort": "reasoning_effort", "reasoning.effort": "reasoning_effort", "output_config.effort": "reasoning_effort", "think": "reasoning_effort",
	"reasoning.max_tokens": "reasoning_tokens", "thinking.budget_tokens": "reasoning_budget",
}

// objects are the fields in which Leeway sends some things, and a body others.
var objects = []string{"options", "output_config", "thinking"}

// checkBody refuses fields that are not a backend's own, and what JSON cannot
// hold.
func checkBody(at string, body map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(body)) {
		if err := checkField(at, name); err != nil {
			return err
		}
		inner, object := body[name].(map[string]any)
		if !object && slices.Contains(objects, strings.ToLower(name)) {
			return checkf(false, at+"."+name, "must be a mapping")
		}
		for _, sub := range slices.Sorted(maps.Keys(inner)) {
			if err := checkField(at, name+"."+sub); err != nil {
				return err
			}
		}
	}
	doc, err := json.Marshal(body)
	return cmp.Or(
		checkf(err == nil, at, "holds what cannot be written as JSON"),
		checkf(len(doc) <= MaxBodyBytes, at, "is more than %d bytes", MaxBodyBytes),
	)
}

func checkField(at, name string) error {
	option, own := ownFields[strings.ToLower(name)] // some servers take any case
	return cmp.Or(
		checkf(!own || option != "", at+"."+name, "is sent by Leeway itself"),
		checkf(!own, at+"."+name, "is covered by options.%s", option),
	)
}
