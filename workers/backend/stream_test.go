package backend

import (
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// repeat is an endless reader of s, in reads of at most len(s).
type repeat struct {
	s string
	n int
}

func (r *repeat) Read(p []byte) (int, error) {
	n := copy(p, r.s[r.n:])
	r.n = (r.n + n) % len(r.s)
	return n, nil
}

// A stream of a million lines ends with its bound, and in little memory.
func TestMillionLines(t *testing.T) {
	for _, d := range dialects {
		for name, line := range map[string]string{"comments": d.comment, "blank lines": "\n", "reasoning": d.reasoning("hm")} {
			t.Run(string(d.protocol)+" "+name, func(t *testing.T) {
				c, err := New(Config{Name: "b", Protocol: d.protocol, BaseURL: "http://h", Model: "m", maxStreamBytes: 1 << 20,
					Transport: canned{d.contentType, func() io.Reader { return &repeat{s: strings.Repeat(line, 100)} }}})
				if err != nil {
					t.Fatal(err)
				}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				a, err := c.Generate(t.Context(), Request{Text: "x"}, Observer{})
				runtime.ReadMemStats(&after)
				var e *Error
				if !errors.As(err, &e) || e.Reason != ReasonTooLarge {
					t.Error(err)
				}
				if grown := int64(after.HeapInuse) - int64(before.HeapInuse); grown > 16<<20 {
					t.Errorf("the heap grew by %d bytes", grown)
				}
				if len(a.Reasoning) > maxReasoningBytes {
					t.Errorf("%d bytes of reasoning", len(a.Reasoning))
				}
			})
		}
	}
}

// The cost of an event does not depend on the pieces in which it arrives.
func BenchmarkHostileEvent(b *testing.B) {
	for name, size := range map[string]int{"64KiB": 64 << 10, "512KiB": 512 << 10} {
		body := openAIDialect.text(strings.Repeat("x", size))
		for how, reader := range map[string]func(io.Reader) io.Reader{
			"4KiB reads":  func(r io.Reader) io.Reader { return r },
			"256 B reads": func(r io.Reader) io.Reader { return &chunks{r, 256} },
		} {
			b.Run(name+"/"+how, func(b *testing.B) {
				c, err := New(Config{Name: "b", BaseURL: "http://h", Model: "m", maxEventBytes: size * 2,
					Transport: canned{openAIDialect.contentType, func() io.Reader { return reader(&chunks{strings.NewReader(body), 4096}) }}})
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(len(body)))
				for b.Loop() {
					if a, _ := c.Generate(b.Context(), Request{Text: "x"}, Observer{}); !a.HasText {
						b.Fatal("nothing read")
					}
				}
			})
		}
	}
}

// chunks reads at most n bytes at once.
type chunks struct {
	r io.Reader
	n int
}

func (c *chunks) Read(p []byte) (int, error) { return c.r.Read(p[:min(len(p), c.n)]) }

func TestByteByByte(t *testing.T) {
	for _, d := range dialects {
		body := d.open + d.text("Hello") + d.comment + d.text(" world.") + d.end(FinishStop, 12, 3) + d.terminator
		c, err := New(Config{Name: "b", Protocol: d.protocol, BaseURL: "http://h", Model: "m",
			Transport: canned{d.contentType, func() io.Reader { return iotest.OneByteReader(strings.NewReader(body)) }}})
		if err != nil {
			t.Fatal(err)
		}
		a, err := c.Generate(t.Context(), Request{Text: "x"}, Observer{})
		if err != nil || a.Text != "Hello world." || a.Usage.OutputTokens != 3 {
			t.Errorf("%s: %+v %v", d.protocol, a, err)
		}
	}
}

// BenchmarkStream is the reading of an answer of 200 tokens.
func BenchmarkStream(b *testing.B) {
	for _, d := range dialects {
		b.Run(string(d.protocol), func(b *testing.B) {
			body := d.open + pieces(d, 200) + d.end(FinishStop, 500, 200) + d.terminator
			c, err := New(Config{Name: "b", Protocol: d.protocol, BaseURL: "http://h", Model: "m",
				Transport: canned{d.contentType, func() io.Reader { return strings.NewReader(body) }}})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Generate(b.Context(), Request{Text: "x"}, Observer{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed())/float64(time.Microsecond)/float64(b.N)/200, "µs/token")
		})
	}
}
