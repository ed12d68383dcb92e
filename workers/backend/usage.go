package backend

import (
	"bytes"
	"encoding/json"
	"math"
	"math/big"
	"math/bits"
	"strconv"
	"strings"
)

// UsageHow says how the numbers of a [Usage] were come by.
type UsageHow string

// How usage is known.
const (
	// UsageUnknown: the backend was asked and may have worked and billed, but
	// nothing of it was seen. InputTokens is an estimate, the rest is 0: a
	// lower bound.
	UsageUnknown UsageHow = "unknown"
	// UsageReported: as the backend said.
	UsageReported UsageHow = "reported"
	// UsageEstimated: at least one number was estimated from the text sent and
	// what was streamed.
	UsageEstimated UsageHow = "estimated"
	// UsageNone: the backend was not reached or turned the call away, so that
	// nothing can have been billed.
	UsageNone UsageHow = "none"
)

// Usage is what a call used. No number is ever negative.
type Usage struct {
	InputTokens, OutputTokens int64
	// CachedTokens are the part of InputTokens, ReasoningTokens the part of
	// OutputTokens, that the backend says so of.
	CachedTokens, ReasoningTokens int64
	// ReportedCostMicro is the cost the backend itself put on the call, in
	// micro-units of its currency, rounded up. nil: it did not say.
	ReportedCostMicro *int64
	How               UsageHow
	// Clamped is set when a number the backend reported could not be true
	// (negative, not a number, far beyond the text and the limits) and was
	// replaced by an estimate or a bound.
	Clamped bool
}

// Price is what a backend charges, in micro-units of the configured currency.
// All zero: the backend is free.
type Price struct {
	InputMicroPerMTok  int64 // for a million input tokens
	CachedMicroPerMTok int64 // for a million cached input tokens; 0: as input
	OutputMicroPerMTok int64 // for a million output tokens
	CallMicro          int64 // for each call
}

// Free reports whether the backend charges nothing.
func (p Price) Free() bool { return p == Price{} }

// CostMicro is what u costs: the cost the backend reported, else the tokens at
// this price, rounded up. Usage of kind [UsageNone] costs nothing. It saturates
// and is never negative.
func (p Price) CostMicro(u Usage) int64 {
	if u.ReportedCostMicro != nil {
		return max(0, *u.ReportedCostMicro)
	}
	if u.How == UsageNone {
		return 0
	}
	cached := min(max(0, u.CachedTokens), max(0, u.InputTokens))
	cachedPrice := p.CachedMicroPerMTok
	if cachedPrice == 0 {
		cachedPrice = p.InputMicroPerMTok
	}
	return satAdd(p.CallMicro, tokensCost(
		[2]int64{u.InputTokens - cached, p.InputMicroPerMTok},
		[2]int64{cached, cachedPrice},
		[2]int64{u.OutputTokens, p.OutputMicroPerMTok},
	))
}

// LargestCostMicro is the most that r can be expected to cost: the whole text
// and the whole output limit. Without a limit the answer is taken to be as long
// as the text.
func (p Price) LargestCostMicro(r *Request) int64 { return p.LargestCostOf(r, int64(len(r.Text))) }

// LargestCostOf is LargestCostMicro of a request whose text, which is not read,
// is that many bytes.
func (p Price) LargestCostOf(r *Request, textBytes int64) int64 {
	in := EstimateTokens(r.System) + tokensIn(textBytes)
	out := int64(r.MaxOutputTokens)
	if out <= 0 {
		out = in
	}
	return p.CostMicro(Usage{InputTokens: in, OutputTokens: out, How: UsageEstimated})
}

// tokensCost is the sum of tokens x price per million, rounded up once,
// saturating.
func tokensCost(terms ...[2]int64) int64 {
	var hi, lo uint64
	for _, t := range terms {
		h, l := bits.Mul64(uint64(max(0, t[0])), uint64(max(0, t[1])))
		var carry uint64
		lo, carry = bits.Add64(lo, l, 0)
		hi, carry = bits.Add64(hi, h, carry)
		if carry != 0 {
			return math.MaxInt64
		}
	}
	const million = 1_000_000
	if hi >= million {
		return math.MaxInt64
	}
	q, rem := bits.Div64(hi, lo, million)
	if q >= math.MaxInt64 {
		return math.MaxInt64
	}
	if rem > 0 {
		q++
	}
	return int64(q)
}

