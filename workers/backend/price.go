package backend

import (
	"math"
	"math/big"

	"leeway/broker"
)

// Price is what a backend charges, in micro-units of a currency. Without any
// amount the backend is free.
type Price struct {
	// Currency is what the micro-units are of; Version names the price.
	Currency, Version string
	// For a million input tokens, for a million of them that were cached (0:
	// as the others), for a million output tokens, and for each call.
	InputMicroPerMTok, CachedMicroPerMTok, OutputMicroPerMTok, CallMicro int64
}

// Free reports whether the backend charges nothing.
func (p Price) Free() bool {
	return p.InputMicroPerMTok == 0 && p.CachedMicroPerMTok == 0 && p.OutputMicroPerMTok == 0 && p.CallMicro == 0
}

// mostMicroPerToken is the most that a token can be believed to cost where no
// price says what it should: 1000 units for a million of them.
const mostMicroPerToken = 1000

// CostMicro is what a call that used u is booked at, of which largestMicro was
// kept for it: what this price makes of u, or the cost that the backend
// reported, which goes before it. What was reported beside estimated tokens is
// the least, and a zero is no cost. held is set when it was more than the larger
// of what was kept and what the price makes, which then is booked; without a
// price the bound is mostMicroPerToken. Nothing is booked for what is unbilled.
func (p Price) CostMicro(u Usage, largestMicro int64) (cost int64, held bool) {
	list := p.ListCostMicro(u)
	if u.ReportedCostMicro == nil || u.Known == broker.KnownUnbilled {
		return list, false
	}
	cost = max(0, *u.ReportedCostMicro)
	if cost == 0 || u.Known != broker.KnownReported {
		cost = max(cost, list)
	}
	most := max(list, largestMicro)
	if p.Free() {
		most = mostMicroPerToken * (u.InputTokens + u.OutputTokens)
	}
	return min(cost, most), cost > most
}

// ListCostMicro is what this price makes of the tokens of u, rounded up, and
// nothing if they are unbilled. It saturates and is never negative.
func (p Price) ListCostMicro(u Usage) int64 {
	if u.Known == broker.KnownUnbilled {
		return 0
	}
	cached := min(max(0, u.CachedTokens), max(0, u.InputTokens))
	cachedPrice := p.CachedMicroPerMTok
	if cachedPrice == 0 {
		cachedPrice = p.InputMicroPerMTok
	}
	sum := new(big.Int)
	for _, t := range [...]struct{ tokens, price int64 }{
		{u.InputTokens - cached, p.InputMicroPerMTok},
		{cached, cachedPrice},
		{u.OutputTokens, p.OutputMicroPerMTok},
	} {
		cost := big.NewInt(max(0, t.tokens))
		sum.Add(sum, cost.Mul(cost, big.NewInt(max(0, t.price))))
	}
	total := ceilQuo(sum, big.NewInt(million))
	total.Add(total, big.NewInt(max(0, p.CallMicro)))
	if !total.IsInt64() {
		return math.MaxInt64
	}
	return total.Int64()
}

// LargestCostMicro is the most that a call can be expected to cost: all its
// input, the answer's whole limit and what is kept for reasoning, each in tokens.
// Without a limit the answer is taken to be as long as the input.
func (p Price) LargestCostMicro(inputTokens int64, maxOutputTokens, reasoningTokens int) int64 {
	out := int64(maxOutputTokens)
	if out <= 0 {
		out = inputTokens
	}
	var u Usage
	u.InputTokens, u.OutputTokens = inputTokens, out+int64(reasoningTokens)
	return p.ListCostMicro(u)
}
