package backend

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Reason says what was wrong with a call. The set is closed: metrics and
// ledgers use reasons as labels.
type Reason string

// The reasons.
const (
	ReasonConnect       Reason = "connect"        // no connection: refused, unknown host, TLS
	ReasonReset         Reason = "reset"          // the connection broke before any answer text
	ReasonFirstByte     Reason = "first_byte"     // no answer text within the time the attempt had
	ReasonStall         Reason = "stall"          // quiet for longer than the stall limit after answer text
	ReasonDeadline      Reason = "deadline"       // the job's deadline came
	ReasonCancelled     Reason = "cancelled"      // the caller gave up
	ReasonTruncated     Reason = "truncated"      // it ended before the backend said it was whole
	ReasonEmpty         Reason = "empty"          // a whole answer without answer text
	ReasonBadAnswer     Reason = "bad_answer"     // not an answer of the protocol
	ReasonTooLarge      Reason = "too_large"      // an event, answer or stream over its bound
	ReasonUpstreamError Reason = "upstream_error" // the backend reported a fault of its own
	ReasonRateLimited   Reason = "rate_limited"   // the backend asked to be called less
	ReasonQuota         Reason = "quota"          // the account is out of credit
	ReasonBadRequest    Reason = "bad_request"    // the backend refused this request without a reason known here: its form, its model, or what it says
	ReasonUnsupported   Reason = "unsupported"    // the backend does not take a field of the request, or its value: its options are wrong
	ReasonRefused       Reason = "refused"        // content policy
	ReasonContextLength Reason = "context_length" // the text is too long for the model or the server
	ReasonToolCall      Reason = "tool_call"      // a tool call instead of a summary
	ReasonAuth          Reason = "auth"           // the key was not accepted
)

// Reasons lists the closed set.
var Reasons = [...]Reason{
	ReasonConnect, ReasonReset, ReasonFirstByte, ReasonStall, ReasonDeadline,
	ReasonCancelled, ReasonTruncated, ReasonEmpty, ReasonBadAnswer, ReasonTooLarge,
	ReasonUpstreamError, ReasonRateLimited, ReasonQuota, ReasonBadRequest,
	ReasonRefused, ReasonContextLength, ReasonToolCall, ReasonAuth, ReasonUnsupported,
}

// Retry says where another try makes sense.
type Retry uint8

// Where to try again.
const (
	RetryNowhere    Retry = iota // the answer would be the same everywhere, or nobody waits for it
	RetryOtherModel              // only on a backend with another model
	RetryOther                   // on another backend
	RetrySame                    // here once more, or on another backend
)

// Error is a call that brought no whole answer.
type Error struct {
	Reason Reason
	// Backend is the backend's name.
	Backend string
	// Status is the HTTP status, 0 if there was none.
	Status int
	// RetryAfter is how long the backend asked to be left alone; 0: it did not
	// say. At most 24 h.
	RetryAfter time.Duration
	// Stale is set with ReasonReset when the connection had been kept from an
	// earlier call and broke before anything was received: servers close such
	// connections as a request goes out. The next call has a fresh one.
	Stale bool
	// Detail is what the backend or the network said, bounded, on one line,
	// without the configured secrets. It is for logs; producers see it only of a
	// reason that lies in their own text.
	Detail string
	// Advice says what to change in the backend's options or the class's, of a
	// ReasonUnsupported and where reasoning used up the output limit; else it is
	// empty. Nothing of it but a field's name comes from the backend.
	Advice string
}

