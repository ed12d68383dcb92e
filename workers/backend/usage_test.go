package backend

import (
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
		{"more cached than prompt", `{"prompt_tokens":12,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":50}}`, 12, 3, 12, 0, broker.KnownReported, true, -1},
		{"more reasoning than output", `{"prompt_tokens":12,"completion_tokens":3,"completion_tokens_details":{"reasoning_tokens":4}}`, 12, 3, 0, 3, broker.KnownReported, true, -1},
		{"cost", `{"prompt_tokens":12,"completion_tokens":3,"cost":0.00014}`, 12, 3, 0, 0, broker.KnownReported, false, 140},
		{"cost, rounded up", `{"prompt_tokens":12,"completion_tokens":3,"cost":"1.00000001"}`, 12, 3, 0, 0, broker.KnownReported, false, 1_000_001},
		{"cost of nothing", `{"prompt_tokens":12,"completion_tokens":3,"cost":0}`, 12, 3, 0, 0, broker.KnownReported, false, 0},
		{"negative cost is no credit", `{"prompt_tokens":12,"completion_tokens":3,"cost":-4}`, 12, 3, 0, 0, broker.KnownReported, true, -1},
		{"absurd cost", `{"prompt_tokens":12,"completion_tokens":3,"cost":1e300}`, 12, 3, 0, 0, broker.KnownReported, true, -1},
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
	billed := func(u Usage, n int64) Usage { u.ReportedCostMicro = &n; return u }
	p := Price{InputMicroPerMTok: 3_000_000, CachedMicroPerMTok: 300_000, OutputMicroPerMTok: 15_000_000, CallMicro: 7}
	tests := []struct {
		name string
		p    Price
		u    Usage
		want int64
	}{
		{"nothing", p, Unbilled(), 0},
		{"unknown costs its prompt", p, used(1000, 0, 0), 7 + 3000},
		{"tokens", p, used(1000, 400, 100), 7 + 1800 + 120 + 1500},
		{"rounded up once", Price{InputMicroPerMTok: 1, OutputMicroPerMTok: 1}, used(1, 0, 1), 1},
		{"cached at the input price", Price{InputMicroPerMTok: 1_000_000}, used(10, 10, 0), 10},
		{"the backend's word goes before the list", p, billed(used(1000, 0, 0), 42), 42},
		{"never a credit", p, billed(Usage{}, -42), 0},
		{"free", Price{}, used(1<<40, 0, 1<<40), 0},
		{"saturates", Price{InputMicroPerMTok: math.MaxInt64, OutputMicroPerMTok: math.MaxInt64}, used(math.MaxInt64, 0, math.MaxInt64), math.MaxInt64},
		{"negative tokens cost nothing", p, used(-1000, -3, -5), 7},
	}
	for _, tt := range tests {
		if got := tt.p.CostMicro(tt.u); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
	if !(Price{Currency: "USD", Version: "1"}).Free() || p.Free() {
		t.Error("Free")
	}
	if got := p.LargestCostMicro(1000, 100); got != 7+3000+1500 {
		t.Errorf("largest cost %d", got)
	}
	if got := p.LargestCostMicro(1000, 0); got != 7+3000+15000 {
		t.Errorf("largest cost without a limit %d", got)
	}
}

func TestCostIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := func(name string) int64 { return rapid.Int64Range(0, math.MaxInt64).Draw(t, name) }
		p := Price{InputMicroPerMTok: n("in"), CachedMicroPerMTok: n("cached"), OutputMicroPerMTok: n("out"), CallMicro: n("call")}
		u := Usage{Usage: broker.Usage{InputTokens: n("i"), OutputTokens: n("o")}}
		more := u
		more.OutputTokens += min(n("more"), math.MaxInt64-u.OutputTokens)
		if a, b := p.CostMicro(u), p.CostMicro(more); a < 0 || b < a {
			t.Fatalf("%d then %d", a, b)
		}
	})
}
