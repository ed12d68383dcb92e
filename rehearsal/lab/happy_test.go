package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"leeway/rehearsal/lab/extract"
)

func TestAnswersInTimeAndFromTheText(t *testing.T) {
	cfg := Config{Profile: "fixed:1200ms", Tail: "2800ms"}
	for _, stream := range []bool{true, false} {
		inLab(t, cfg, func(l *lab) {
			rep := l.send(ask{stream: stream, usage: stream})
			if rep.status != 200 || rep.err != nil || rep.bad != 0 {
				t.Fatalf("status %d, %v, %d bad events: %s", rep.status, rep.err, rep.bad, rep.raw)
			}
			wantFirst := 1200 * time.Millisecond
			if !stream {
				wantFirst = 4 * time.Second
			}
			if rep.headersAt != wantFirst {
				t.Errorf("stream %v: headers at %v, want them with the first byte", stream, rep.headersAt)
			}
			if rep.firstAt != wantFirst || rep.endAt != 4*time.Second {
				t.Errorf("stream %v: first byte at %v, end at %v; want %v and 4s", stream, rep.firstAt, rep.endAt, wantFirst)
			}
			for line := range strings.SplitSeq(rep.text, "\n") {
				if !strings.Contains(article, line) {
					t.Errorf("%q is no sentence of the text", line)
				}
			}
			var u usage
			if err := json.Unmarshal([]byte(rep.usage), &u); err != nil || rep.usages != 1 {
				t.Fatalf("%d usage blocks, the last %s: %v", rep.usages, rep.usage, err)
			}
			if want := newUsage(CountTokens(article), CountTokens(rep.text), 0); u != want {
				t.Errorf("usage %+v, want %+v", u, want)
			}
			if rep.finish != "stop" || rep.done != stream || rep.roleFirst != stream {
				t.Errorf("finish %q, done %v, role first %v", rep.finish, rep.done, rep.roleFirst)
			}
			a, _ := l.Attempts(0)
			if len(a) != 1 || a[0].ID != rep.header.Get("X-Request-Id") || a[0].Ended != EndedOK ||
				a[0].FirstByteMS != millis(wantFirst) || a[0].ElapsedMS != 4000 || a[0].CompletionTokens != u.CompletionTokens {
				t.Errorf("attempts %+v", a)
			}
		})
	}
}

func TestUsageOnlyIfAskedForInAStream(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		if rep := l.send(ask{stream: true}); rep.usages != 0 || strings.Contains(string(rep.raw), "usage") {
			t.Errorf("usage although not asked for: %s", rep.raw)
		}
	})
}

func TestMaxTokens(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		whole := l.send(ask{stream: true})
		n := CountTokens(whole.text)
		for _, tt := range []struct {
			limit  int
			finish string
			tokens int
		}{{1, "length", 1}, {n - 1, "length", n - 1}, {n, "stop", n}, {n + 1, "stop", n}} {
			rep := l.send(ask{stream: true, maxTokens: tt.limit})
			if rep.finish != tt.finish || CountTokens(rep.text) != tt.tokens || !strings.HasPrefix(whole.text, rep.text) {
				t.Errorf("limit %d: %d tokens, finish %q; want %d, %q", tt.limit, CountTokens(rep.text), rep.finish, tt.tokens, tt.finish)
			}
		}
	})
}

func TestWordLimitOfTheSystemPrompt(t *testing.T) {
	inLab(t, Config{}, func(l *lab) {
		long := strings.Repeat(article+" ", 1) + strings.Repeat(strings.ReplaceAll(article, "queue", "line")+" ", 6)
		for _, tt := range []struct {
			system string
			most   int
		}{{"", 200}, {"Summarise in at most 40 words.", 40}, {"Write a 30-word summary.", 30}, {"Use 900 words.", 200}} {
			rep := l.send(ask{stream: true, system: tt.system, text: long})
			if got := extract.CountWords(rep.text); got > tt.most || got == 0 {
				t.Errorf("%q: %d words, want 1 to %d", tt.system, got, tt.most)
			}
		}
	})
}