func satAdd(a, b int64) int64 {
	a, b = max(0, a), max(0, b)
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// EstimateTokens estimates how many tokens a text is: a quarter of its bytes,
// rounded up. That is close for English and errs by less than two for most
// other scripts, whose characters take two to four bytes and about one token.
func EstimateTokens(text string) int64 { return tokensIn(int64(len(text))) }

func tokensIn(bytes int64) int64 { return (bytes + 3) / 4 }

// count is one number of a usage block, read with tolerance: a JSON number or a
// string holding one.
type count struct {
	n   int64
	set bool // a believable number was there
	bad bool // something was there that cannot be a count
}

// maxCount bounds any single number of a usage block, so that sums of them
// cannot overflow. How much is believable for one call is settled later.
const maxCount = int64(1) << 40

// UnmarshalJSON implements [json.Unmarshaler]. It accepts anything.
func (c *count) UnmarshalJSON(b []byte) error {
	*c = parseCount(b)
	return nil
}

func parseCount(b []byte) count {
	text := strings.TrimSpace(strings.Trim(string(bytes.TrimSpace(b)), `"`))
	if text == "" || text == "null" {
		return count{}
	}
	if len(text) > 64 {
		return count{bad: true}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(f) || f < 0 || f > float64(maxCount) {
			return count{bad: true}
		}
		n = int64(math.Ceil(f))
	}
	if n < 0 || n > maxCount {
		return count{bad: true}
	}
	return count{n: n, set: true}
}

// merge takes a later report of the same number: usage may be repeated, and
// the last believable value is the final one. A zero after more is the absence
// of a number, not a correction.
func (c *count) merge(later count) {
	c.bad = c.bad || later.bad
	if later.set && (later.n > 0 || !c.set) {
		c.n, c.set = later.n, true
	}
}

// money is an amount in whole units, read as micro-units.
type money struct {
	micro    int64
	set, bad bool
}

// maxCostUnits bounds the believable cost of one call, in whole units.
const maxCostUnits = 1_000_000

// UnmarshalJSON implements [json.Unmarshaler]. It accepts anything.
func (m *money) UnmarshalJSON(b []byte) error {
	*m = parseMoney(b)
	return nil
}

func parseMoney(b []byte) money {
	text := strings.TrimSpace(strings.Trim(string(bytes.TrimSpace(b)), `"`))
	if text == "" || text == "null" {
		return money{}
	}
	if len(text) > 64 {
		return money{bad: true}
	}
	// The float only guards the range; the amount itself is read exactly.
	f, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || math.IsNaN(f) || f < 0 || f > maxCostUnits:
		return money{bad: true}
	case f == 0:
		return money{set: true}
	case f < 1e-12:
		// Too small to matter, with an exponent that exact arithmetic should
		// not be asked to spell out. Rounded up like every other amount.
		return money{micro: 1, set: true}
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return money{bad: true}
	}
	r.Mul(r, big.NewRat(1_000_000, 1))
	q, rem := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if rem.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return money{micro: q.Int64(), set: true}
}

// report gathers the usage blocks of one answer.
type report struct {
	input, output, cached, reasoning count
	cost                             money
	// bad is set when a block was there that is no usage block at all.
	bad bool
}

func (r *report) merge(later report) {
	r.input.merge(later.input)
	r.output.merge(later.output)
	r.cached.merge(later.cached)
	r.reasoning.merge(later.reasoning)
	r.bad = r.bad || later.bad
	r.cost.bad = r.cost.bad || later.cost.bad
	if later.cost.set && (later.cost.micro > 0 || !r.cost.set) {
		r.cost.micro, r.cost.set = later.cost.micro, true
	}
}

