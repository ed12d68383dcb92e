package lab

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// FaultModelPrefix is what a model name begins with that selects a fault:
// "fault-stall", or with a variant "fault-slow.20s".
const FaultModelPrefix = "fault-"

// FaultHeader is the request header that selects a fault by name, before the
// model name and before the one set through the control endpoint.
const FaultHeader = "X-Lab-Fault"

// FaultKind describes one fault that the lab can play.
type FaultKind struct {
	Name string `json:"name"`
	// Variants are its forms; the first is the one without a variant in its name.
	Variants []string `json:"variants,omitempty"`
	// MS says what [Fault].MS sets; for the other kinds it sets the time to the
	// first byte, or to the reply where there is no answer.
	MS string `json:"ms,omitempty"`
	// Does says what the backend does.
	Does string `json:"does"`
}

var faultKinds = []FaultKind{
	{"ok", nil, "", "streams a whole answer and a usage block"},
	{"retry-after", []string{"2s", "date"}, "the hint (2000), in whole seconds", "429 with Retry-After once for each key, then fine"},
	{"throttled", nil, "", "429 without a hint, always"},
	{"flaky", nil, "", "500 once for each key, then fine"},
	{"down", []string{"503", "refused"}, "", "503, always; refused closes the listener while it is set through the control endpoint, and resets the connection otherwise"},
	{"flap", nil, "for how long it is down (60000)", "503 for 60 s from the first request that meets it, then healthy"},
	{"reset", nil, "", "TCP reset before headers"},
	{"silent", nil, "", "accepts, sends nothing"},
	{"headers-only", nil, "", "200 and headers at once, then nothing"},
	{"slow", []string{"6s", "20s"}, "time to the first byte (6000, 20000)", "the first byte comes after 6 s"},
	{"stall", nil, "the quiet (30000)", "20 tokens, or half of a shorter answer, then quiet for 30 s with the connection open"},
	{"drip", nil, "the gap (5000)", "one token every 5 s"},
	{"cut", []string{"clean", "abrupt"}, "", "closes after 40 tokens, or two thirds of a shorter answer, without a terminator; abrupt breaks the connection as well"},
	{"bad-chunk", nil, "", "one malformed JSON event in the middle; a body cut short when not streaming"},
	{"no-done", nil, "", "all tokens and a finish reason, no [DONE]"},
	{"comments", nil, "", ": keep-alive lines each second before the first event and between events"},
	{"no-space", []string{"both", "space", "lines"}, "", "data: without the space after it, and several data lines in one event"},
	{"big-line", []string{"100KiB", "12MiB", "lines"}, "", "one event of that size in the middle; lines sends a million comment lines"},
	{"empty", []string{"content", "body"}, "", "200 with empty content, stop, 32 tokens billed; or with an empty body"},
	{"reasoning-only", []string{"reasoning_content", "reasoning"}, "", "no content, the text in that field, finish reason length, 32 tokens billed"},
	{"one-token", nil, "", "an answer of one token"},
	{"tool-only", nil, "", "a tool call, no content"},
	{"error-in-200", []string{"object", "choices", "midstream"}, "", "200 with an error object, alone, beside choices: [], or after half the answer"},
	{"context-length", nil, "", "400 context_length_exceeded"},
	{"refused", []string{"policy", "filter", "finish", "refusal"}, "", "400 content_policy_violation or content_filter; or 200 with finish reason content_filter, or with a refusal in place of content"},
	{"auth", []string{"401", "403"}, "", "401 or 403"},
	{"usage-forms", []string{"empty-choices", "last", "cumulative"}, "", "usage in a chunk with empty choices, in the last chunk, or cumulative in every chunk, asked for or not"},
	{"usage-missing", []string{"none", "null", "zeros"}, "", "no usage, null, or all zeros"},
	{"usage-absurd", []string{"negative", "huge", "strings", "cached"}, "", "negative tokens, 1e18, numbers as strings, more cached than prompt tokens"},
	{"gzip", []string{"declared", "undeclared"}, "", "compressed although not asked for, with or without saying so"},
	{"prose-error", nil, "", "200 whose text says that the credits have run out"},
	{"paid-in-disguise", nil, "", "the usage block shows a cost of 0.0023"},
	{"not-an-answer", []string{"stub", "html"}, "", `200 with {"ok":true,"bytes":0}, or with a page of HTML`},
	{"redirect", nil, "", "307 to another host"},
}

// FaultKinds lists every fault the lab can play, in the order of the fault
// table. The slice is the caller's to keep.
func FaultKinds() []FaultKind { return slices.Clone(faultKinds) }

// FaultModels lists the model names that select a fault, every variant
// included.
func FaultModels() []string {
	var out []string
	for _, k := range faultKinds {
		out = append(out, FaultModelPrefix+k.Name)
		for i, v := range k.Variants {
			if i > 0 {
				out = append(out, FaultModelPrefix+k.Name+"."+v)
			}
		}
	}
	return out
}

// Fault is a fault to play, as set through the control endpoint.
type Fault struct {
	// Name is one of [FaultKinds], with or without ".variant".
	Name string `json:"name"`
	// Count is how many requests meet the fault before it ends by itself. 0
	// means all, until it is cleared.
	Count int `json:"count,omitempty"`
	// MS replaces the fault's own time in milliseconds (see [FaultKind].MS). 0
	// keeps it.
	MS int64 `json:"ms,omitempty"`
}

// fault is a parsed Fault. The zero fault is health.
type fault struct {
	name    string
	variant string
	delay   time.Duration // from Fault.MS; 0: the fault's own
}

func (f fault) String() string {
	if f.variant == "" {
		return f.name
	}
	return f.name + "." + f.variant
}

// own returns the fault's time: delay if set, else d.
func (f fault) own(d time.Duration) time.Duration {
	if f.delay > 0 {
		return f.delay
	}
	return d
}

// parse checks f.
func (f Fault) parse() (fault, error) {
	if f.Count < 0 {
		return fault{}, fmt.Errorf("count: want 0 or more")
	}
	if f.MS < 0 || f.MS > MaxDelay.Milliseconds() {
		return fault{}, fmt.Errorf("ms: want 0 to %d", MaxDelay.Milliseconds())
	}
	name, variant, varied := strings.Cut(f.Name, ".")
	i := slices.IndexFunc(faultKinds, func(k FaultKind) bool { return k.Name == name })
	if i < 0 {
		return fault{}, fmt.Errorf("unknown fault %.64q", f.Name)
	}
	kind := faultKinds[i]
	if !varied && len(kind.Variants) > 0 {
		variant = kind.Variants[0]
	} else if varied && !slices.Contains(kind.Variants, variant) {
		return fault{}, fmt.Errorf("unknown variant %.64q of fault %q: want one of %q", variant, name, kind.Variants)
	}
	return fault{name: name, variant: variant, delay: time.Duration(f.MS) * time.Millisecond}, nil
}