func TestLognormalHasItsP95AndItsSeed(t *testing.T) {
	const n = 4000
	draw := func(seed uint64) []time.Duration {
		p := mustProfile(t, fmt.Sprintf("lognormal:p95=1200ms,sigma=0.5,seed=%d", seed))
		rng := p.source()
		out := make([]time.Duration, n)
		for i := range out {
			out[i] = p.Draw(rng)
		}
		return out
	}
	first := draw(1)
	if !slices.Equal(first, draw(1)) {
		t.Error("the same seed gave other draws")
	}
	if slices.Equal(first, draw(2)) {
		t.Error("another seed gave the same draws")
	}
	sorted := slices.Sorted(slices.Values(first))
	p95 := sorted[n*95/100]
	if p95 < 1150*time.Millisecond || p95 > 1250*time.Millisecond {
		t.Errorf("95th percentile %v, want about 1.2s", p95)
	}
	median := sorted[n/2].Seconds()
	if want := 1.2 * math.Exp(-z95*0.5); math.Abs(median-want) > 0.02 {
		t.Errorf("median %.3f s, want about %.3f", median, want)
	}
}

// Sixteen at once on a limit of two are served in pairs, in the order of
// arrival, and never more than two at a time.
func TestSlotsAreARealLimit(t *testing.T) {
	inLab(t, Config{Profile: "fixed:6s", Slots: 2}, func(l *lab) {
		var wg sync.WaitGroup
		ends := make([]time.Duration, 16)
		for i := range ends {
			wg.Go(func() { ends[i] = l.send(ask{stream: true}).endAt })
			synctest.Wait() // one after the other, at the same instant
		}
		if st := l.State(); st.InService != 2 || st.Waiting != 14 || st.Attempts != 16 {
			t.Errorf("state %+v, want 2 in service, 14 waiting", st)
		}
		wg.Wait()
		for i, got := range ends {
			if want := time.Duration(i/2+1) * 6 * time.Second; got != want {
				t.Errorf("request %d ended at %v, want %v", i, got, want)
			}
		}
		attempts, _ := l.Attempts(0)
		for i, a := range attempts {
			if a.InService < 1 || a.InService > 2 || a.QueueMS != float64(i/2*6000) {
				t.Errorf("attempt %d: %d in service, queued %v ms", i, a.InService, a.QueueMS)
			}
		}
		if st := l.State(); st.InService != 0 || st.Waiting != 0 {
			t.Errorf("state %+v afterwards", st)
		}
	})
}

func TestQueueIsBounded(t *testing.T) {
	inLab(t, Config{Profile: "fixed:1s", Slots: 1, Queue: 2}, func(l *lab) {
		var wg sync.WaitGroup
		statuses := make([]int, 4)
		for i := range statuses {
			wg.Go(func() { statuses[i] = l.send(ask{}).status })
			synctest.Wait()
		}
		wg.Wait()
		if want := []int{200, 200, 200, 503}; !slices.Equal(statuses, want) {
			t.Errorf("statuses %v, want %v", statuses, want)
		}
	})
}

func TestSlotsCanBeChangedWhileRunning(t *testing.T) {
	inLab(t, Config{Profile: "fixed:1s", Slots: 1}, func(l *lab) {
		var wg sync.WaitGroup
		ends := make([]time.Duration, 6)
		for i := range ends {
			wg.Go(func() { ends[i] = l.send(ask{}).endAt })
			synctest.Wait()
		}
		time.Sleep(500 * time.Millisecond)
		if err := l.SetPace(Pace{Slots: new(3)}); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		ms := time.Millisecond
		if want := []time.Duration{1000 * ms, 1500 * ms, 1500 * ms, 2000 * ms, 2500 * ms, 2500 * ms}; !slices.Equal(ends, want) {
			t.Errorf("ends %v, want %v", ends, want)
		}
	})
}

