package lab

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
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

// faultRow is a row of the fault table.
type faultRow struct {
	name     string
	ms, does string // as in FaultKind
	variants []variant
}

// variant is a form of a fault. A fault of a single form has one without a name.
type variant struct {
	name string
	plan func(p *plan) // makes the plan of a healthy answer the fault's
}

// rejecting is a plan that answers with an error.
func rejecting(status int, typ, param, code, message string) func(*plan) {
	return func(p *plan) { p.response = errorResponse(newError(status, typ, param, code, message)) }
}

// saying is a plan that answers with something else, whole.
func saying(text string) func(*plan) {
	return func(p *plan) { p.setText(splitTokens(text), "stop") }
}

// Sizes of the faults, as the fault table has them.
const (
	stallAfter  = 20
	cutAfter    = 40
	emptyBilled = 32 // tokens, as in the article's first working call
	floodLines  = 1_000_000
	apartBilled = 2809
	hugeTokens  = 1_000_000_000_000_000_000
)

// longText is the longest text, in tokens, that the fault of that name takes.
const longText = 1000

// overflowing is a plan that says in a server's own words that the text is too
// long.
func overflowing(status int, body string) func(*plan) {
	return func(p *plan) { p.response = newResponse(status, "application/json", body) }
}

// blocked is a firewall's word for whoever may not pass.
func blocked(p *plan) {
	p.response = newResponse(http.StatusForbidden, "text/html; charset=utf-8",
		"<!doctype html><title>Request blocked</title><p>The request was blocked. Reference: 18.4f2a.\n")
}

// tooLong is a plan that refuses a long text with that status and no reason.
func tooLong(status int) func(*plan) {
	return func(p *plan) {
		if p.ans.prompt > longText {
			p.response = errorResponse(newError(status, serverError, "", "", "The request could not be processed."))
		}
	}
}

const rejectedText = "Your request was rejected as a result of our safety system."

var (
	throttled   = rejecting(http.StatusTooManyRequests, rateLimit, "", "rate_limit_exceeded", "Rate limit reached.")
	unavailable = rejecting(http.StatusServiceUnavailable, serverError, "", "", "The service is unavailable.")
	resetting   = func(p *plan) { p.reset = true }
)

