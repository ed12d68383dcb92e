package lab

import (
	"strings"
	"testing"
	"unicode/utf8"

	"leeway/rehearsal/lab/extract"
)

func FuzzDecodeRequest(f *testing.F) {
	for _, seed := range []string{
		`{"model":"lab-summary","messages":[{"role":"user","content":"Hi there."}],"stream":true,"stream_options":{"include_usage":true}}`,
		`{"model":"m","messages":[{"role":"system","content":"At most 20 words."},{"role":"user","content":[{"type":"text","text":"x"}]}],"max_tokens":5}`,
		`{"model":"m","messages":[{"role":"user","content":null}],"n":1,"max_completion_tokens":9223372036854775807}`,
		`{"model":1e400}`, `[[[[`, "\xff", `null`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, bad := decodeRequest(body)
		if (req == nil) == (bad == nil) {
			t.Fatalf("request %v, error %v", req, bad)
		}
		if bad != nil {
			if bad.status != 400 || bad.Message == "" || !utf8.Valid(marshal(bad)) {
				t.Fatalf("error %+v", bad)
			}
			return
		}
		if req.model == "" || req.words < 1 || req.words > MaxSummaryWords || req.limit == 0 || req.limit > 1_000_000 || req.promptTokens < 0 {
			t.Fatalf("request %+v", req)
		}
		a := req.answer()
		text := strings.Join(a.pieces, "")
		if n := extract.CountWords(text); n > req.words || (req.limit > 0 && len(a.pieces) > req.limit) {
			t.Fatalf("%d words in %d tokens for %+v", n, len(a.pieces), req)
		}
		for _, model := range FaultModels() { // no plan may panic on any answer
			parsed, err := Fault{Name: strings.TrimPrefix(model, FaultModelPrefix)}.parse()
			if err != nil {
				t.Fatal(err)
			}
			newPlan(parsed, a)
		}
	})
}

func FuzzTokens(f *testing.F) {
	f.Add("Two words.")
	f.Add(" \u2028\xff界界界 x")
	f.Fuzz(func(t *testing.T, s string) {
		pieces := splitTokens(s)
		if strings.Join(pieces, "") != s || len(pieces) != CountTokens(s) {
			t.Fatalf("%q: %q, counted %d", s, pieces, CountTokens(s))
		}
		for _, p := range pieces {
			if p == "" || len(p) > 24 || (utf8.ValidString(s) && !utf8.ValidString(p)) {
				t.Fatalf("%q: piece %q", s, p)
			}
		}
	})
}

func FuzzParseProfile(f *testing.F) {
	f.Add("lognormal:p95=1200ms,sigma=0.5,seed=1")
	f.Add("load:1=189,8=433")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParseProfile(s)
		if err != nil {
			return
		}
		if d := p.Draw(p.source()); d < 0 || d > MaxDelay {
			t.Fatalf("%q: first byte of %v", s, d)
		}
		if again, err := ParseProfile(p.String()); err != nil || again.String() != p.String() {
			t.Fatalf("%q became %q: %v", s, p, err)
		}
	})
}
