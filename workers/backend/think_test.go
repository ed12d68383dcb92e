package backend

import (
	"strings"
	"testing"
)

func TestThinker(t *testing.T) {
	tests := []struct{ in, reasoning, answer string }{
		{"", "", ""},
		{"Hello.", "", "Hello."},
		{"  Hello.", "", "  Hello."},
		{"<think>a</think>b", "a", "b"},
		{" \n<think>\na\n</think>\n\nb", "\na\n", "b"},
		{"<think></think>b", "", "b"},
		{"<think>a", "a", ""},
		{"<think>a</thin", "a</thin", ""},
		{"<think>a</ b</think>c", "a</ b", "c"},
		{"<thin", "", "<thin"},
		{"<thinker>", "", "<thinker>"},
		{"a<think>b</think>", "", "a<think>b</think>"},
		{"<think>a</think>b<think>c</think>", "a", "b<think>c</think>"},
		{strings.Repeat(" ", 100) + "x", "", strings.Repeat(" ", 100) + "x"},
	}
	for _, tt := range tests {
		for size := 1; size <= max(1, len(tt.in)); size++ {
			var th thinker
			var reasoning, answer strings.Builder
			add := func(r, a string) { reasoning.WriteString(r); answer.WriteString(a) }
			for rest := tt.in; rest != ""; {
				n := min(size, len(rest))
				add(th.split(rest[:n]))
				rest = rest[n:]
			}
			add(th.rest())
			got := answer.String()
			// White space after the closing mark is dropped only within its
			// own piece.
			if strings.Contains(tt.in, thinkClose) && reasoning.Len() > 0 {
				got = strings.TrimLeft(got, "\n")
			}
			if reasoning.String() != tt.reasoning || got != tt.answer {
				t.Errorf("%q in pieces of %d: reasoning %q, answer %q", tt.in, size, reasoning.String(), got)
			}
		}
	}
}
