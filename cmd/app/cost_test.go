package app

import (
	"strings"
	"testing"
	"time"

	"leeway/broker/admission"
	"leeway/broker/config"
	"leeway/slackgate"
	"leeway/workers/attempt"
	"leeway/workers/backend"
)

func TestLargestCost(t *testing.T) {
	c, err := config.Parse([]byte(`
classes: {summary: {}, hard: {options: {reasoning_tokens: 9000}}, brief: {options: {reasoning_tokens: 0}}, wordy: {prompt: "` + strings.Repeat("x", 4000) + `"}}
pools:
  paid:
    backends:
      - {name: cheap, url: "http://h/v1", model: m, price: {input_micro_per_mtok: 1000000}}
      - name: dear
        url: http://h/v1
        model: m
        prices:
          - {valid_from: 2026-01-01, input_micro_per_mtok: 2000000, output_micro_per_mtok: 4000000}
          - {valid_from: 2026-02-01, input_micro_per_mtok: 3000000, output_micro_per_mtok: 4000000, call_micro: 7}
      - {name: reasoning, url: "http://h/v1", model: m, options: {reasoning_tokens: 2000}, price: {output_micro_per_mtok: 1000000}}
  free:
    backends: [{name: free, url: "http://h/v1", model: m, price: {input_micro_per_mtok: 900000000}}]
`))
	if err != nil {
		t.Fatal(err)
	}
	before := time.Date(2026, 1, 31, 23, 59, 0, 0, time.UTC).UnixMilli()
	summary := c.Classes["summary"]
	in := (summary.SystemPromptBytes() + 4000 + joints + 3) / 4
	for _, tt := range []struct {
		name string
		size admission.Size
		want int64 // of one attempt
	}{
		{"the dearest backend's price", admission.Size{Class: "summary", TextBytes: 4000, MaxOutputTokens: 100, LeftMS: 59_999}, 2*in + 400},
		{"its next price, once the deadline lies beyond", admission.Size{Class: "summary", TextBytes: 4000, MaxOutputTokens: 100, LeftMS: 60_000}, 3*in + 407},
		{"a class that has left the configuration costs as the default's", admission.Size{Class: "gone", TextBytes: 4000, MaxOutputTokens: 100, LeftMS: 1}, 2*in + 400},
		{"what a class keeps for reasoning counts at the dearest backend", admission.Size{Class: "hard", TextBytes: 4000, MaxOutputTokens: 100, LeftMS: 1}, 2*in + 4*9100},
		{"what a backend keeps for it counts there", admission.Size{Class: "summary", TextBytes: 1, MaxOutputTokens: 100, LeftMS: 1}, 2100},
		{"and not if the class keeps nothing", admission.Size{Class: "brief", TextBytes: 1, MaxOutputTokens: 100, LeftMS: 1}, 2*((summary.SystemPromptBytes()+1+joints+3)/4) + 400},
		{"the prompt counts", admission.Size{Class: "wordy", TextBytes: 4000, MaxOutputTokens: 100, LeftMS: 1}, 2*2002 + 400},
	} {
		if got := largestCost(c, tt.size, before); got != tt.want*attempt.MaxAttempts {
			t.Errorf("%s: %d, want %d times %d", tt.name, got, attempt.MaxAttempts, tt.want)
		}
	}
	// Every attempt that a worker makes costs at most its part of that.
	for text := range 9 {
		for instruction := range 9 {
			req := backend.Request{System: strings.Repeat("x", int(summary.SystemPromptBytes())+2+instruction), Text: strings.Repeat("y", text)}
			call := backend.Price{InputMicroPerMTok: 2_000_000, OutputMicroPerMTok: 4_000_000}.LargestCostMicro(req.InputTokens(), 1, 0)
			size := admission.Size{Class: "summary", TextBytes: int64(text + instruction), MaxOutputTokens: 1, LeftMS: 1}
			if got := largestCost(c, size, before); got < call*attempt.MaxAttempts {
				t.Errorf("text %d, instruction %d: reserved %d, an attempt may cost %d", text, instruction, got, call)
			}
		}
	}
	c.Pools.Paid.Backends[1].Prices[0].CallMicro = slackgate.MaxBudgetMicro
	if got := largestCost(c, admission.Size{Class: "summary"}, before); got <= slackgate.MaxBudgetMicro {
		t.Errorf("%d fits a budget", got)
	}
}