// faultTable holds every fault with what it changes in an answer.
var faultTable = []faultRow{
	{"ok", "", "streams a whole answer and a usage block", []variant{
		{"", func(p *plan) { p.usageForm = usageChunk }},
	}},
	{"retry-after", "the hint (2000), in whole seconds", "429 with Retry-After once for each key, then fine", []variant{
		{"2s", func(p *plan) { p.retryAfter(false) }},
		{"date", func(p *plan) { p.retryAfter(true) }},
	}},
	{"throttled", "", "429 without a hint, always", []variant{{"", throttled}}},
	{"flaky", "", "500 once for each key, then fine", []variant{
		{"", rejecting(http.StatusInternalServerError, serverError, "", "", "The server had an error while processing your request.")},
	}},
	{"down", "", "503, always; refused closes the listener while it is set through the control endpoint, and resets the connection otherwise", []variant{
		{"503", unavailable},
		{"refused", resetting},
	}},
	{"flap", "for how long it is down (60000)", "503 for 60 s from the first request that meets it, then healthy", []variant{{"", unavailable}}},
	{"loading", "for how long (3000)", "503 for 3 s from the first request that meets it, because the model is being loaded, then healthy", []variant{
		{"", rejecting(http.StatusServiceUnavailable, "unavailable_error", "", "", "Loading model")},
	}},
	{"reset", "", "TCP reset before headers", []variant{{"", resetting}}},
	{"silent", "", "accepts, sends nothing", []variant{
		{"", func(p *plan) { p.silent = true }},
	}},
	{"headers-only", "", "200 and headers at once, then nothing", []variant{
		{"", func(p *plan) { p.headersOnly = true }},
	}},
	{"slow", "time to the first byte (6000, 20000)", "the first byte comes after 6 s", []variant{
		{"6s", func(p *plan) { p.firstByte = p.fault.own(6 * time.Second) }},
		{"20s", func(p *plan) { p.firstByte = p.fault.own(20 * time.Second) }},
	}},
	{"stall", "the quiet (30000)", "20 tokens, or half of a shorter answer, then quiet for 30 s with the connection open", []variant{
		{"", func(p *plan) {
			p.pause, p.pauseAt = p.fault.own(30*time.Second), max(1, min(stallAfter, len(p.ans.pieces)/2))
		}},
	}},
	{"drip", "the gap (5000)", "one token every 5 s", []variant{
		{"", func(p *plan) { p.gap = p.fault.own(5 * time.Second) }},
	}},
	{"cut", "", "closes after 40 tokens, or two thirds of a shorter answer, without a terminator; abrupt breaks the connection as well", []variant{
		{"clean", func(p *plan) { p.cut(false) }},
		{"abrupt", func(p *plan) { p.cut(true) }},
	}},
	{"bad-chunk", "", "one malformed JSON event in the middle; a body cut short when not streaming", []variant{
		{"", func(p *plan) { p.badAt = p.half() }},
	}},
	{"no-done", "", "all tokens and a finish reason, no [DONE]", []variant{
		{"", func(p *plan) { p.noDone = true }},
	}},
	{"finish-early", "", "a finish reason that is not the end: stop with every token, or length or stop with one in the middle", []variant{
		{"every", func(p *plan) { p.early, p.earlyAt = "stop", -1 }},
		{"length", func(p *plan) { p.early, p.earlyAt = "length", p.half() }},
		{"stop", func(p *plan) { p.early, p.earlyAt = "stop", p.half() }},
	}},
	{"comments", "", ": keep-alive lines each second before the first event and between events", []variant{
		{"", func(p *plan) { p.comments = true }},
	}},
	{"no-space", "", "data: without the space after it, and several data lines in one event", []variant{
		{"both", func(p *plan) { p.noSpace, p.splitData = true, true }},
		{"space", func(p *plan) { p.noSpace = true }},
		{"lines", func(p *plan) { p.splitData = true }},
	}},
	{"mislabelled", "", "a whole answer of more than 4 KiB as text/event-stream, a stream as application/json, a byte order mark before JSON, or status 201 or 206", []variant{
		{"body", func(p *plan) { p.asBody, p.mime, p.padding = true, "text/event-stream", 8<<10 }},
		{"stream", func(p *plan) { p.mime = "application/json" }},
		{"bom", func(p *plan) { p.asBody, p.bom = true, true }},
		{"201", func(p *plan) { p.status = http.StatusCreated }},
		{"206", func(p *plan) { p.status = http.StatusPartialContent }},
	}},
	{"pings", "", "events that carry nothing before each event: ping, {}, null, a chunk without choices", []variant{
		{"", func(p *plan) { p.pings = true }},
	}},
	{"choice-index", "", "the answer under another index than 0, or under one that grows with each chunk", []variant{
		{"one", func(p *plan) { p.index = func(int) int { return 1 } }},
		{"growing", func(p *plan) { p.index = func(piece int) int { return piece } }},
	}},
	{"empty-error", "", `an error of {} or "" beside each piece of the answer`, []variant{
		{"object", func(p *plan) { p.noError = struct{}{} }},
		{"text", func(p *plan) { p.noError = "" }},
	}},
	{"split-pair", "", "the halves of a surrogate pair in two pieces", []variant{
		{"", func(p *plan) {
			p.setText([]string{"All ", "well ", highHalf, lowHalf, "."}, "stop")
			p.halves = true
		}},
	}},
	{"big-line", "", "one event of that size in the middle; lines sends a million comment lines", []variant{
		{"100KiB", func(p *plan) { p.padding = 100 << 10 }},
		{"12MiB", func(p *plan) { p.padding = 12 << 20 }},
		{"lines", func(p *plan) { p.lines = floodLines }},
	}},
	{"empty", "", "200 with empty content, stop, 32 tokens billed; or with an empty body; or with invisible characters alone", []variant{
		{"content", func(p *plan) { p.bill(nil, "stop", emptyBilled) }},
		{"body", func(p *plan) {
			p.bill(nil, "stop", emptyBilled)
			p.empty = true
		}},
		{"invisible", func(p *plan) { p.bill([]string{"\u200b", "\u2060\ufeff"}, "stop", emptyBilled) }},
	}},
	{"reasoning-only", "", "no content, the text in that field, finish reason length, 32 tokens billed", []variant{
		{"reasoning_content", func(p *plan) { p.reasonOnly("reasoning_content") }},
		{"reasoning", func(p *plan) { p.reasonOnly("reasoning") }},
	}},
	{"one-token", "", "an answer of one token", []variant{
		{"", func(p *plan) { p.setText(p.ans.pieces[:min(1, len(p.ans.pieces))], p.ans.finish) }},
	}},
	{"tool-only", "", "a tool call, no content", []variant{
		{"", func(p *plan) {
			p.bill(nil, "tool_calls", 12)
			p.toolCall = true
		}},
	}},
	{"error-in-200", "", "200 with an error object, alone, beside choices: [], or after half the answer", []variant{
		{"object", func(p *plan) { p.errorAt, p.errorBare = 0, true }},
		{"choices", func(p *plan) { p.errorAt = 0 }},
		{"midstream", func(p *plan) { p.errorAt = p.half() }},
	}},
	{"context-length", "", "the text is too long: 400 context_length_exceeded, or as another server says it; body is a proxy's 413, tokens a 413 with the code of a rate limit", []variant{
		{"openai", func(p *plan) {
			rejecting(http.StatusBadRequest, invalidRequest, "messages", "context_length_exceeded",
				fmt.Sprintf("This model's maximum context length is 16 tokens. However, your messages resulted in %d tokens.", p.ans.prompt))(p)
		}},
		{"anthropic", overflowing(400, `{"type":"error","error":{"type":"invalid_request_error","message":"input length and `+"`max_tokens`"+` exceed context limit: 199000 + 4096 > 200000, decrease input length or `+"`max_tokens`"+` and try again"}}`)},
		{"bedrock", overflowing(400, `{"message":"Input is too long for requested model."}`)},
		{"gemini", overflowing(400, `[{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]`)},
		{"vllm", overflowing(400, `{"object":"error","message":"The decoder prompt (length 5000) is longer than the maximum model length of 4096.","type":"BadRequestError","param":null,"code":400}`)},
		{"ollama", overflowing(500, `{"error":"the input length exceeds the context length"}`)},
		{"llamacpp", overflowing(500, `{"error":{"code":500,"message":"the request exceeds the available context size. try increasing the context size or enable context shift","type":"server_error"}}`)},
		{"body", func(p *plan) {
			p.response = newResponse(http.StatusRequestEntityTooLarge, "text/html", "<html><head><title>413 Request Entity Too Large</title></head></html>\n")
		}},
		{"tokens", rejecting(http.StatusRequestEntityTooLarge, "tokens", "", "rate_limit_exceeded", "Request too large for model on tokens per minute (TPM): Limit 6000, Requested 9000.")},
	}},
	{"long-text", "", "a status without a reason to a text of over 1000 tokens, else healthy", []variant{
		{"400", tooLong(http.StatusBadRequest)},
		{"403", tooLong(http.StatusForbidden)},
		{"422", tooLong(http.StatusUnprocessableEntity)},
		{"500", tooLong(http.StatusInternalServerError)},
	}},
	{"firewall", "", "403 and a page of HTML to a text with SELECT * FROM in it, else healthy; or to everything", []variant{
		{"text", func(p *plan) {
			if strings.Contains(p.ans.asked, "SELECT * FROM") {
				blocked(p)
			}
		}},
		{"all", blocked},
	}},
	{"no-prefill", "", "400 to a request that ends in the beginning of its own answer, else healthy", []variant{
		{"", func(p *plan) {
			if p.ans.prefilled {
				rejecting(http.StatusBadRequest, invalidRequest, "messages", "", "This model does not support assistant message prefill. The conversation must end with a user message.")(p)
			}
		}},
	}},
	{"no-max-tokens", "", "400 to a request with max_tokens, as OpenAI's reasoning models answer it, else healthy", []variant{
		{"", func(p *plan) {
			if p.ans.maxTokens {
				rejecting(http.StatusBadRequest, invalidRequest, "max_tokens", "unsupported_parameter", "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.")(p)
			}
		}},
	}},
	{"no-stream-options", "", "400 or 422 to a request with stream_options, as Azure's older versions and Mistral word it, else healthy", []variant{
		{"azure", func(p *plan) {
			if p.ans.streamOpts {
				rejecting(http.StatusBadRequest, invalidRequest, "", "", "Unrecognized request argument supplied: stream_options")(p)
			}
		}},
		{"mistral", func(p *plan) {
			if p.ans.streamOpts {
				p.response = newResponse(http.StatusUnprocessableEntity, "application/json",
					`{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted","input":{"include_usage":true}}]}`)
			}
		}},
	}},
	{"refused", "", "400 content_policy_violation or content_filter; or 200 with finish reason content_filter, or with a refusal in place of content", []variant{
		{"policy", rejecting(http.StatusBadRequest, invalidRequest, "", "content_policy_violation", rejectedText)},
		{"filter", rejecting(http.StatusBadRequest, invalidRequest, "prompt", "content_filter", rejectedText)},
		{"finish", func(p *plan) { p.setText(p.ans.pieces[:len(p.ans.pieces)/2], "content_filter") }},
		{"refusal", func(p *plan) {
			saying("I'm sorry, but I can't help with that.")(p)
			p.refusal = true
		}},
	}},
	{"auth", "", "401 or 403", []variant{
		{"401", rejecting(http.StatusUnauthorized, invalidRequest, "", "invalid_api_key", "Incorrect API key provided.")},
		{"403", rejecting(http.StatusForbidden, invalidRequest, "", "permission_denied", "You do not have access to this model.")},
	}},
	{"usage-forms", "", "usage in a chunk with empty choices, in the last chunk, or cumulative in every chunk, asked for or not; or 1.5 s after the finish reason", []variant{
		{"empty-choices", func(p *plan) { p.usageForm = usageChunk }},
		{"last", func(p *plan) { p.usageForm = usageLast }},
		{"cumulative", func(p *plan) { p.usageForm = usageCumulative }},
		{"late", func(p *plan) { p.usageForm, p.usageLate = usageChunk, 1500*time.Millisecond }},
	}},
	{"usage-missing", "", "no usage, null, or all zeros", []variant{
		{"none", func(p *plan) { p.usageForm = usageNever }},
		{"null", func(p *plan) { p.claimUsage(nil) }},
		{"zeros", func(p *plan) { p.claimUsage(usage{}) }},
	}},
	{"usage-absurd", "", "negative tokens, 1e18, numbers as strings, more cached than prompt tokens, details that are none", []variant{
		{"negative", func(p *plan) { p.claimUsage(newUsage(-p.ans.prompt, -p.ans.billed, 0)) }},
		{"huge", func(p *plan) { p.claimUsage(newUsage(hugeTokens, hugeTokens, 0)) }},
		{"strings", func(p *plan) {
			u := p.trueUsage()
			p.claimUsage(map[string]string{
				"prompt_tokens":     strconv.Itoa(u.PromptTokens),
				"completion_tokens": strconv.Itoa(u.CompletionTokens),
				"total_tokens":      strconv.Itoa(u.TotalTokens),
			})
		}},
		{"cached", func(p *plan) {
			u := p.trueUsage()
			u.PromptTokensDetails.CachedTokens = u.PromptTokens + 1000
			p.claimUsage(u)
		}},
		{"details", func(p *plan) {
			p.claimUsage(struct {
				usage
				PromptTokensDetails     string `json:"prompt_tokens_details"`
				CompletionTokensDetails []int  `json:"completion_tokens_details"`
			}{p.trueUsage(), "none", []int{}})
		}},
	}},
	{"usage-apart", "", "2809 tokens of reasoning that the completion tokens leave out: beside them and in the total, beside them and not in the total, or in the total alone", []variant{
		{"reasoning", func(p *plan) { p.billApart(true, true) }},
		{"untold", func(p *plan) { p.billApart(true, false) }},
		{"total", func(p *plan) { p.billApart(false, true) }},
	}},
	{"gzip", "", "compressed although not asked for, with or without saying so", []variant{
		{"declared", func(p *plan) { p.gzip, p.gzipTold = true, true }},
		{"undeclared", func(p *plan) { p.gzip = true }},
	}},
	{"prose-error", "", "200 whose text says that the credits have run out", []variant{
		{"", saying("You have run out of credits. Please add funds to your account to continue.")},
	}},
	{"paid-in-disguise", "", "the usage block shows a cost of 0.0023", []variant{
		{"", func(p *plan) { p.claimCost(p.trueUsage(), 0.0023) }},
	}},
	{"cost-absurd", "", "the usage block shows a cost of 25, or of nothing beside its tokens, or nothing at all", []variant{
		{"high", func(p *plan) { p.claimCost(p.trueUsage(), 25) }},
		{"zero", func(p *plan) { p.claimCost(p.trueUsage(), 0) }},
		{"zeros", func(p *plan) { p.claimCost(usage{}, 0) }},
	}},
	{"not-an-answer", "", `200 with {"ok":true,"bytes":0}, or with a page of HTML`, []variant{
		{"stub", func(p *plan) { p.response = newResponse(http.StatusOK, "application/json", `{"ok":true,"bytes":0}`) }},
		{"html", func(p *plan) {
			p.response = newResponse(http.StatusOK, "text/html; charset=utf-8", "<!doctype html><title>Sign in</title><p>Please sign in.\n")
		}},
	}},
	{"redirect", "", "307 to another host", []variant{
		{"", func(p *plan) {
			p.response = errorResponse(newError(http.StatusTemporaryRedirect, serverError, "", "", "Moved."))
			p.response.header.Set("Location", "http://192.0.2.1/v1/chat/completions") // reserved for documentation
		}},
	}},
}

