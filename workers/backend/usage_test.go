package backend

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"leeway/broker"
)

// usageCase is a usage block as it may arrive, and what is booked for it.
type usageCase struct {
	name                       string
	json                       string
	in, out, cached, reasoning int64
	how                        broker.Known
	clamped                    bool
	cost                       int64 // -1: none reported
}

func TestUsageForms(t *testing.T) {
	// What the estimate gives for the texts below.
	const estIn, estOut = 18, 4
	tests := []usageCase{
		{"plain", `{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15}`, 12, 3, 0, 0, broker.KnownReported, false, -1},
		{"details", `{"prompt_tokens":12,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":8},"completion_tokens_details":{"reasoning_tokens":6}}`, 12, 9, 8, 6, broker.KnownReported, false, -1},
		{"details null", `{"prompt_tokens":12,"completion_tokens":9,"prompt_tokens_details":null,"completion_tokens_details":null}`, 12, 9, 0, 0, broker.KnownReported, false, -1},
		{"other names", `{"input_tokens":12,"output_tokens":9}`, 12, 9, 0, 0, broker.KnownReported, false, -1},
		{"cache hits", `{"prompt_tokens":12,"completion_tokens":9,"prompt_cache_hit_tokens":4}`, 12, 9, 4, 0, broker.KnownReported, false, -1},
		{"total only", `{"prompt_tokens":12,"total_tokens":15}`, 12, 3, 0, 0, broker.KnownReported, false, -1},
		{"strings", `{"prompt_tokens":"12","completion_tokens":" 3 "}`, 12, 3, 0, 0, broker.KnownReported, false, -1},
		{"fractions are rounded up", `{"prompt_tokens":11.5,"completion_tokens":3e0}`, 12, 3, 0, 0, broker.KnownReported, false, -1},
		{"missing", ``, estIn, estOut, 0, 0, broker.KnownEstimated, false, -1},
		{"null", `null`, estIn, estOut, 0, 0, broker.KnownEstimated, false, -1},
		{"empty", `{}`, estIn, estOut, 0, 0, broker.KnownEstimated, false, -1},
		{"zeros", `{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`, estIn, estOut, 0, 0, broker.KnownEstimated, false, -1},
		{"no prompt", `{"completion_tokens":3}`, estIn, 3, 0, 0, broker.KnownEstimated, false, -1},
		{"negative", `{"prompt_tokens":-5,"completion_tokens":-1}`, estIn, estOut, 0, 0, broker.KnownEstimated, true, -1},
		{"1e18", `{"prompt_tokens":1e18,"completion_tokens":1000000000000000000}`, estIn, estOut, 0, 0, broker.KnownEstimated, true, -1},
		{"larger than int64", `{"prompt_tokens":99999999999999999999999,"completion_tokens":3}`, estIn, 3, 0, 0, broker.KnownEstimated, true, -1},
		{"beyond the text and the limits", `{"prompt_tokens":12,"completion_tokens":900000}`, 12, estOut, 0, 0, broker.KnownEstimated, true, -1},
		{"words", `{"prompt_tokens":"many","completion_tokens":3}`, estIn, 3, 0, 0, broker.KnownEstimated, true, -1},
		{"not numbers", `{"prompt_tokens":{"a":1},"completion_tokens":[3]}`, estIn, estOut, 0, 0, broker.KnownEstimated, true, -1},
		{"a list", `[1,2]`, estIn, estOut, 0, 0, broker.KnownEstimated, true, -1},
		{"a text", `"12"`, estIn, estOut, 0, 0, broker.KnownEstimated, true, -1},
		{"more cached than prompt is beside it", `{"prompt_tokens":12,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":50}}`, 62, 3, 50, 0, broker.KnownReported, true, -1},
		{"more cached than prompt, and the total agrees", `{"prompt_tokens":12,"completion_tokens":3,"total_tokens":65,"input_tokens_details":{"cached_tokens":50}}`, 62, 3, 50, 0, broker.KnownReported, false, -1},
		{"more cached than prompt, and the total does not", `{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":50}}`, 62, 3, 50, 0, broker.KnownReported, true, -1},
		{"more cached than any prompt can be is refused, not charged at the lower price", `{"prompt_tokens":12,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":50000}}`, 12, 3, 0, 0, broker.KnownReported, true, -1},
		{"more reasoning than output is beside it", `{"prompt_tokens":12,"completion_tokens":3,"completion_tokens_details":{"reasoning_tokens":4}}`, 12, 7, 0, 4, broker.KnownReported, true, -1},
		{"reasoning beside the output, in the total", `{"prompt_tokens":100,"completion_tokens":60,"total_tokens":2969,"completion_tokens_details":{"reasoning_tokens":2809}}`, 100, 2869, 0, 2809, broker.KnownReported, false, -1},
		{"reasoning beside the output, short, in the total", `{"prompt_tokens":12,"completion_tokens":9,"total_tokens":25,"reasoning_tokens":4}`, 12, 13, 0, 4, broker.KnownReported, false, -1},
		{"reasoning beside the output, not in the total", `{"prompt_tokens":100,"completion_tokens":60,"total_tokens":160,"output_tokens_details":{"reasoning_tokens":2809}}`, 100, 2869, 0, 2809, broker.KnownReported, true, -1},
		{"more in the total than its parts", `{"prompt_tokens":100,"completion_tokens":60,"total_tokens":2969}`, 100, 2869, 0, 0, broker.KnownReported, false, -1},
		{"less in the total than its parts", `{"prompt_tokens":100,"completion_tokens":60,"total_tokens":1}`, 100, 60, 0, 0, broker.KnownReported, false, -1},
		{"a total beyond belief", `{"prompt_tokens":12,"completion_tokens":3,"total_tokens":1e18}`, 12, 3, 0, 0, broker.KnownReported, true, -1},
		{"a total that leaves more output than can be", `{"prompt_tokens":12,"completion_tokens":3,"total_tokens":131200}`, 12, 3, 0, 0, broker.KnownReported, true, -1},
		{"reasoning beyond belief", `{"prompt_tokens":12,"completion_tokens":3,"completion_tokens_details":{"reasoning_tokens":1e18}}`, 12, 3, 0, 0, broker.KnownReported, true, -1},
		{"reasoning alone", `{"prompt_tokens":12,"completion_tokens_details":{"reasoning_tokens":40}}`, 12, estOut + 40, 0, 40, broker.KnownEstimated, true, -1},
		{"two names that differ", `{"prompt_tokens":12,"input_tokens":5,"completion_tokens":3,"output_tokens":9}`, 12, 9, 0, 0, broker.KnownReported, false, -1},
		{"cost", `{"prompt_tokens":12,"completion_tokens":3,"cost":0.00014}`, 12, 3, 0, 0, broker.KnownReported, false, 140},
		{"cost, rounded up", `{"prompt_tokens":12,"completion_tokens":3,"cost":"1.00000001"}`, 12, 3, 0, 0, broker.KnownReported, false, 1_000_001},
		{"cost of nothing", `{"prompt_tokens":12,"completion_tokens":3,"cost":0}`, 12, 3, 0, 0, broker.KnownReported, false, 0},
		{"negative cost is no credit", `{"prompt_tokens":12,"completion_tokens":3,"cost":-4}`, 12, 3, 0, 0, broker.KnownReported, true, -1},
		{"absurd cost", `{"prompt_tokens":12,"completion_tokens":3,"cost":1e300}`, 12, 3, 0, 0, broker.KnownReported, true, -1},
		{"cost in parts", `{"prompt_tokens":12,"completion_tokens":3,"cost":{"input_tokens_cost":0.0001,"total_cost":0.00014}}`, 12, 3, 0, 0, broker.KnownReported, false, 140},
		{"cost in parts without a sum", `{"prompt_tokens":12,"completion_tokens":3,"cost":{"request_cost":0.005}}`, 12, 3, 0, 0, broker.KnownReported, true, -1},
		{"estimated cost", `{"prompt_tokens":12,"completion_tokens":3,"estimated_cost":1.4e-4}`, 12, 3, 0, 0, broker.KnownReported, false, 140},
		{"cost in ticks", `{"prompt_tokens":12,"completion_tokens":3,"cost_in_usd_ticks":37756001}`, 12, 3, 0, 0, broker.KnownReported, false, 3776},
		{"absurd cost in ticks", `{"prompt_tokens":12,"completion_tokens":3,"cost_in_usd_ticks":1e300}`, 12, 3, 0, 0, broker.KnownReported, true, -1},
		{"two costs that differ", `{"prompt_tokens":12,"completion_tokens":3,"cost":0.00014,"estimated_cost":0.00015}`, 12, 3, 0, 0, broker.KnownReported, false, 150},
		{"tiny cost with a huge exponent", `{"prompt_tokens":12,"completion_tokens":3,"cost":1e-300}`, 12, 3, 0, 0, broker.KnownReported, false, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			field := ""
			if tt.json != "" {
				field = `,"usage":` + tt.json
			}
			g := call(t, Config{}, Request{System: testSystem, Text: testText}, 30*time.Second, &openAIDialect, func(o *out) {
				o.send(openAIDialect.text("one two "), openAIDialect.text("three"))
				o.send(`data: {"choices":[{"delta":{},"finish_reason":"stop"}]`+field+"}\n\n", "data: [DONE]\n\n")
			})
			if g.err != nil {
				t.Fatal(g.err)
			}
			tt.check(t, g.answer.Usage)
		})
	}
}

