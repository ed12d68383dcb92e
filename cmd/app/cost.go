package app

import (
	"time"

	"leeway/broker/admission"
	"leeway/broker/config"
	"leeway/slackgate"
	"leeway/workers/attempt"
	"leeway/workers/backend"
)

// joints is what stands between prompt, instruction and text, and what the
// estimate of their tokens rounds up more than once.
const joints = 8

// largestCost is the most that a job may cost on the paid pool, in micro-units:
// every attempt that may be made for one claim of it, each at the dearest
// backend, what is kept for reasoning there included, and at the dearest price in
// force until the deadline. nowMS is the store's clock.
func largestCost(cfg *config.Config, size admission.Size, nowMS int64) int64 {
	class := cfg.Class(size.Class)
	input := backend.EstimateTokens(class.SystemPromptBytes() + size.TextBytes + joints)
	now := time.UnixMilli(nowMS)
	if nowMS == 0 { // the store has not been heard of yet
		now = time.Now()
	}
	until := now.Add(ms(size.LeftMS))
	var dearest int64
	for i := range cfg.Pools.Paid.Backends {
		b := &cfg.Pools.Paid.Backends[i]
		options := backend.Options(cfg.OptionsFor(size.Class, b))
		for _, p := range b.PricesWithin(now, until) {
			dearest = max(dearest, backend.Price(*p).LargestCostMicro(input, size.MaxOutputTokens, options.Allowance()))
		}
	}
	if dearest > slackgate.MaxBudgetMicro/attempt.MaxAttempts {
		return slackgate.MaxBudgetMicro + 1 // fits no budget
	}
	return dearest * attempt.MaxAttempts
}
