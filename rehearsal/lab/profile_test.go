package lab

import (
	"strings"
	"testing"
	"time"
)

func TestParseProfile(t *testing.T) {
	for _, tt := range []struct {
		in, want string // want is the canonical form; "" is an error
	}{
		{"fixed:0s", "fixed:0s"},
		{"fixed:1200ms", "fixed:1.2s"},
		{"fixed:24h", "fixed:24h0m0s"},
		{"fixed:24h1ns", ""},
		{"fixed:-1ms", ""},
		{"fixed:", ""},
		{"fixed", ""},
		{"fixed:1200", ""},
		{"lognormal:p95=1200ms,sigma=0.25,seed=7", "lognormal:p95=1.2s,sigma=0.25,seed=7"},
		{"lognormal:p95=1200ms", "lognormal:p95=1.2s,sigma=0.5,seed=1"},
		{"lognormal:p95=1200ms,sigma=0", "lognormal:p95=1.2s,sigma=0,seed=1"},
		{"lognormal:p95=1200ms,sigma=3", "lognormal:p95=1.2s,sigma=3,seed=1"},
		{"lognormal:p95=1200ms,sigma=3.01", ""},
		{"lognormal:p95=1200ms,sigma=-0.1", ""},
		{"lognormal:p95=1200ms,sigma=NaN", ""},
		{"lognormal:p95=0s", ""},
		{"lognormal:sigma=0.5", ""},
		{"lognormal:p95=1s,mean=2", ""},
		{"lognormal:p95=1s,seed=-1", ""},
		{"load:1=189,8=433,32=474", "load:1=189,8=433,32=474"},
		{"load:4=100.5", "load:4=100.5"},
		{"load:", ""},
		{"load:8=433,1=189", ""},
		{"load:1=1,1=2", ""},
		{"load:0=189", ""},
		{"load:1=0", ""},
		{"load:1=1000000", "load:1=1e+06"},
		{"load:1=1000001", ""},
		{"load:1=NaN", ""},
		{"load:" + strings.Repeat("1=1,", 64) + "2=2", ""},
		{"", ""},
		{"normal:1s", ""},
	} {
		p, err := ParseProfile(tt.in)
		if (err == nil) != (tt.want != "") || (err == nil && p.String() != tt.want) {
			t.Errorf("%q: %v, %v; want %q", tt.in, p, err, tt.want)
		}
		if err != nil {
			continue
		}
		if again, err := ParseProfile(p.String()); err != nil || again.String() != p.String() {
			t.Errorf("%q does not read back: %v, %v", p, again, err)
		}
	}
}

func TestParseTail(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"0", "0"}, {"0s", "0"}, {"2800ms", "2.8s"}, {"50/s", "50/s"}, {"0.5/s", "0.5/s"}, {"24h", "24h0m0s"},
		{"24h1ns", ""}, {"-1s", ""}, {"0/s", ""}, {"-5/s", ""}, {"NaN/s", ""}, {"1000001/s", ""}, {"", ""}, {"/s", ""}, {"50", ""},
	} {
		tail, err := ParseTail(tt.in)
		if (err == nil) != (tt.want != "") || (err == nil && tail.String() != tt.want) {
			t.Errorf("%q: %v, %v; want %q", tt.in, tail, err, tt.want)
		}
	}
}

func TestTailSpreadsThePieces(t *testing.T) {
	for _, tt := range []struct {
		tail string
		i, n int
		want time.Duration
	}{
		{"0", 5, 10, 0},
		{"10s", 0, 10, 0},
		{"10s", 9, 10, 9 * time.Second},
		{"10s", 10, 10, 10 * time.Second},
		{"10s", 1, 1, 10 * time.Second}, // a single piece comes first, the end when the tail is over
		{"10s", 0, 0, 0},
		{"10/s", 0, 10, 0},
		{"10/s", 9, 10, 900 * time.Millisecond},
		{"10/s", 10, 10, 900 * time.Millisecond}, // the end comes with the last token
	} {
		if got := mustTail(t, tt.tail).at(tt.i, tt.n); got != tt.want {
			t.Errorf("%s: piece %d of %d at %v, want %v", tt.tail, tt.i, tt.n, got, tt.want)
		}
	}
}

func TestLoadInterpolates(t *testing.T) {
	p := mustProfile(t, "load:2=100,4=200,8=300")
	for n, want := range map[int]float64{1: 100, 2: 100, 3: 150, 4: 200, 6: 250, 8: 300, 9: 300, 1000: 300} {
		if got := p.total(n); got != want {
			t.Errorf("%d at once: %v tokens/s, want %v", n, got, want)
		}
	}
	if got := p.perToken(4); got != 20*time.Millisecond {
		t.Errorf("4 at once: a token each %v, want 20ms", got)
	}
	if got := mustProfile(t, "fixed:1s").perToken(4); got != 0 {
		t.Errorf("fixed: a token each %v", got)
	}
}

func TestConfigNamesTheFieldThatIsWrong(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		want string // "" is right
	}{
		{Config{}, ""},
		{Config{Slots: 1 << 20, Queue: 1 << 20, LogSize: 1 << 20}, ""},
		{Config{Slots: 1<<20 + 1}, "Slots"},
		{Config{Slots: -1}, "Slots"},
		{Config{Queue: -1}, "Queue"},
		{Config{LogSize: -1}, "LogSize"},
		{Config{Model: strings.Repeat("m", 201)}, "Model"},
		{Config{Profile: ArticleLoad, Tail: "1s"}, "tail"},
		{Config{Profile: ArticleLoad}, ""},
	} {
		s, err := New(tt.cfg)
		if err == nil {
			s.Close()
		}
		if (err == nil) != (tt.want == "") || (err != nil && !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: %v, want %q named", tt.cfg, err, tt.want)
		}
	}
}

func TestCountTokens(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want int
	}{
		{"", 0}, {"a", 1}, {"sixsix", 1}, {"sevenxx", 2}, {"two words", 2}, {" lead", 1}, {"trail ", 2}, {"a  b", 2},
		{"twelve-chars", 2}, {"界界", 1}, {"界界界", 2}, {strings.Repeat(" ", 12), 2}, {"\xff\xfe", 1},
	} {
		if got := CountTokens(tt.in); got != tt.want {
			t.Errorf("%q: %d, want %d", tt.in, got, tt.want)
		}
	}
}
