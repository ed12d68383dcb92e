package config

import (
	"testing"
)

// A class's prompt is a template of its limits, checked when it is read.
func TestSystemPrompt(t *testing.T) {
	for _, tt := range []struct {
		name, class, want string // no prompt: it is refused
	}{
		{"the default", "{}", "Summarise the text in at most 200 words. Answer with the summary alone."},
		{"the default with a limit of its own", "{word_limit: 50}", "Summarise the text in at most 50 words. Answer with the summary alone."},
		{"one of its own", "{prompt: 'At most {{.MaxOutputTokens}} tokens.', max_output_tokens: 9}", "At most 9 tokens."},
		{"a limit that there is not", "{prompt: '{{.Tokens}}'}", ""},
		{"no template", "{prompt: '{{'}", ""},
	} {
		c, err := Parse([]byte("classes: {summary: " + tt.class + "}"))
		if tt.want == "" {
			if fieldOf(err) != "classes.summary.prompt" {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		class := c.Classes["summary"]
		got, err := class.SystemPrompt()
		if err != nil || got != tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.name, got, err, tt.want)
		}
		if n := class.SystemPromptBytes(); n != int64(len(tt.want)) {
			t.Errorf("%s: it counts for %d bytes, want %d", tt.name, n, len(tt.want))
		}
	}
}

func TestPreferenceIsKnown(t *testing.T) {
	for _, p := range []Preference{"", "paid", "PAID-FIRST"} {
		if paths, ok := p.Paths(); ok {
			t.Errorf("%q is %v", p, paths)
		}
	}
}

// The longest deadline is that of the most patient class.
func TestLongestDeadline(t *testing.T) {
	c := parse(t, "classes: {summary: {max_deadline_ms: 60000}, nightly: {max_deadline_ms: 90000}}")
	if got := c.LongestDeadlineMS(); got != 90_000 {
		t.Errorf("%d ms, want 90000", got)
	}
}