func (tt *usageCase) check(t *testing.T, u Usage) {
	t.Helper()
	if u.InputTokens != tt.in || u.OutputTokens != tt.out || u.CachedTokens != tt.cached || u.ReasoningTokens != tt.reasoning || u.Known != tt.how || u.Clamped != tt.clamped {
		t.Errorf("got %+v, want %+v", u, *tt)
	}
	switch {
	case tt.cost < 0 && u.ReportedCostMicro != nil:
		t.Errorf("cost %d", *u.ReportedCostMicro)
	case tt.cost >= 0 && (u.ReportedCostMicro == nil || *u.ReportedCostMicro != tt.cost):
		t.Errorf("cost %v, want %d", u.ReportedCostMicro, tt.cost)
	}
}

// Usage may come in a chunk of its own, in the last one, or growing in every
// chunk; it is booked once, at its final value.
func TestUsagePlaces(t *testing.T) {
	chunk := func(choices, usage string) string {
		s := `data: {"choices":[` + choices + `]`
		if usage != "" {
			s += `,"usage":` + usage
		}
		return s + "}\n\n"
	}
	const (
		a, b, end = `{"delta":{"content":"a"}}`, `{"delta":{"content":"b"}}`, `{"delta":{},"finish_reason":"stop"}`
		final     = `{"prompt_tokens":12,"completion_tokens":5}`
		done      = "data: [DONE]\n\n"
	)
	tests := map[string]string{
		"in a chunk with empty choices":     chunk(a, "null") + chunk(end, "") + chunk("", final) + done,
		"in a chunk without choices":        chunk(a, "") + chunk(end, "") + `data: {"usage":` + final + "}\n\n" + done,
		"in the last chunk":                 chunk(a, "") + chunk(end, final) + done,
		"cumulative":                        chunk(a, `{"prompt_tokens":12,"completion_tokens":1}`) + chunk(b, `{"prompt_tokens":12,"completion_tokens":3}`) + chunk(end, final) + done,
		"cumulative, and zeros at the end":  chunk(a, `{"prompt_tokens":12,"completion_tokens":1}`) + chunk(end, final) + chunk("", `{"prompt_tokens":0,"completion_tokens":0}`) + done,
		"twice":                             chunk(a, "") + chunk(end, final) + chunk("", final) + done,
		"before the text":                   chunk("", final) + chunk(a, "") + chunk(end, "") + done,
		"in the last chunk without [DONE]":  chunk(a, "") + chunk(end, final),
		"in a chunk after it, no [DONE]":    chunk(a, "") + chunk(end, "") + chunk("", final),
		"in a chunk after comments":         chunk(a, "") + chunk(end, "") + ": x\n\n" + chunk("", final) + done,
		"in one answer with total and more": chunk(a, "") + chunk(end, `{"prompt_tokens":12,"completion_tokens":5,"total_tokens":17,"queue_time":0.1,"x":{"y":[1]}}`) + done,
	}
	for name, body := range tests {
		t.Run(name, func(t *testing.T) {
			g := call(t, Config{}, Request{Text: testText}, 30*time.Second, &openAIDialect, func(o *out) { o.send(body) })
			if g.err != nil {
				t.Fatal(g.err)
			}
			if u := g.answer.Usage; u.InputTokens != 12 || u.OutputTokens != 5 || u.Known != broker.KnownReported || u.Clamped {
				t.Errorf("%+v", u)
			}
		})
	}
}

