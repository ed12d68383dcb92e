package lab

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// answer is what a healthy backend would say to a request.
type answer struct {
	pieces    []string // tokens; together the text
	finish    string   // "stop" or "length"
	prompt    int      // tokens
	reasoning int      // tokens of the completion that are not in pieces
	billed    int      // completion tokens; len(pieces) unless a fault says otherwise
	deduped   bool
}

// plan is how a request is to be answered: the healthy way, with whatever a
// fault changes in it. The zero plan but for ans is health.
type plan struct {
	fault fault
	ans   answer

	// Replies that take no slot.
	reject *apiError
	page   []byte // a body that is no answer, sent with 200
	mime   string // of page
	reset  bool

	// Time.
	silent      bool          // sends nothing, for ever
	headersOnly bool          // sends its headers, then nothing
	firstByte   time.Duration // instead of the profile's, if not 0
	gap         time.Duration // between tokens, instead of the tail, if not 0
	pauseAt     int           // after so many pieces there is a pause; 0: none
	pause       time.Duration

	// Content.
	empty     bool   // the body has no bytes
	reasoning string // the field in which pieces go instead of content
	toolCall  bool
	refusal   bool
	errorAt   int  // the error object comes after so many pieces; negative: none
	errBare   bool // and stands alone

	// Form.
	cutAt     int // ends after so many pieces; 0: does not
	abrupt    bool
	badAt     int // piece that is malformed; 0: none
	noDone    bool
	comments  bool
	noSpace   bool
	splitData bool // JSON over several data lines
	padding   int  // bytes in the event of the second piece
	lines     int  // comment lines after the first piece
	gzip      bool
	gzipTold  bool
	usageForm usageForm
	usage     json.RawMessage // instead of the true one, if not nil
}

// usageForm is where the usage block stands in a stream.
type usageForm uint8

const (
	usageAsked      usageForm = iota // in a chunk without choices, if asked for
	usageChunk                       // the same, asked for or not
	usageLast                        // in the chunk with the finish reason
	usageCumulative                  // in every chunk, growing
	usageNever
)

// Sizes of the faults, as the fault table has them.
const (
	stallAfter  = 20
	cutAfter    = 40
	emptyBilled = 32 // tokens, as in the article's first working call
	floodLines  = 1_000_000
)

// newPlan returns how to answer with ans under f.
func newPlan(f fault, ans answer) plan {
	ans.billed = len(ans.pieces)
	p := plan{fault: f, ans: ans, errorAt: -1}
	n := len(ans.pieces)
	server := func(status int, msg string) {
		p.reject = newError(status, "server_error", "", "", msg)
	}
	p.firstByte = f.delay // unless the fault's own time is another
	switch f.name {
	case "ok":
		p.usageForm = usageChunk
	case "retry-after":
		p.firstByte = 0
		hint := (f.own(2*time.Second) + time.Second - 1).Truncate(time.Second)
		p.reject = newError(http.StatusTooManyRequests, "rate_limit_error", "", "rate_limit_exceeded", "Rate limit reached. Please try again later.")
		value := strconv.Itoa(int(hint / time.Second))
		if f.variant == "date" {
			value = time.Now().Add(hint).UTC().Format(http.TimeFormat)
		}
		p.reject.header = map[string]string{"Retry-After": value}
	case "throttled":
		p.reject = newError(http.StatusTooManyRequests, "rate_limit_error", "", "rate_limit_exceeded", "Rate limit reached.")
	case "flaky":
		server(http.StatusInternalServerError, "The server had an error while processing your request.")
	case "down", "flap":
		p.firstByte = 0
		server(http.StatusServiceUnavailable, "The service is unavailable.")
		if f.variant == "refused" {
			p.reject, p.reset = nil, true
		}
	case "reset":
		p.reset = true
	case "silent":
		p.silent = true
	case "headers-only":
		p.headersOnly = true
	case "slow":
		p.firstByte = f.own(6 * time.Second)
		if f.variant == "20s" {
			p.firstByte = f.own(20 * time.Second)
		}
	case "stall":
		p.firstByte, p.pause = 0, f.own(30*time.Second)
		p.pauseAt = max(1, min(stallAfter, n/2))
	case "drip":
		p.firstByte, p.gap = 0, f.own(5*time.Second)
	case "cut":
		p.cutAt = max(1, min(cutAfter, n*2/3))
		p.abrupt = f.variant == "abrupt"
	case "bad-chunk":
		p.badAt = max(1, n/2)
	case "no-done":
		p.noDone = true
	case "comments":
		p.comments = true
	case "no-space":
		p.noSpace = f.variant != "lines"
		p.splitData = f.variant != "space"
	case "big-line":
		switch f.variant {
		case "100KiB":
			p.padding = 100 << 10
		case "12MiB":
			p.padding = 12 << 20
		case "lines":
			p.lines = floodLines
		}
	case "empty":
		p.ans.pieces, p.ans.finish, p.ans.billed = nil, "stop", emptyBilled
		p.empty = f.variant == "body"
	case "reasoning-only":
		p.reasoning = f.variant
		p.ans.pieces = p.ans.pieces[:min(n, emptyBilled)]
		p.ans.finish, p.ans.billed, p.ans.reasoning = "length", emptyBilled, emptyBilled
	case "one-token":
		if n > 1 {
			p.ans.pieces, p.ans.billed = p.ans.pieces[:1], 1
		}
	case "tool-only":
		p.ans.pieces, p.ans.finish, p.ans.billed = nil, "tool_calls", 12
		p.toolCall = true
	case "error-in-200":
		p.errorAt, p.errBare = 0, f.variant == "object"
		if f.variant == "midstream" {
			p.errorAt = max(1, n/2)
		}
	case "context-length":
		p.reject = newError(http.StatusBadRequest, "invalid_request_error", "messages", "context_length_exceeded",
			fmt.Sprintf("This model's maximum context length is 16 tokens. However, your messages resulted in %d tokens.", ans.prompt))
	case "refused":
		p.refuse()
	case "auth":
		p.reject = newError(http.StatusUnauthorized, "invalid_request_error", "", "invalid_api_key", "Incorrect API key provided.")
		if f.variant == "403" {
			p.reject = newError(http.StatusForbidden, "invalid_request_error", "", "permission_denied", "You do not have access to this model.")
		}
	case "usage-forms":
		p.usageForm = map[string]usageForm{"empty-choices": usageChunk, "last": usageLast, "cumulative": usageCumulative}[f.variant]
	case "usage-missing":
		switch f.variant {
		case "none":
			p.usageForm = usageNever
		case "null":
			p.usageForm, p.usage = usageChunk, json.RawMessage("null")
		case "zeros":
			p.usageForm, p.usage = usageChunk, marshal(usage{})
		}
	case "usage-absurd":
		p.usageForm = usageChunk
		p.usage = absurdUsage(f.variant, newUsage(ans.prompt, n, 0))
	case "gzip":
		p.gzip, p.gzipTold = true, f.variant == "declared"
	case "prose-error":
		p.ans.pieces = SplitTokens("You have run out of credits. Please add funds to your account to continue.", -1)
		p.ans.finish, p.ans.billed = "stop", len(p.ans.pieces)
	case "paid-in-disguise":
		p.usageForm = usageChunk
		p.usage = marshal(struct {
			usage
			Cost    float64 `json:"cost"`
			Details any     `json:"cost_details"`
		}{newUsage(ans.prompt, n, 0), 0.0023, map[string]float64{"upstream_inference_cost": 0.0023}})
	case "not-an-answer":
		p.page, p.mime = []byte(`{"ok":true,"bytes":0}`), "application/json"
		if f.variant == "html" {
			p.page, p.mime = []byte("<!doctype html><title>Sign in</title><p>Please sign in.\n"), "text/html; charset=utf-8"
		}
	case "redirect":
		p.reject = newError(http.StatusTemporaryRedirect, "server_error", "", "", "Moved.")
		p.reject.header = map[string]string{"Location": "http://192.0.2.1/v1/chat/completions"} // reserved for documentation
	}
	return p
}

