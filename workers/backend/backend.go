// Package backend calls one language-model endpoint and says exactly what came
// back: a whole answer, or what was wrong with it, and what it cost so far.
//
// There is one file per wire protocol (openai.go, anthropic.go, ollama.go) and
// one suite over all of them. What the protocols share is here, in wire.go and in
// call.go:
// a first byte is the first answer text and nothing else, an answer is whole
// only when the protocol says how it ended, everything read is bounded, and
// nothing waits longer than the context it was given.
//
// One limit cannot be lifted: a 200 whose answer text is an apology or an
// advertisement ("you have run out of credits") cannot be told from an answer
// and is passed on as one.
package backend

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"leeway/broker"
)

// Protocol names a wire protocol.
type Protocol string

// The protocols.
const (
	OpenAI    Protocol = "openai"    // chat completions, as spoken by vLLM, llama.cpp, OpenRouter and others
	Anthropic Protocol = "anthropic" // messages
	Ollama    Protocol = "ollama"    // native /api/chat
)

// Protocols lists the protocols there are.
var Protocols = [...]Protocol{OpenAI, Anthropic, Ollama}

// Limits of a call.
const (
	// DefaultStall is how long a stream may be quiet once answer text flows.
	DefaultStall = 10 * time.Second
	// Tail is how long to wait, once a backend has said how the answer ended,
	// for the usage block, the terminator, or more text: then the word was not
	// the end. Only a backend that leaves the connection open without a
	// terminator takes it.
	Tail = 2 * time.Second

	// maxAnswerBytes bounds the answer text.
	maxAnswerBytes = 1 << 20
	// maxEventBytes bounds one event or line of a stream, and therefore what a
	// single allocation can grow to.
	maxEventBytes = 512 << 10
	// maxStreamBytes bounds everything read for one answer, after
	// decompression.
	maxStreamBytes = 32 << 20
	// maxReasoningBytes bounds the reasoning text that is kept; what exceeds
	// it is counted and dropped.
	maxReasoningBytes = 64 << 10
	// maxErrorBytes bounds what is read of an error response.
	maxErrorBytes = 64 << 10
	// refusalGrace is how long to wait for the body of an error response. The
	// status is known without it.
	refusalGrace = 500 * time.Millisecond
	// drainGrace is how long to wait, after the terminator, for the end of the
	// body, so that the connection can be used again.
	drainGrace = 50 * time.Millisecond
)

// Secret is a value that must not be printed. Its text is had only by
// converting it to string.
type Secret string

const redacted = "[redacted]"

// String returns a placeholder.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString returns a placeholder.
func (s Secret) GoString() string { return fmt.Sprintf("%q", s.String()) }

// MarshalText returns a placeholder.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue implements [slog.LogValuer].
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Config describes one endpoint and model.
type Config struct {
	// Name is the backend's name in pools, logs and metrics. Required.
	Name string
	// Protocol is the wire protocol. Defaults to OpenAI.
	Protocol Protocol
	// BaseURL is the address the protocol's path is appended to, for example
	// http://127.0.0.1:8000/v1. Required; http or https, without user info,
	// query or fragment, because addresses appear in errors.
	BaseURL string
	// Model is the model asked for. Required.
	Model string
	// Key is sent the way the protocol wants it, or under KeyHeader if that is
	// set, as it is. Defaults to none.
	Key       Secret
	KeyHeader string
	// Headers are sent with every call. Their values are treated as secrets.
	Headers map[string]Secret
	// Path goes in the place of the protocol's, for example
	// /openai/deployments/NAME/chat/completions; Query is added to the address.
	// Path begins with a slash and holds neither query nor fragment. Default to
	// the protocol's path and no query.
	Path  string
	Query map[string]string
	// LimitField is where an OpenAI-compatible backend takes the output limit.
	// Defaults to LimitMaxTokens.
	LimitField string
	// NoStream asks for the answer in one piece, so that its first byte comes with
	// its last. NoStreamUsage leaves stream_options out: usage is then estimated
	// where the backend does not tell it unasked. Default to false.
	NoStream, NoStreamUsage bool
	// Body are further fields of each request, to be written as JSON. What a
	// request says itself stays as it is.
	Body map[string]any
	// Stall is how long the stream may be quiet between tokens. Defaults to
	// DefaultStall.
	Stall time.Duration
	// Transport carries the calls. Defaults to a transport of the client's
	// own that uses no proxy and asks for no compression.
	Transport http.RoundTripper

	// Limits that only tests set otherwise.
	maxAnswerBytes, maxEventBytes int
	maxStreamBytes                int64
}

