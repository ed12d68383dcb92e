package backend

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/tmaxmax/go-sse"
)

// canned is a transport that brings the same body each time.
type canned struct {
	kind string
	body func() io.Reader
}

func (c canned) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK,
		Header:     http.Header{"Content-Type": {c.kind}},
		Body:       io.NopCloser(c.body()),
	}, nil
}

// FuzzAnswer reads anything as an answer of each protocol, as a stream, in one
// piece and unnamed: nothing panics, nothing grows, and only what says how it
// ended is whole.
func FuzzAnswer(f *testing.F) {
	for i, d := range dialects {
		f.Add(uint8(i), uint8(0), []byte(d.open+d.text("Hello")+d.reasoning("hm")+d.text(" world.")+d.comment+d.end(FinishStop, 12, 3)+d.terminator))
		f.Add(uint8(i), uint8(0), []byte(d.tool+d.end(FinishTool, -1, 0)))
		f.Add(uint8(i), uint8(1), []byte(d.whole("Hello.", "hm", FinishLength, 12, 3)))
		f.Add(uint8(i), uint8(2), []byte(d.text("Hello")))
		f.Add(uint8(i), uint8(2), []byte(`{"error":{"message":"no","code":500}}`))
		f.Add(uint8(i), uint8(1), []byte(`{"ok":true,"bytes":0}`))
	}
	f.Add(uint8(0), uint8(0), []byte(`data: {"choices":[{"delta":{"content":[{"type":"text","text":"x"}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":-1,"completion_tokens":"1e99","cost":1e-400}}`+"\n\n"))
	f.Fuzz(func(t *testing.T, protocol, kind uint8, body []byte) {
		d := dialects[int(protocol)%len(dialects)]
		c, err := New(Config{
			Name: "b", Protocol: d.protocol, BaseURL: "http://h", Model: "m",
			maxAnswerBytes: 1000, maxEventBytes: 4096, maxStreamBytes: 1 << 16,
			Transport: canned{[]string{d.contentType, "application/json", ""}[kind%3], func() io.Reader { return bytes.NewReader(body) }},
		})
		if err != nil {
			t.Fatal(err)
		}
		var relayed strings.Builder
		firsts := 0
		a, err := c.Generate(t.Context(), Request{Text: "some text"}, Observer{
			FirstByte: func(time.Duration) { firsts++ },
			Text:      func(p string) { relayed.WriteString(p) },
		})
		var e *Error
		if err != nil && (!errors.As(err, &e) || !slices.Contains(Reasons[:], e.Reason)) {
			t.Fatalf("%T %v", err, err)
		}
		if a.Whole != (err == nil) || (a.Whole && (!a.HasText || strings.TrimSpace(a.Text) == "" || a.Finish != FinishStop)) {
			t.Errorf("whole %v, text %q, finish %q, %v", a.Whole, a.Text, a.Finish, err)
		}
		if relayed.String() != a.Text || (firsts == 1) != a.HasText || firsts > 1 {
			t.Errorf("relayed %q of %q, %d first bytes", relayed.String(), a.Text, firsts)
		}
		if len(a.Text) > 1000 || len(a.Reasoning) > maxReasoningBytes {
			t.Error("over a bound")
		}
		if !utf8.ValidString(a.Text) || !utf8.ValidString(a.Reasoning) {
			t.Error("not UTF-8")
		}
		if e != nil && (len(e.Detail) > maxDetail+3 || strings.ContainsAny(e.Detail, "\r\n\x00")) {
			t.Errorf("detail %q", e.Detail)
		}
		believable(t, a.Usage)
	})
}

func believable(t *testing.T, u Usage) {
	t.Helper()
	if u.InputTokens < 0 || u.OutputTokens < 0 || u.CachedTokens < 0 || u.ReasoningTokens < 0 ||
		u.CachedTokens > u.InputTokens || u.ReasoningTokens > u.OutputTokens || u.Known == "" {
		t.Errorf("%+v", u)
	}
	if u.ReportedCostMicro != nil && (*u.ReportedCostMicro < 0 || *u.ReportedCostMicro > maxCostUnits*1_000_000) {
		t.Errorf("cost %d", *u.ReportedCostMicro)
	}
	if c := (Price{InputMicroPerMTok: 1 << 60, CachedMicroPerMTok: 1, OutputMicroPerMTok: 1 << 60}).ListCostMicro(u); c < 0 {
		t.Errorf("cost %d", c)
	}
}