// Zeros are no usage, streamed or whole, on every protocol.
func TestZeroUsageIsEstimated(t *testing.T) {
	for _, d := range dialects {
		for kind, body := range map[string]string{
			d.contentType:      d.text("Hello, world.") + d.end(FinishStop, 0, 0) + d.terminator,
			"application/json": d.whole("Hello, world.", "", FinishStop, 0, 0),
		} {
			t.Run(string(d.protocol)+" "+kind, func(t *testing.T) {
				g := call(t, Config{}, Request{Text: testText}, 30*time.Second, d, func(o *out) {
					o.w.Header().Set("Content-Type", kind)
					o.send(body)
				})
				u := g.answer.Usage
				if g.err != nil || u.InputTokens != EstimateTokens(int64(len(testText))) || u.OutputTokens != 4 || u.Known != broker.KnownEstimated {
					t.Errorf("%+v %v", u, g.err)
				}
			})
		}
	}
}

func TestAnthropicUsage(t *testing.T) {
	d := &anthropicDialect
	g := call(t, Config{}, Request{Text: testText}, 30*time.Second, d, func(o *out) {
		o.send("event: message_start\n"+`data: {"type":"message_start","message":{"id":"m","usage":{"input_tokens":5,"cache_read_input_tokens":20,"cache_creation_input_tokens":10,"output_tokens":1}}}`+"\n\n",
			d.text("Hello."),
			"event: message_delta\n"+`data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}}`+"\n\n", d.terminator)
	})
	if u := g.answer.Usage; g.err != nil || u.InputTokens != 35 || u.CachedTokens != 20 || u.OutputTokens != 7 || u.Known != broker.KnownReported || u.Clamped {
		t.Errorf("%+v %v", u, g.err)
	}
}