// FaultKinds lists every fault the lab can play, in the order of the fault
// table. The slice is the caller's to keep.
func FaultKinds() []FaultKind {
	var out []FaultKind
	for _, row := range faultTable {
		k := FaultKind{Name: row.name, MS: row.ms, Does: row.does}
		for _, v := range row.variants {
			if v.name != "" {
				k.Variants = append(k.Variants, v.name)
			}
		}
		out = append(out, k)
	}
	return out
}

// FaultModels lists the model names that select a fault, every variant
// included.
func FaultModels() []string {
	var out []string
	for _, row := range faultTable {
		out = append(out, FaultModelPrefix+row.name)
		for _, v := range row.variants[1:] {
			out = append(out, FaultModelPrefix+row.name+"."+v.name)
		}
	}
	return out
}

// Fault is a fault to play, as set through the control endpoint.
type Fault struct {
	// Name is one of [FaultKinds], with or without ".variant". None is health.
	Name string `json:"name,omitempty"`
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
	variant variant
	delay   time.Duration // from Fault.MS; 0: the fault's own
	ownTime bool          // the delay is not that of the first byte or the reply
}

func (f *fault) String() string {
	if f.variant.name == "" {
		return f.name
	}
	return f.name + "." + f.variant.name
}

// own returns the fault's time: delay if set, else d.
func (f *fault) own(d time.Duration) time.Duration {
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
	name, form, varied := strings.Cut(f.Name, ".")
	i := slices.IndexFunc(faultTable, func(row faultRow) bool { return row.name == name })
	if i < 0 {
		return fault{}, fmt.Errorf("unknown fault %.64q", f.Name)
	}
	row := faultTable[i]
	at := 0
	if varied {
		at = slices.IndexFunc(row.variants, func(v variant) bool { return v.name != "" && v.name == form })
	}
	if at < 0 {
		return fault{}, fmt.Errorf("unknown variant %.64q of fault %q: want one of %q", form, name, FaultKinds()[i].Variants)
	}
	return fault{name: name, variant: row.variants[at], delay: time.Duration(f.MS) * time.Millisecond, ownTime: row.ms != ""}, nil
}
