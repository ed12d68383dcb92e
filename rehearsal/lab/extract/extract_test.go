package extract

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestSentences(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"empty", "", nil},
		{"no words", " \n ... !? \n", nil},
		{"one", "A single sentence.", []string{"A single sentence."}},
		{"no stop", "a fragment", []string{"a fragment"}},
		{"three stops", "First one. Second one! Third one?", []string{"First one.", "Second one!", "Third one?"}},
		{"abbreviations", "Use a key, e.g. Redis. Dr. J. Smith of the U.S. Army agrees.",
			[]string{"Use a key, e.g. Redis.", "Dr. J. Smith of the U.S. Army agrees."}},
		{"numbers and names", "Version 2.1 of node.js is 3.5 MB. It works.",
			[]string{"Version 2.1 of node.js is 3.5 MB.", "It works."}},
		{"quotes", `He said "stop." Then he left. (All did.) Good.`,
			[]string{`He said "stop."`, "Then he left.", "(All did.)", "Good."}},
		{"wrapped lines fold", "A sentence that\n  goes on. Another\tone.",
			[]string{"A sentence that goes on.", "Another one."}},
		{"paragraph ends a sentence", "no stop here\n\nnext", []string{"no stop here", "next"}},
		{"markdown", "# Title\nText here.\n- item one\n* item two\n12. item three\n\n| a | b |\n---\n```\ncode. Not this.\n```\n> quoted",
			[]string{"Text here.", "item one", "item two", "item three", "quoted"}},
		{"headings only", "# Only a heading", []string{"# Only a heading"}},
		{"lower case goes on", "It is 5 p.m. now and late.", []string{"It is 5 p.m. now and late."}},
		{"no spaces", "这是第一句。这是第二句！", []string{"这是第一句。", "这是第二句！"}},
		{"invalid UTF-8", "a\xffb c.", []string{"a\uFFFDb c."}},
		{"dots run on", "Wait... What? Yes.", []string{"Wait...", "What?", "Yes."}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Sentences(tt.text); !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

// text builds n sentences, each of which shares words with the others; the
// one at centre shares with all.
func text(n, centre int) string {
	var b strings.Builder
	for i := range n {
		if i == centre {
			b.WriteString("The queue, the gate, the ledger and the deadline decide together. ")
			continue
		}
		topic := [...]string{"queue", "gate", "ledger", "deadline"}[i%4]
		fmt.Fprintf(&b, "Here sentence%d mentions alpha%d beside the %s. ", i, i*i, topic)
	}
	return b.String()
}

func TestSummaryTakesTheCentralSentence(t *testing.T) {
	for _, centre := range []int{0, 5, 11} {
		got := Summary(text(12, centre), 11)
		if want := "The queue, the gate, the ledger and the deadline decide together."; got != want {
			t.Errorf("centre %d: got %q", centre, got)
		}
	}
}

func TestSummaryWordLimit(t *testing.T) {
	five, ten := "One two three four five.", "Alpha beta gamma delta epsilon zeta eta theta iota kappa."
	both := five + " " + ten
	for _, tt := range []struct {
		name, text string
		max        int
		want       string
	}{
		{"no words wanted", both, 0, ""},
		{"negative", both, -1, ""},
		{"below the shortest: cut", both, 4, "One two three four"},
		{"just the shortest", both, 5, five},
		{"below both", both, 14, ""}, // either, see below
		{"exactly both", both, 15, five + "\n" + ten},
		{"short text is itself", "Hello there", 200, "Hello there"},
		{"one word", "hello", 1, "hello"},
		{"nothing", "  ", 10, ""},
		{"said twice", five + " " + five, 100, five},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Summary(tt.text, tt.max)
			if tt.name == "below both" {
				if got != five && got != ten {
					t.Errorf("got %q, want one of the two", got)
				}
				return
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestSummaryIsTheSameEveryTime(t *testing.T) {
	doc := text(200, 7)
	first := Summary(doc, 200)
	for range 5 {
		if got := Summary(doc, 200); got != first {
			t.Fatalf("got %q\nthen %q", first, got)
		}
	}
}

// check holds what must be true of any summary.
func check(t *testing.T, text string, max int) {
	t.Helper()
	got := Summary(text, max)
	if !utf8.ValidString(got) {
		t.Fatalf("not UTF-8: %q", got)
	}
	if n := CountWords(got); n > max && max >= 0 {
		t.Fatalf("%d words, at most %d wanted", n, max)
	}
	all := Sentences(text)
	if len(all) > 0 && max > 0 && got == "" {
		t.Fatalf("empty summary of %d sentences", len(all))
	}
	if got == "" {
		return
	}
	lines := strings.Split(got, "\n")
	at := 0
	for _, line := range lines {
		i := slices.Index(all[at:], line)
		if i < 0 {
			if len(lines) == 1 && strings.HasPrefix(all[0], line) {
				return // nothing fitted: the beginning of the first
			}
			t.Fatalf("%q is not a sentence of the text after the ones before it", line)
		}
		at += i + 1
	}
}

func FuzzSummary(f *testing.F) {
	f.Add("A first sentence of some words. A second sentence of other words.", 8)
	f.Add("# h\n- a\n- b\n```\nx\n", 3)
	f.Add("\xff\xfe. \u2028 。！", 1)
	f.Fuzz(func(t *testing.T, text string, max int) { check(t, text, max) })
}

// Hostile and large inputs must end soon; the bounds are what makes them.
func TestBoundsOnLargeInputs(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var varied strings.Builder
	for varied.Len() < MaxTextBytes+MaxTextBytes/8 {
		for range 12 {
			varied.WriteByte('w')
			varied.WriteString(strconv.Itoa(rng.IntN(5000)))
			varied.WriteByte(' ')
		}
		varied.WriteString("end. Next ")
	}
	for name, doc := range map[string]string{
		"varied":      varied.String(),
		"one word":    strings.Repeat("x", 2*MaxTextBytes),
		"one line":    strings.Repeat("word ", MaxTextBytes/2),
		"stops":       strings.Repeat(".", 2*MaxTextBytes),
		"same":        strings.Repeat("The very same sentence again. ", 50_000),
		"quotes":      strings.Repeat(`."`, MaxTextBytes),
		"wide, split": strings.Repeat("界", MaxTextBytes/2),
		"blank lines": strings.Repeat("\n", 2*MaxTextBytes),
	} {
		t.Run(name, func(t *testing.T) { check(t, doc, 200) })
	}
}

func BenchmarkSummary(b *testing.B) {
	for _, n := range []int{20, 100, 1000} {
		doc := text(n, 3)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(len(doc)))
			for b.Loop() {
				Summary(doc, 200)
			}
		})
	}
}

func ExampleSummary() {
	text := `# On queues

A queue hides work that nobody waits for any more. A queue with a bound refuses work while the caller can still go elsewhere.
Cats are nice. Refusing work early keeps the queue short for the callers that wait.`
	fmt.Println(Summary(text, 25))
	// Output:
	// A queue hides work that nobody waits for any more.
	// Refusing work early keeps the queue short for the callers that wait.
}
