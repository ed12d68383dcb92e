package lab

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// answer is what a healthy backend would say to a request.
type answer struct {
	pieces    []string // tokens; together the text
	finish    string   // "stop" or "length"
	asked     string   // the request's text; only while its plan is made
	prefilled bool     // the request ends in the beginning of its own answer
	// The request has max_tokens, and stream_options.
	maxTokens, streamOpts bool
	prompt                int // tokens
	reasoning             int // tokens of the completion that are not in pieces
	billed                int // completion tokens; len(pieces) unless a fault says otherwise
	deduped               bool
}

// plan is how a request is to be answered: the healthy way, with whatever a
// fault changes in it.
type plan struct {
	fault fault
	ans   answer

	// Replies that take no slot.
	response *response
	reset    bool

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
	errorBare bool // and stands alone

	// Form.
	cutAt     int // ends after so many pieces; 0: does not
	abrupt    bool
	badAt     int // piece that is malformed; 0: none
	noDone    bool
	early     string // a finish reason beside pieces, not only at the end; empty: none
	earlyAt   int    // the piece that has it; negative: each
	comments  bool
	noSpace   bool
	splitData bool                // JSON over several data lines
	padding   int                 // bytes in the event of the second piece
	lines     int                 // comment lines after the first piece
	halves    bool                // a character's halves come in two pieces
	pings     bool                // events that carry nothing, before each event
	index     func(piece int) int // of the choice; nil: 0
	noError   any                 // beside the choices, where an error would be
	asBody    bool                // whole although a stream was asked for
	bom       bool
	mime      string // content type instead of the true one
	status    int    // instead of 200
	gzip      bool
	gzipTold  bool
	usageForm usageForm
	usageLate time.Duration   // after the finish reason
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

// newPlan returns how to answer with ans under f.
func newPlan(f fault, ans answer) plan {
	ans.billed = len(ans.pieces)
	p := plan{fault: f, ans: ans, errorAt: -1}
	if !f.ownTime {
		p.firstByte = f.delay
	}
	if f.variant.plan != nil {
		f.variant.plan(&p)
	}
	p.ans.asked = "" // kept answers need not hold it
	return p
}

// setText makes another text the answer.
func (p *plan) setText(pieces []string, finish string) { p.bill(pieces, finish, len(pieces)) }

// bill makes another text the answer, with another number of tokens billed.
func (p *plan) bill(pieces []string, finish string, billed int) {
	p.ans.pieces, p.ans.finish, p.ans.billed = pieces, finish, billed
}

// half is in the middle of the answer, but not at its beginning.
func (p *plan) half() int { return max(1, len(p.ans.pieces)/2) }

func (p *plan) cut(abrupt bool) {
	p.cutAt, p.abrupt = max(1, min(cutAfter, len(p.ans.pieces)*2/3)), abrupt
}

// reasonOnly puts the text in a field for reasoning.
func (p *plan) reasonOnly(field string) {
	p.bill(p.ans.pieces[:min(len(p.ans.pieces), emptyBilled)], "length", emptyBilled)
	p.reasoning, p.ans.reasoning = field, emptyBilled
}

// retryAfter rejects with a hint in seconds, or as a date.
func (p *plan) retryAfter(date bool) {
	hint := (p.fault.own(2*time.Second) + time.Second - 1).Truncate(time.Second)
	value := strconv.Itoa(int(hint / time.Second))
	if date {
		value = time.Now().Add(hint).UTC().Format(http.TimeFormat)
	}
	p.response = errorResponse(newError(http.StatusTooManyRequests, rateLimit, "", "rate_limit_exceeded", "Rate limit reached. Please try again later."))
	p.response.header.Set("Retry-After", value)
}

// claimUsage shows u as the usage block, asked for or not.
func (p *plan) claimUsage(u any) { p.usageForm, p.usage = usageChunk, marshal(u) }

// claimCost shows u with a cost, in whole units of money.
func (p *plan) claimCost(u usage, cost float64) {
	p.claimUsage(struct {
		usage
		Cost    float64            `json:"cost"`
		Details map[string]float64 `json:"cost_details"`
	}{u, cost, map[string]float64{"upstream_inference_cost": cost}})
}

// billApart bills reasoning that the completion tokens do not hold, shown beside
// them or not, and in the total or not.
func (p *plan) billApart(beside, inTotal bool) {
	u := p.trueUsage()
	p.ans.billed, p.ans.reasoning = p.ans.billed+apartBilled, apartBilled
	if beside {
		u.CompletionTokensDetails.ReasoningTokens = apartBilled
	}
	if inTotal {
		u.TotalTokens += apartBilled
	}
	p.claimUsage(u)
}

func (p *plan) trueUsage() usage { return newUsage(p.ans.prompt, p.ans.billed, p.ans.reasoning) }

// usageFor returns the usage block when sent completion tokens are out.
func (p *plan) usageFor(sent int) json.RawMessage {
	if p.usage != nil {
		return p.usage
	}
	return marshal(newUsage(p.ans.prompt, sent, p.ans.reasoning))
}

// dedupable reports whether the plan's answer may be kept for a later request
// with the same key.
func (p *plan) dedupable() bool {
	return p.fault.name == "" || p.fault.name == "ok" || p.fault.name == "slow"
}

// shown reports whether the pieces are answer text.
func (p *plan) shown() bool { return p.reasoning == "" && !p.refusal }