func (c Config) withDefaults() Config {
	c.Protocol = cmp.Or(c.Protocol, OpenAI)
	c.LimitField = cmp.Or(c.LimitField, LimitMaxTokens)
	c.Stall = cmp.Or(c.Stall, DefaultStall)
	c.maxAnswerBytes = cmp.Or(c.maxAnswerBytes, maxAnswerBytes)
	c.maxEventBytes = cmp.Or(c.maxEventBytes, maxEventBytes)
	c.maxStreamBytes = cmp.Or(c.maxStreamBytes, maxStreamBytes)
	return c
}

// validate returns a [broker.FieldError], which never holds the value: that may
// be a secret.
func (c *Config) validate() error {
	u, err := url.Parse(c.BaseURL)
	switch {
	case c.Name == "":
		return broker.Fieldf("Name", "is required")
	case c.Model == "":
		return broker.Fieldf("Model", "is required")
	case c.BaseURL == "":
		return broker.Fieldf("BaseURL", "is required")
	case err != nil:
		return broker.Fieldf("BaseURL", "is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return broker.Fieldf("BaseURL", "must begin with http:// or https://")
	case u.Host == "":
		return broker.Fieldf("BaseURL", "names no host")
	case u.User != nil:
		return broker.Fieldf("BaseURL", "must not hold user info; use Key or Headers")
	case u.RawQuery != "" || u.Fragment != "":
		return broker.Fieldf("BaseURL", "must not hold a query or fragment; use Query")
	case c.Path != "" && !plainPath(c.Path):
		return broker.Fieldf("Path", "must begin with a slash and hold neither query nor fragment")
	case c.KeyHeader != "" && !httpguts.ValidHeaderFieldName(c.KeyHeader):
		return broker.Fieldf("KeyHeader", "cannot be a header's name")
	case c.Stall < 0:
		return broker.Fieldf("Stall", "must not be negative")
	case !httpguts.ValidHeaderFieldValue(string(c.Key)):
		return broker.Fieldf("Key", "holds a line break or another control character")
	}
	for name, value := range c.Headers {
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(string(value)) {
			return broker.Fieldf("Headers", "holds a name or value that cannot be sent")
		}
	}
	return nil
}

// plainPath reports whether s is a path and nothing more.
func plainPath(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Scheme == "" && u.Host == "" && u.RawQuery == "" && u.Fragment == "" && !strings.ContainsAny(s, "?#") && s[0] == '/'
}

// Request is one call.
type Request struct {
	// RequestID is sent as X-Request-Id, so that the backend's log can be
	// matched with ours. One per attempt. It and IdempotencyKey are left out
	// if they are not printable ASCII of at most 256 bytes.
	RequestID string
	// IdempotencyKey is sent as Idempotency-Key. The same key may be sent
	// again only to the same backend.
	IdempotencyKey string
	// System is the instruction, Text what is to be summarised.
	System, Text string
	// MaxOutputTokens is the largest answer asked for; 0: no limit is sent.
	MaxOutputTokens int
	// Options are the call's; a client has none of its own.
	Options Options
	// FirstByte is how long the first answer text may take, connecting
	// included. 0: only the context bounds it.
	FirstByte time.Duration
}

// OutputLimit is the limit that is sent: that of the answer and what is kept for
// reasoning; 0: none.
func (r *Request) OutputLimit() int {
	if r.MaxOutputTokens <= 0 {
		return 0
	}
	return r.MaxOutputTokens + r.Options.Allowance()
}

// InputTokens estimates how many tokens the request is.
func (r *Request) InputTokens() int64 {
	return EstimateTokens(int64(len(r.System))) + EstimateTokens(int64(len(r.Text)))
}

// Observer is told of an answer while it arrives. Its functions run on the
// goroutine of the call and must not block; nil ones are skipped.
type Observer struct {
	// FirstByte is called once, with the time since the call began, when the
	// first answer text is seen.
	FirstByte func(after time.Duration)
	// Text is called with each piece of answer text, in order.
	Text func(piece string)
}

// Finish says how a backend ended its answer.
type Finish string

// The ways an answer ends.
const (
	FinishNone    Finish = ""          // the backend did not say: the answer is not whole
	FinishStop    Finish = "stop"      // it had said everything
	FinishLength  Finish = "length"    // a limit of tokens was reached
	FinishTool    Finish = "tool_call" // it wants a tool called
	FinishFilter  Finish = "filter"    // a content policy stopped it
	FinishError   Finish = "error"     // it failed on the way
	FinishAborted Finish = "aborted"   // it was stopped on the way
	FinishOther   Finish = "other"     // a word this package does not know
)

// Answer is what a call brought, whole or not.
type Answer struct {
	// Text is the answer. Reasoning is what the model thought aloud, bounded
	// and never part of the answer.
	Text, Reasoning string
	Finish          Finish
	// Whole is set when the answer is complete and not blank: the only kind
	// that may be passed off as an answer.
	//
	// An answer that ended with FinishLength is whole when the limit reached
	// was the one asked for, MaxOutputTokens: the backend did as it was told.
	// When it reports fewer tokens than the limit that was sent, or no limit was
	// asked for, it ran out of context and the answer is truncated. So is one that
	// reasoning has left fewer than MaxOutputTokens to.
	Whole bool
	Usage Usage
	// FirstByte is when the first answer text came, LastByte when the backend
	// said how the answer ended, or else when the last text came; both since
	// the call began. FirstByte counts only if HasText.
	FirstByte, LastByte time.Duration
	// HasText is set once answer text was seen that is not blank.
	HasText bool
}

// Client calls one endpoint and model. It may be used by many goroutines.
type Client struct {
	cfg  Config
	wire wire
	hc   *http.Client
	url  string
}

// New returns a client for the backend described by cfg, or a
// [broker.FieldError].
func New(cfg Config) (*Client, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	w, ok := wires[cfg.Protocol]
	if !ok {
		return nil, broker.Fieldf("Protocol", "is not one of openai, anthropic, ollama")
	}
	c := &Client{cfg: cfg, wire: w, url: strings.TrimRight(cfg.BaseURL, "/") + cmp.Or(cfg.Path, w.path)}
	if len(cfg.Query) > 0 {
		query := url.Values{}
		for name, value := range cfg.Query {
			query.Set(name, value)
		}
		c.url += "?" + query.Encode()
	}
	rt := cfg.Transport
	if rt == nil {
		rt = newTransport()
	}
	c.hc = &http.Client{
		Transport: rt,
		// A redirect would send the text and the key elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// Name is the backend's name.
func (c *Client) Name() string { return c.cfg.Name }

// Model is the model the client asks for.
func (c *Client) Model() string { return c.cfg.Model }

// Close closes idle connections. Calls under way are not touched.
func (c *Client) Close() { c.hc.CloseIdleConnections() }

// dialBackstop ends a dial or handshake nobody waits for any more: net/http
// lets one go on after its call was cut, and a host that drops packets would
// otherwise collect them for as long as TCP tries.
const dialBackstop = 30 * time.Second

// idleFor is how long a connection without a call is kept. Common servers (Node,
// uvicorn) close theirs after 5 s, perhaps as a call goes out on it.
const idleFor = 4 * time.Second

// newTransport returns a transport whose calls are bounded by their context
// alone, connecting and headers included.
func newTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: dialBackstop, KeepAlive: 15 * time.Second}
	return &http.Transport{
		Proxy:                  nil,
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    dialBackstop,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           256,
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        idleFor,
		MaxResponseHeaderBytes: 64 << 10,
	}
}
