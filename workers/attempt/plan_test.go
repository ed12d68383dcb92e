package attempt

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func ms(n ...int) []time.Duration {
	d := make([]time.Duration, len(n))
	for i := range n {
		d[i] = time.Duration(n[i]) * time.Millisecond
	}
	return d
}

func TestNext(t *testing.T) {
	tests := []struct {
		name   string
		slack  int
		cap    int
		p95    []int
		index  int
		budget int
		last   bool
	}{
		{"alone", 10000, 0, []int{500}, 0, 10000, true},
		{"alone, the cap does not bind the last", 10000, 3000, []int{500}, 0, 10000, true},
		{"alone, its p95 exactly", 500, 0, []int{500}, 0, 500, true},
		{"alone, a millisecond short", 499, 0, []int{500}, -1, 0, false},
		{"no slack", 0, 0, []int{500}, -1, 0, false},
		{"negative slack", -5, 0, []int{500}, -1, 0, false},
		{"an unknown p95 is never called", 10000, 0, []int{0}, -1, 0, false},
		{"nothing to call", 10000, 0, nil, -1, 0, false},

		{"sixty per cent while another is left", 10000, 0, []int{500, 500}, 0, 6000, false},
		{"the article: 1.5 s", 1500, 0, []int{500, 500}, 0, 900, false},
		{"the rest reaches the other's p95 exactly", 10000, 0, []int{500, 4000}, 0, 6000, false},
		{"the rest misses the other's p95 by one", 10000, 0, []int{500, 4001}, 0, 10000, true},
		{"the cap", 8000, 3000, []int{500, 400}, 0, 3000, false},
		{"the cap above the share", 4000, 3000, []int{500, 400}, 0, 2400, false},
		{"the cap leaves a backend that the share would not", 8000, 3000, []int{500, 5000}, 0, 3000, false},
		{"nor one that the cap does not leave", 8000, 3000, []int{500, 5001}, 0, 8000, true},

		{"the first does not fit, the second does", 1000, 0, []int{1001, 400}, 1, 1000, true},
		{"the first does not fit, the second has a third", 1000, 0, []int{1001, 400, 400}, 1, 600, false},
		{"the next is not left but the third is", 10000, 0, []int{500, 5000, 1000}, 0, 6000, false},

		// The second will have 60 % of the rest if the third is left then.
		{"less, because the next one needs it", 10000, 0, []int{500, 3000, 500}, 0, 5000, false},
		{"the next one's share of the rest suffices", 10000, 0, []int{500, 2400, 500}, 0, 6000, false},
		{"by one millisecond not", 10000, 0, []int{500, 2401, 500}, 0, 5998, false},
		{"the third is not left by then", 10000, 0, []int{500, 3000, 1601}, 0, 6000, false},
		{"not below the attempt's own p95", 10000, 0, []int{5001, 3000, 500}, 0, 6000, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Next(PlanInput{Slack: ms(tt.slack)[0], Share: DefaultShare, Cap: ms(tt.cap)[0], P95: ms(tt.p95...)})
			want := Plan{Index: tt.index, FirstByte: ms(tt.budget)[0], Last: tt.last}
			got.FirstByte = got.FirstByte.Truncate(time.Millisecond)
			if got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestNextProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := PlanInput{
			Slack: time.Duration(rapid.Int64Range(-1e9, 60e9).Draw(t, "slack")),
			Share: rapid.Float64Range(0.01, 1).Draw(t, "share"),
			Cap:   time.Duration(rapid.Int64Range(0, 10e9).Draw(t, "cap")),
		}
		for range rapid.IntRange(0, 5).Draw(t, "n") {
			in.P95 = append(in.P95, time.Duration(rapid.Int64Range(0, 20e9).Draw(t, "p95")))
		}
		p := Next(in)
		if p.Index < 0 {
			for _, p95 := range in.P95 {
				if p95 > 0 && p95 <= in.Slack {
					t.Fatalf("a backend with p95 %v fits and is not called", p95)
				}
			}
			return
		}
		if in.P95[p.Index] > in.Slack {
			t.Fatalf("called with less slack than its p95")
		}
		if p.FirstByte < 0 || p.FirstByte > in.Slack {
			t.Fatalf("budget %v of %v", p.FirstByte, in.Slack)
		}
		if p.Last {
			if p.FirstByte != in.Slack {
				t.Fatalf("the last may spend all")
			}
			return
		}
		if p.FirstByte > time.Duration(float64(in.Slack)*in.Share) || (in.Cap > 0 && p.FirstByte > in.Cap) {
			t.Fatalf("budget %v over share or cap", p.FirstByte)
		}
		if left(in.P95[p.Index+1:], in.Slack-p.FirstByte) < 0 {
			t.Fatalf("nothing is left for another backend")
		}
	})
}

func BenchmarkNext(b *testing.B) {
	in := PlanInput{Slack: 10 * time.Second, Share: DefaultShare, P95: ms(500, 3000, 500)}
	b.ReportAllocs()
	for b.Loop() {
		Next(in)
	}
}