// streamed is what was seen of an answer, for estimates and for judging
// reports.
type streamed struct {
	inputTokens int64 // estimate for what was sent
	inputBytes  int64
	pieces      int64 // of answer and reasoning text
	bytes       int64 // of answer and reasoning text
	limit       int64 // MaxOutputTokens
	// ended is set when the backend said how the answer ended, so that its
	// last report is final.
	ended bool
}

// Slack over what the text explains: templates, system prompts and hidden
// reasoning of the backend's own.
const (
	hiddenInput  = 16 << 10
	hiddenOutput = 128 << 10
)

// settle turns reports into usage that can be booked.
func (r *report) settle(s streamed) Usage {
	u := Usage{
		How:     UsageReported,
		Clamped: r.bad || r.input.bad || r.output.bad || r.cached.bad || r.reasoning.bad || r.cost.bad,
	}
	// A token is at least a byte, so that more tokens than bytes (and a
	// margin) cannot be true.
	if r.input.n > s.inputBytes+hiddenInput {
		r.input = count{}
		u.Clamped = true
	}
	if r.output.n > max(s.limit, s.bytes)+hiddenOutput {
		r.output = count{}
		u.Clamped = true
	}
	guess := max(s.pieces, (s.bytes+3)/4)

	u.InputTokens = r.input.n
	if u.InputTokens == 0 {
		u.InputTokens = s.inputTokens
		u.How = UsageEstimated
	}
	u.OutputTokens = r.output.n
	switch {
	case !r.output.set || (u.OutputTokens == 0 && guess > 0):
		u.OutputTokens = guess
		u.How = UsageEstimated
	case !s.ended:
		// A report from the middle of an answer is a lower bound.
		u.OutputTokens = max(u.OutputTokens, guess)
		u.How = UsageEstimated
	}
	if u.How == UsageEstimated && !r.input.set && !r.output.set && s.pieces == 0 && !s.ended {
		u.How = UsageUnknown
	}
	u.CachedTokens = r.cached.n
	if u.CachedTokens > u.InputTokens {
		u.CachedTokens = u.InputTokens
		u.Clamped = true
	}
	u.ReasoningTokens = r.reasoning.n
	if u.ReasoningTokens > u.OutputTokens {
		u.ReasoningTokens = u.OutputTokens
		u.Clamped = true
	}
	if r.cost.set {
		micro := r.cost.micro
		u.ReportedCostMicro = &micro
	}
	return u
}

// openAIUsage is the usage block of the OpenAI protocol and its relatives.
type openAIUsage struct {
	PromptTokens     count `json:"prompt_tokens"`
	CompletionTokens count `json:"completion_tokens"`
	TotalTokens      count `json:"total_tokens"`
	InputTokens      count `json:"input_tokens"`
	OutputTokens     count `json:"output_tokens"`
	CacheHitTokens   count `json:"prompt_cache_hit_tokens"`
	PromptDetails    struct {
		CachedTokens count `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		ReasoningTokens count `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
	Cost money `json:"cost"`
}

// parseOpenAIUsage reads a usage block. It accepts anything; what cannot be
// read is marked.
func parseOpenAIUsage(b []byte) report {
	b = bytes.TrimSpace(b)
	if len(b) == 0 || bytes.Equal(b, []byte("null")) {
		return report{}
	}
	var u openAIUsage
	if err := json.Unmarshal(b, &u); err != nil {
		// The fields before the fault were read, but which ones is not known:
		// a block of the wrong shape is not believed.
		return report{bad: true}
	}
	r := report{
		input:     u.PromptTokens,
		output:    u.CompletionTokens,
		cached:    u.PromptDetails.CachedTokens,
		reasoning: u.CompletionDetails.ReasoningTokens,
		cost:      u.Cost,
	}
	r.input.merge(u.InputTokens)
	r.output.merge(u.OutputTokens)
	r.cached.merge(u.CacheHitTokens)
	if u.TotalTokens.bad {
		r.bad = true
	}
	if !r.output.set && r.input.set && u.TotalTokens.n > r.input.n {
		r.output = count{n: u.TotalTokens.n - r.input.n, set: true}
	}
	return r
}