// Alone, 8 and 32 at once get the throughput that the article measured.
func TestLoadProfileFollowsTheArticle(t *testing.T) {
	for _, tt := range []struct {
		n     int
		total float64
	}{{1, 189}, {8, 433}, {32, 474}, {64, 474}} {
		inLab(t, Config{Profile: ArticleLoad}, func(l *lab) {
			var wg sync.WaitGroup
			ends := make([]time.Duration, tt.n)
			tokens := 0
			var mu sync.Mutex
			for i := range ends {
				wg.Go(func() {
					rep := l.send(ask{stream: true, maxTokens: 50})
					mu.Lock()
					defer mu.Unlock()
					ends[i] = rep.endAt
					tokens += CountTokens(rep.text)
				})
			}
			wg.Wait()
			if got := float64(tokens) / slices.Max(ends).Seconds(); math.Abs(got/tt.total-1) > 0.01 {
				t.Errorf("%d at once: %.1f tokens/s, want %v", tt.n, got, tt.total)
			}
		})
	}
}

// The article's first fault, from the backend's side: 32 callers who walk away
// after 700 ms, with answers of unequal length. Unbounded, the one with the
// shortest answer is served; with a bound of 8, most of the eight are.
func TestArticlesCallersWithAndWithoutABound(t *testing.T) {
	for _, tt := range []struct {
		name        string
		bound       int
		least, most int
	}{{"unbounded", 32, 1, 1}, {"bounded", 8, 6, 8}} {
		t.Run(tt.name, func(t *testing.T) {
			inLab(t, Config{Profile: ArticleLoad, FinishAbandoned: true}, func(l *lab) {
				admitted := make(chan struct{}, tt.bound)
				var wg sync.WaitGroup
				var mu sync.Mutex
				usable, refused, ok := 0, 0, 0
				for i := range 32 {
					select {
					case admitted <- struct{}{}:
					default:
						refused++
						continue
					}
					wg.Go(func() {
						rep := l.send(ask{stream: true, maxTokens: 9 + 4*i})
						mu.Lock()
						defer mu.Unlock()
						if rep.status == 200 {
							ok++
						}
						if rep.endAt <= 700*time.Millisecond && rep.done {
							usable++
						}
					})
				}
				wg.Wait()
				t.Logf("%d answered with 200, %d refused, %d usable", ok, refused, usable)
				if ok != tt.bound || refused != 32-tt.bound || usable < tt.least || usable > tt.most {
					t.Errorf("%d ok, %d refused, %d usable; want %d, %d, %d to %d", ok, refused, usable, tt.bound, 32-tt.bound, tt.least, tt.most)
				}
			})
		})
	}
}

func TestModels(t *testing.T) {
	inLab(t, Config{Model: "lab-paid"}, func(l *lab) {
		get := func(path string) (int, string) {
			resp, err := l.client.Get("http://lab" + path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, string(b)
		}
		if status, body := get("/v1/models"); status != 200 || !strings.Contains(body, `"lab-paid"`) || !strings.Contains(body, `"fault-slow.20s"`) {
			t.Errorf("models: %d %s", status, body)
		}
		for path, want := range map[string]int{
			"/v1/models/lab-paid": 200, "/v1/models/fault-stall": 200, "/v1/models/gpt": 404, "/healthz": 200, "/v1/other": 404,
		} {
			if status, body := get(path); status != want {
				t.Errorf("%s: %d %s, want %d", path, status, body, want)
			}
		}
		if rep := l.send(ask{model: DefaultModel}); rep.status != http.StatusNotFound || !strings.Contains(string(rep.raw), "model_not_found") {
			t.Errorf("unknown model: %d %s", rep.status, rep.raw)
		}
	})
}
