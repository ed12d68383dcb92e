package backend

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"strconv"
	"strings"

	"leeway/broker"
)

// Usage is what a call used. No number is ever negative. Where Known says
// "unknown", the backend was asked and may have worked and billed, but nothing
// of it was seen: InputTokens is an estimate and the rest is 0, a lower bound.
type Usage struct {
	broker.Usage
	// ReportedCostMicro is the cost the backend itself put on the call, in
	// micro-units of its currency, rounded up. nil: it did not say.
	ReportedCostMicro *int64
	// Clamped is set when a number the backend reported could not be true
	// (negative, not a number, far beyond the text and the limits) and was
	// left out or replaced by an estimate, or when its numbers contradict each
	// other, of which then the largest reading is booked.
	Clamped bool
}

// Unbilled is the usage of a call that cannot have been worked on.
func Unbilled() Usage { return Usage{Usage: broker.Usage{Known: broker.KnownUnbilled}} }

// EstimateTokens estimates how many tokens a text of that many bytes is: a
// quarter of them, rounded up. That is close for English and errs by less than
// two for most other scripts, whose characters take two to four bytes and about
// one token.
func EstimateTokens(bytes int64) int64 { return (bytes + 3) / 4 }

// count is one number of a usage block, read with tolerance: a JSON number or a
// string holding one.
type count struct {
	n   int64
	set bool // a believable number was there
	bad bool // something was there that cannot be a count
}

// Bounds on any single number of a usage block, so that sums of them cannot
// overflow. How much is believable for one call is settled later.
const (
	maxCount     = 1 << 40
	maxCostUnits = 1_000_000 // of money, in whole units
)

// UnmarshalJSON implements [json.Unmarshaler]. It accepts anything. What is over
// maxCount is maxCount, too many for any call.
func (c *count) UnmarshalJSON(b []byte) error {
	*c = parseNumber(b, func(_ string, f float64) (int64, bool) { return int64(math.Ceil(min(f, maxCount))), true })
	return nil
}

// money is an amount in whole units, or an object with the sum of its parts in
// total_cost. It is read as micro-units, rounded up.
type money struct{ count }

// UnmarshalJSON implements [json.Unmarshaler]. It accepts anything.
func (m *money) UnmarshalJSON(b []byte) error {
	if bytes.HasPrefix(b, []byte("{")) {
		var parts struct {
			Total json.RawMessage `json:"total_cost"`
		}
		_ = json.Unmarshal(b, &parts)
		m.count = microOf(parts.Total, million)
		m.bad = !m.set
		return nil
	}
	m.count = microOf(b, million)
	return nil
}

// ticks is an amount in 1e-10 of a unit, read as micro-units, rounded up.
type ticks struct{ count }

// UnmarshalJSON implements [json.Unmarshaler]. It accepts anything.
func (t *ticks) UnmarshalJSON(b []byte) error {
	t.count = microOf(b, million/1e10)
	return nil
}

// microOf reads an amount of which one is that many micro-units.
func microOf(b []byte, each float64) count {
	return parseNumber(b, func(digits string, f float64) (int64, bool) { return micro(digits, f, each) })
}

// parseNumber reads a number that is not negative. convert is given its digits
// and what they are as a float, and says whether it may be so large.
func parseNumber(b []byte, convert func(digits string, f float64) (int64, bool)) count {
	digits := strings.TrimSpace(strings.Trim(string(bytes.TrimSpace(b)), `"`))
	if digits == "" || digits == "null" {
		return count{}
	}
	f, err := strconv.ParseFloat(digits, 64)
	if (err != nil && !errors.Is(err, strconv.ErrRange)) || len(digits) > 64 || !(f >= 0) {
		return count{bad: true}
	}
	n, ok := convert(digits, f)
	return count{n: n, set: ok, bad: !ok}
}

// micro is an amount in micro-units, each of which it is that many, rounded up.
// It is read exactly: the float only guards the range.
func micro(digits string, f, each float64) (int64, bool) {
	switch {
	case f == 0:
		return 0, true
	case f*each > maxCostUnits*million:
		return 0, false
	case f*each < 1e-6:
		// Too small to matter, with an exponent that exact arithmetic should
		// not be asked to spell out.
		return 1, true
	}
	r, ok := new(big.Rat).SetString(digits)
	if !ok {
		return 0, false
	}
	if each < 1 {
		r.Quo(r, big.NewRat(int64(math.Round(1/each)), 1))
	} else {
		r.Mul(r, big.NewRat(int64(each), 1))
	}
	return ceilQuo(r.Num(), r.Denom()).Int64(), true
}