func TestPrice(t *testing.T) {
	used := func(in, cached, out int64) Usage {
		return Usage{Usage: broker.Usage{InputTokens: in, CachedTokens: cached, OutputTokens: out}}
	}
	billed := func(u Usage, n int64) Usage { u.ReportedCostMicro, u.Known = &n, broker.KnownReported; return u }
	cut := func(u Usage) Usage { u.Known = broker.KnownEstimated; return u }
	p := Price{InputMicroPerMTok: 3_000_000, CachedMicroPerMTok: 300_000, OutputMicroPerMTok: 15_000_000, CallMicro: 7}
	tests := []struct {
		name string
		p    Price
		u    Usage
		want int64
		held bool
	}{
		{"nothing", p, Unbilled(), 0, false},
		{"unknown costs its prompt", p, used(1000, 0, 0), 7 + 3000, false},
		{"tokens", p, used(1000, 400, 100), 7 + 1800 + 120 + 1500, false},
		{"rounded up once", Price{InputMicroPerMTok: 1, OutputMicroPerMTok: 1}, used(1, 0, 1), 1, false},
		{"cached at the input price", Price{InputMicroPerMTok: 1_000_000}, used(10, 10, 0), 10, false},
		{"the backend's word goes before the list", p, billed(used(1000, 0, 0), 42), 42, false},
		{"up to what was kept for the call", p, billed(used(1000, 0, 0), 5000), 5000, false},
		{"and no further", p, billed(used(1000, 0, 0), 5001), 5000, true},
		{"unless the list's is more", p, billed(used(2000, 0, 0), 9000), 7 + 6000, true},
		{"what was said in the middle of an answer is the least", p, cut(billed(used(1000, 0, 0), 42)), 7 + 3000, false},
		{"nothing is not believed", p, billed(used(1000, 0, 0), 0), 7 + 3000, false},
		{"nothing from a free backend is", Price{}, billed(used(1000, 0, 0), 0), 0, false},
		{"a free backend that takes money", Price{}, billed(used(100, 0, 60), 2300), 2300, false},
		{"a free backend that takes more than anybody", Price{}, billed(used(100, 0, 60), 250_000), 160_000, true},
		{"what was turned away costs nothing", p, func() Usage { u := Unbilled(); u.ReportedCostMicro = new(int64(9)); return u }(), 0, false},
		{"never a credit", p, billed(Usage{}, -42), 7, false},
		{"free", Price{}, used(1<<40, 0, 1<<40), 0, false},
		{"saturates", Price{InputMicroPerMTok: math.MaxInt64, OutputMicroPerMTok: math.MaxInt64}, used(math.MaxInt64, 0, math.MaxInt64), math.MaxInt64, false},
		{"negative tokens cost nothing", p, used(-1000, -3, -5), 7, false},
	}
	for _, tt := range tests {
		if got, held := tt.p.CostMicro(tt.u, 5000); got != tt.want || held != tt.held {
			t.Errorf("%s: %d, held %v; want %d, %v", tt.name, got, held, tt.want, tt.held)
		}
	}
	if !(Price{Currency: "USD", Version: "1"}).Free() || p.Free() {
		t.Error("Free")
	}
	if got := p.LargestCostMicro(1000, 100, 0); got != 7+3000+1500 {
		t.Errorf("largest cost %d", got)
	}
	if got := p.LargestCostMicro(1000, 0, 0); got != 7+3000+15000 {
		t.Errorf("largest cost without a limit %d", got)
	}
}