func (e *Error) Error() string {
	s := "backend " + e.Backend + ": " + string(e.Reason)
	if e.Status != 0 {
		s += " (HTTP " + strconv.Itoa(e.Status) + ")"
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Advice != "" {
		s += "; " + e.Advice
	}
	return s
}

// Retry says where another try makes sense. Whether there is time for one is
// the caller's question.
func (e *Error) Retry() Retry {
	switch e.Reason {
	case ReasonRefused, ReasonCancelled, ReasonDeadline:
		return RetryNowhere
	case ReasonContextLength:
		if e.Status == http.StatusRequestEntityTooLarge || e.Status == http.StatusTooManyRequests {
			return RetryOther // a bound of the server or the account
		}
		return RetryOtherModel
	case ReasonUpstreamError, ReasonRateLimited:
		return RetrySame
	case ReasonReset:
		if e.Stale {
			return RetrySame
		}
		return RetryOther
	default:
		return RetryOther
	}
}

// NotNow reports whether the backend asked to be called later: it has too much to
// do, or is loading its model. That may be over soon, so that it may be asked
// again after a pause, but another backend is better than guessing when.
func (e *Error) NotNow() bool {
	return e.Reason == ReasonRateLimited || e.Reason == ReasonUpstreamError && (e.Status == 503 || e.Status == 529)
}

// wireError is an error object found in a response body.
type wireError struct {
	code, kind, message string
	param               string // the field that it is about, if that is said
}

// Statuses that servers use for any kind of error. Messages are searched only
// there, so that a prompt quoted in a message of another kind is not taken for a
// reason.
var anyKind = []int{200, 400, 413, 422, 500}

// signs tell why a call was turned away, and are looked for in this order.
// Words come before statuses: 400, 403, 413, 422, 500 and 200 are all used for
// the same thing by one server or another. A bare 403 has none: a firewall
// answers so to what a text says.
var signs = []struct {
	reason   Reason
	words    []string // in the error's code or type
	phrases  []string // in its message, if the status is one of those in where
	where    []int
	statuses []int
}{
	{
		reason: ReasonContextLength,
		words:  []string{"context_length", "exceed_context_size", "context_window", "request_too_large"},
		phrases: []string{
			"maximum context length", "context window", "prompt is too long", "available context size", "context length exceeded",
			"input is too long",                         // Bedrock
			"input token count",                         // Gemini
			"exceed context limit", "request too large", // Anthropic; a text beyond the tokens of a minute
			"maximum model length",                                  // vLLM
			"exceeds the context length", "than the context length", // Ollama, LM Studio
			"input is too large to process",                  // llama.cpp
			"maximum prompt length", "too many input tokens", // xAI, Nova
			"must have less than", "`max_new_tokens` must be", // TGI
		},
		where:    append([]int{429}, anyKind...),
		statuses: []int{413},
	},
	{
		reason: ReasonUnsupported,
		words:  []string{"unsupported_parameter", "unsupported_value", "unknown_parameter", "extra_forbidden"},
		phrases: []string{
			"unsupported parameter", "unsupported value:", "unknown parameter", // OpenAI
			"unrecognized request argument",         // Azure
			"extra inputs are not permitted",        // Anthropic, vLLM, Mistral
			"unsupported param:",                    // llama.cpp
			"\" is unsupported", "' is unsupported", // Groq
			"unknown name \"", "unknown field \"", // Gemini, servers in Go
			"argument not supported on this model", "does not support parameter", // xAI, LiteLLM
			"not supported with this model", "not supported for this model",
			"does not support thinking",          // Ollama
			"may only be set to 1 when thinking", // Anthropic
		},
		where: []int{400, 422, 200},
	},
	{
		reason:  ReasonRefused,
		words:   []string{"content_filter", "content_policy", "moderation", "responsibleai"},
		phrases: []string{"content policy", "content management policy", "flagged by", "violates our usage"},
		where:   append([]int{403}, anyKind...),
	},
	{
		reason:   ReasonQuota,
		words:    []string{"insufficient_quota", "billing"},
		phrases:  []string{"credit balance is too low"},
		where:    anyKind,
		statuses: []int{402},
	},
	{
		reason:   ReasonAuth,
		words:    []string{"invalid_api_key", "authentication_error", "permission_error", "permission_denied", "unauthenticated"},
		phrases:  []string{"api key not valid", "invalid api key", "incorrect api key"},
		where:    []int{400, 403},
		statuses: []int{401},
	},
	{reason: ReasonRateLimited, words: []string{"rate_limit"}, statuses: []int{429}},
}

// classify turns an HTTP status and what the body said into a reason. A status
// of 200 means an error object inside a success; a gateway puts the status that
// it got itself into the code of one.
func classify(status int, w wireError) Reason {
	if n, err := strconv.Atoi(w.code); err == nil && status == http.StatusOK && n >= 400 && n < 600 {
		status = n
	}
	code, kind, msg := strings.ToLower(w.code), strings.ToLower(w.kind), strings.ToLower(w.message)
	in := func(text string) func(string) bool {
		return func(part string) bool { return strings.Contains(text, part) }
	}
	for _, s := range signs {
		if slices.ContainsFunc(s.words, in(code)) || slices.ContainsFunc(s.words, in(kind)) ||
			slices.Contains(s.where, status) && slices.ContainsFunc(s.phrases, in(msg)) ||
			slices.Contains(s.statuses, status) {
			return s.reason
		}
	}
	switch {
	case status >= 500 || status == 408 || status == 425 || status == 200:
		return ReasonUpstreamError
	case status >= 400:
		return ReasonBadRequest
	}
	return ReasonBadAnswer
}

// asError is what a backend said, as an error.
func (w wireError) asError(status int) *Error {
	w = w.named()
	e := &Error{Reason: classify(status, w), Detail: w.message}
	if e.Reason == ReasonUnsupported {
		e.Advice = advise(w)
	}
	if e.Reason == ReasonAuth || status == http.StatusForbidden {
		// Services quote parts of the key when they refuse it.
		e.Detail = ""
	}
	return e
}

// reported is the error a backend put in a place where an answer was expected.
// isError is set when the event itself was named so.
func reported(s *sink, data []byte, isError bool) error {
	// Each form of an error object holds the word; most events do not.
	if !isError && !bytes.Contains(data, []byte("error")) {
		return nil
	}
	w, found := findError(data)
	if !found && !isError {
		return nil
	}
	s.any = true
	return w.asError(http.StatusOK)
}

// findError looks for an error object in a body, in the forms servers use:
// {"error": {...}}, {"error": "..."}, {"object": "error", ...},
// {"type": "error", "error": {...}}, {"detail": ...} and {"message": ...}
// beside an error code; alone, or as the first of an array.
func findError(data []byte) (wireError, bool) {
	if list := []json.RawMessage(nil); bytes.HasPrefix(data, []byte("[")) && json.Unmarshal(data, &list) == nil && len(list) > 0 {
		data = list[0]
	}
	var body struct {
		Error   json.RawMessage `json:"error"`
		Object  text            `json:"object"`
		Type    text            `json:"type"`
		Code    json.RawMessage `json:"code"`
		Message text            `json:"message"`
		Detail  json.RawMessage `json:"detail"`
		Param   text            `json:"param"`
	}
	if json.Unmarshal(data, &body) != nil {
		return wireError{}, false
	}
	if extra, ok := extraInputs(body.Detail); ok {
		return extra, true
	}
	top := wireError{scalar(body.Code), string(body.Type), cmp.Or(string(body.Message), scalar(body.Detail)), string(body.Param)}
	if !says(body.Error) { // some send {} or "" beside each piece of text
		return top, body.Object == "error" || body.Type == "error"
	}
	var inner struct {
		Code    json.RawMessage `json:"code"`
		Type    text            `json:"type"`
		Status  text            `json:"status"` // Google's word for the type
		Message text            `json:"message"`
		Param   text            `json:"param"`
	}
	if json.Unmarshal(body.Error, &inner) == nil {
		return wireError{scalar(inner.Code), string(cmp.Or(inner.Type, inner.Status)), string(inner.Message), string(inner.Param)}, true
	}
	top.message = scalar(body.Error)
	return top, true
}

// scalar is the text of a JSON string or number.
func scalar(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	if len(raw) > 0 && len(raw) <= 32 && raw[0] != '{' && raw[0] != '[' {
		return string(raw)
	}
	return ""
}

const maxDetail = 200

// clean makes a text from outside fit for one line of a log.
func clean(s string, secrets ...string) string {
	// Longer than maxDetail, so that a secret across the cut is still found
	// whole; shorter than anything that would cost time.
	if len(s) > 64*maxDetail {
		s = s[:64*maxDetail]
	}
	for _, secret := range secrets {
		// A very short secret would turn every text into placeholders.
		if len(secret) >= 4 {
			s = strings.ReplaceAll(s, secret, redacted)
		}
	}
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxDetail {
		s = strings.ToValidUTF8(s[:maxDetail], "") + "..."
	}
	return s
}