// FuzzUsage reads anything as the usage blocks of one answer.
func FuzzUsage(f *testing.F) {
	for _, s := range []string{
		`{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15}`, `null`, `{}`, `[]`, `{"prompt_tokens":-1}`,
		`{"prompt_tokens":1e18,"completion_tokens":"99999999999999999999"}`, `{"cost":"1e-999999999"}`, `{"cost":1e5}`,
		`{"input_tokens":5,"cache_read_input_tokens":20,"output_tokens":"NaN"}`, `{"prompt_tokens_details":{"cached_tokens":3}}`,
	} {
		f.Add([]byte(s), []byte(`{"prompt_tokens":0}`), uint16(10), true)
	}
	f.Fuzz(func(t *testing.T, first, second []byte, streamedBytes uint16, ended bool) {
		for _, parse := range []func(json.RawMessage) report{parseUsage[openAIUsage], parseUsage[anthropicUsage]} {
			var r report
			r.merge(parse(first))
			r.merge(parse(second))
			believable(t, r.settle(streamed{inputTokens: 3, inputBytes: 12, bytes: int64(streamedBytes), pieces: int64(streamedBytes / 4), ended: ended}))
		}
	})
}

// FuzzEvents holds the SSE reader to the standard, whatever the pieces in which
// a stream arrives, and to another reader.
func FuzzEvents(f *testing.F) {
	for _, s := range []string{
		"data: a\n\n", "data:a\r\rdata: b\r\n\r\n", ": c\n\ndata: a\ndata:b\n\n", "data\n\n", "\ufeffdata: x\n\n",
		"event: e\ndata: x\nid: 1\n\n", "data: x\n\r\n\r", "\n\n\ndata: x\n\ndata: cut", "data:  two\n\n", "datax: y\n\n", "data: a\r\n\ndata: b\n\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		want := byTheStandard(string(stream))
		for _, r := range []io.Reader{bytes.NewReader(stream), iotest.OneByteReader(bytes.NewReader(stream))} {
			var got []string
			for events := (&eventReader{lines: &lineReader{r: bufio.NewReader(r)}, max: 1 << 20}); ; {
				_, data, err := events.next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, string(data))
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%q\ngot  %q\nwant %q", stream, got, want)
			}
		}
		var other []string
		for ev, err := range sse.Read(bytes.NewReader(stream), &sse.ReadConfig{MaxEventSize: 1 << 20}) {
			if err != nil {
				t.Fatal(err)
			}
			if ev.Data != "" {
				other = append(other, ev.Data)
			}
		}
		if !slices.Equal(other, want) {
			t.Fatalf("%q\ngo-sse %q\nwant %q", stream, other, want)
		}
	})
}

// byTheStandard is the data of a stream's events, those without data left out,
// read as https://html.spec.whatwg.org/multipage/server-sent-events.html says,
// in the simplest way.
func byTheStandard(s string) (events []string) {
	s = strings.TrimPrefix(s, "\ufeff")
	s = strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
	data := ""
	for {
		line, rest, found := strings.Cut(s, "\n")
		if !found {
			return events // an event that is not finished is discarded
		}
		s = rest
		if line == "" {
			if data = strings.TrimSuffix(data, "\n"); data != "" {
				events = append(events, data)
			}
			data = ""
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		if field == "data" {
			data += strings.TrimPrefix(value, " ") + "\n"
		}
	}
}

// FuzzErrorBody reads anything as an error response.
func FuzzErrorBody(f *testing.F) {
	for _, s := range []string{
		`{"error":{"message":"m","type":"t","code":"context_length_exceeded"}}`, `{"error":"text"}`, `{"object":"error","message":"m","code":400}`,
		`{"type":"error","error":{"type":"overloaded_error","message":"m"}}`, `{"detail":"no"}`, `<html>`, `{"error":null}`,
		`{"error":{"message":"Unsupported parameter: 'max_tokens'","param":"max_tokens","code":"unsupported_parameter"}}`,
		`{"detail":[{"type":"extra_forbidden","loc":["body","seed"],"msg":"Extra inputs are not permitted"}]}`,
		`{"message":"[{'loc': ('body', 'x')}] Extra inputs are not permitted","object":"error"}`, `{"error":[1]}`, ``,
	} {
		for _, status := range []int{200, 400, 429, 500} {
			f.Add(status, []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		w, _ := findError(body)
		if r := classify(status, w); !slices.Contains(Reasons[:], r) {
			t.Errorf("reason %q", r)
		}
		if a := w.asError(status).Advice; len(a) > 128 || clean(a) != a {
			t.Errorf("advice %q", a)
		}
		if d := clean(w.message, "secret"); len(d) > maxDetail+3 || !utf8.ValidString(d) {
			t.Errorf("detail %q", d)
		}
	})
}