// dear is a price in the order of real ones: output above input above cached.
var dear = Price{InputMicroPerMTok: 1_000_000, CachedMicroPerMTok: 100_000, OutputMicroPerMTok: 10_000_000}

// blockCost is what is booked for an answer of 10 tokens with that usage block,
// by name of its number; a name that is left out is not in the block.
func blockCost(t *rapid.T, block map[string]any) int64 {
	raw, err := json.Marshal(map[string]any{
		"prompt_tokens": block["input"], "completion_tokens": block["output"], "total_tokens": block["total"],
		"prompt_tokens_details":     map[string]any{"cached_tokens": block["cached"]},
		"completion_tokens_details": map[string]any{"reasoning_tokens": block["reasoning"]},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := parseUsage[openAIUsage](raw)
	u := r.settle(streamed{inputTokens: 5000, inputBytes: 20_000, pieces: 10, bytes: 40, limit: 1000, ended: true})
	return dear.ListCostMicro(u)
}

// Whatever the parts of a block say of each other, what is booked is not below
// what any reading of them costs: what does not fit into a number stands beside
// it, and the rest of the total is output.
func TestLargestReadingIsBooked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := func(name string, least int64) int64 { return rapid.Int64Range(least, 8000).Draw(t, name) }
		in, out, cached, reasoning := n("input", 1), n("output", 1), n("cached", 0), n("reasoning", 0)
		block := map[string]any{"input": in, "output": out, "cached": cached, "reasoning": reasoning}
		total := in + out + rapid.SampledFrom([]int64{-1, 0, cached, reasoning, cached + reasoning, n("more", 0)}).Draw(t, "rest")
		if rapid.Bool().Draw(t, "told") {
			block["total"] = total
		} else {
			total = 0
		}
		booked := blockCost(t, block)
		for _, readsTotal := range []bool{false, true} {
			for _, readsReasoning := range []bool{false, true} {
				var u Usage
				u.InputTokens, u.OutputTokens, u.CachedTokens = in, out, cached
				if cached > in {
					u.InputTokens += cached
				}
				if readsReasoning && reasoning > out {
					u.OutputTokens += reasoning
				}
				if readsTotal {
					u.OutputTokens = max(u.OutputTokens, total-u.InputTokens)
				}
				if cost := dear.ListCostMicro(u); booked < cost {
					t.Fatalf("booked %d for %v, of which %+v is a reading that costs %d", booked, block, u.Usage, cost)
				}
			}
		}
	})
}

// A number that cannot be believed is no cheaper than none.
func TestRefusedNumbersMakeNothingCheaper(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		block := map[string]any{}
		for _, name := range []string{"input", "output", "total", "cached", "reasoning"} {
			if rapid.Bool().Draw(t, "has "+name) {
				block[name] = rapid.Int64Range(0, 8000).Draw(t, name)
			}
		}
		name := rapid.SampledFrom([]string{"input", "output", "total", "cached", "reasoning"}).Draw(t, "absurd")
		delete(block, name)
		without := blockCost(t, block)
		block[name] = rapid.SampledFrom([]any{-1, "many", 1e18, "1e999", 400_000, math.MaxInt64, []int{3}}).Draw(t, "value")
		if with := blockCost(t, block); with < without {
			t.Fatalf("%v costs %d, and without its %s %d", block, with, name, without)
		}
	})
}

func TestCostIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := func(name string) int64 { return rapid.Int64Range(0, math.MaxInt64).Draw(t, name) }
		p := Price{InputMicroPerMTok: n("in"), CachedMicroPerMTok: n("cached"), OutputMicroPerMTok: n("out"), CallMicro: n("call")}
		u := Usage{Usage: broker.Usage{InputTokens: n("i"), OutputTokens: n("o")}}
		more := u
		more.OutputTokens += min(n("more"), math.MaxInt64-u.OutputTokens)
		if a, b := p.ListCostMicro(u), p.ListCostMicro(more); a < 0 || b < a {
			t.Fatalf("%d then %d", a, b)
		}
	})
}