const million = 1_000_000

// ceilQuo is a/b rounded up, for a not negative.
func ceilQuo(a, b *big.Int) *big.Int {
	q, rem := new(big.Int).QuoRem(a, b, new(big.Int))
	if rem.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q
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

// atLeast takes another report of the same number in the same block: of two that
// differ the larger is believed.
func (c *count) atLeast(other count) {
	c.bad = c.bad || other.bad
	if other.set {
		c.n, c.set = max(c.n, other.n), true
	}
}

// report gathers the usage blocks of one answer.
type report struct {
	input, output, total, cached, reasoning, cost count
	// bad is set when a block was there that is no usage block at all.
	bad bool
}

func (r *report) merge(later report) {
	r.input.merge(later.input)
	r.output.merge(later.output)
	r.total.merge(later.total)
	r.cached.merge(later.cached)
	r.reasoning.merge(later.reasoning)
	r.cost.merge(later.cost)
	r.bad = r.bad || later.bad
}

// parseUsage reads a usage block in the form of one protocol. It accepts
// anything; what cannot be read is marked.
func parseUsage[T interface{ report() report }](b json.RawMessage) report {
	if missing(b) {
		return report{}
	}
	var u T
	if err := json.Unmarshal(b, &u); err != nil {
		// The fields before the fault were read, but which ones is not known:
		// a block of the wrong shape is not believed.
		return report{bad: true}
	}
	return u.report()
}

// streamed is what was seen of an answer, for estimates and for judging
// reports.
type streamed struct {
	inputTokens int64 // estimate for what was sent
	inputBytes  int64
	pieces      int64 // of answer and reasoning text
	bytes       int64 // of answer and reasoning text
	limit       int64 // that was sent
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

// settle turns reports into usage that can be booked. Where numbers contradict
// each other the largest reading of them is booked: what was cached, or spent on
// reasoning, and does not fit into the number that it is part of by the protocol
// stands beside it, and what the total has more than its parts is output. No
// number that is refused makes the rest cheaper.
func (r *report) settle(s streamed) Usage {
	u := Usage{
		Usage:   broker.Usage{Known: broker.KnownReported},
		Clamped: r.bad || r.input.bad || r.output.bad || r.total.bad || r.cached.bad || r.reasoning.bad || r.cost.bad,
	}
	refused := func(c *count, most int64) bool {
		over := c.n > most
		if over {
			*c, u.Clamped = count{}, true
		}
		return over
	}
	// A token is at least a byte, so that more tokens than bytes (and a
	// margin) cannot be true.
	mostInput, mostOutput := s.inputBytes+hiddenInput, max(s.limit, s.bytes)+hiddenOutput
	refused(&r.input, mostInput)
	refused(&r.cached, mostInput)
	refused(&r.reasoning, mostOutput)
	refused(&r.total, mostInput+mostOutput)
	guess := max(s.pieces, EstimateTokens(s.bytes))
	if refused(&r.output, mostOutput) {
		// Much was used, nobody knows how much: the largest asked for.
		guess = max(guess, s.limit)
	}

	u.InputTokens, u.CachedTokens, u.ReasoningTokens = r.input.n, r.cached.n, r.reasoning.n
	if u.InputTokens == 0 {
		u.InputTokens, u.Known = s.inputTokens, broker.KnownEstimated
	}
	beside := u.CachedTokens > u.InputTokens
	if beside {
		u.InputTokens += u.CachedTokens
	}
	rest := max(0, r.total.n-u.InputTokens)
	if rest > mostOutput {
		rest, u.Clamped = 0, true
	}
	if !r.output.set && rest > 0 {
		r.output = count{n: rest, set: true}
	}
	u.OutputTokens = r.output.n
	switch {
	case !r.output.set || (u.OutputTokens == 0 && guess > 0):
		u.OutputTokens, u.Known = guess, broker.KnownEstimated
	case !s.ended:
		// A report from the middle of an answer is a lower bound.
		u.OutputTokens, u.Known = max(u.OutputTokens, guess), broker.KnownEstimated
	}
	if !r.input.set && !r.output.set && s.pieces == 0 && !s.ended {
		u.Known = broker.KnownUnknown
	}
	if u.ReasoningTokens > u.OutputTokens {
		u.OutputTokens += u.ReasoningTokens
		beside = true
	}
	u.OutputTokens = max(u.OutputTokens, rest)
	u.Clamped = u.Clamped || beside && r.total.n < u.InputTokens+u.OutputTokens
	if r.cost.set {
		u.ReportedCostMicro = new(r.cost.n)
	}
	return u
}