// refuse fills in the forms of a refusal for reasons of content.
func (p *plan) refuse() {
	const msg = "Your request was rejected as a result of our safety system."
	switch p.fault.variant {
	case "policy":
		p.reject = newError(http.StatusBadRequest, "invalid_request_error", "", "content_policy_violation", msg)
	case "filter":
		p.reject = newError(http.StatusBadRequest, "invalid_request_error", "prompt", "content_filter", msg)
	case "finish":
		p.ans.pieces, p.ans.finish = p.ans.pieces[:len(p.ans.pieces)/2], "content_filter"
		p.ans.billed = len(p.ans.pieces)
	case "refusal":
		p.refusal = true
		p.ans.pieces, p.ans.finish = SplitTokens("I'm sorry, but I can't help with that.", -1), "stop"
		p.ans.billed = len(p.ans.pieces)
	}
}

func absurdUsage(variant string, u usage) json.RawMessage {
	switch variant {
	case "negative":
		u.PromptTokens, u.CompletionTokens, u.TotalTokens = -u.PromptTokens, -u.CompletionTokens, -u.TotalTokens
		return marshal(u)
	case "huge":
		const huge = 1_000_000_000_000_000_000
		u.PromptTokens, u.CompletionTokens, u.TotalTokens = huge, huge, 2*huge
		return marshal(u)
	case "strings":
		return marshal(map[string]string{
			"prompt_tokens":     strconv.FormatInt(u.PromptTokens, 10),
			"completion_tokens": strconv.FormatInt(u.CompletionTokens, 10),
			"total_tokens":      strconv.FormatInt(u.TotalTokens, 10),
		})
	}
	u.PromptTokensDetails.CachedTokens = u.PromptTokens + 1000
	return marshal(u)
}

// dedupable reports whether the plan's answer may be kept for a later request
// with the same key.
func (p *plan) dedupable() bool {
	return p.fault.name == "" || p.fault.name == "ok" || p.fault.name == "slow"
}

// shown reports whether the pieces are answer text.
func (p *plan) shown() bool { return p.reasoning == "" && !p.refusal }

// usageFor returns the usage block when sent completion tokens are out.
func (p *plan) usageFor(sent int) json.RawMessage {
	if p.usage != nil {
		return p.usage
	}
	return marshal(newUsage(p.ans.prompt, sent, p.ans.reasoning))
}

// midError is the error object of error-in-200.
func midError() *apiError {
	return newError(http.StatusOK, "server_error", "", "upstream_error", "The upstream model failed.")
}

// filler returns n bytes for an event that must be large.
func filler(n int) string { return strings.Repeat("x", n) }
