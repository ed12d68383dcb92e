package lab

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestDedupe(t *testing.T) {
	cfg := Config{Profile: "fixed:6s", Slots: 2, Dedupe: true}
	deduped := func(rep reply) bool {
		header := rep.header.Get(DedupedHeader) == "true"
		if field := strings.Contains(string(rep.raw), `"deduped":true`); field != header {
			t.Errorf("header says %v, body says %v", header, field)
		}
		return header
	}

	t.Run("completed", func(t *testing.T) {
		inLab(t, cfg, func(l *lab) {
			first := l.send(ask{key: "k", stream: true})
			again := l.send(ask{key: "k", stream: true})
			if deduped(first) || !deduped(again) || again.endAt != 0 || again.text != first.text {
				t.Errorf("first %v, again %v at %v", deduped(first), deduped(again), again.endAt)
			}
			if other := l.send(ask{key: "other"}); deduped(other) || other.endAt != 6*time.Second {
				t.Errorf("other key: deduped %v at %v", deduped(other), other.endAt)
			}
			if none := l.send(ask{}); deduped(none) {
				t.Error("without a key: deduped")
			}
		})
	})

	// A hundred at once, one generation, and no slot for the copies.
	t.Run("in flight", func(t *testing.T) {
		inLab(t, cfg, func(l *lab) {
			var wg sync.WaitGroup
			reps := make([]reply, 100)
			for i := range reps {
				wg.Go(func() { reps[i] = l.send(ask{key: "k"}) })
			}
			time.Sleep(time.Second)
			if st := l.State(); st.InService != 1 || st.Waiting != 0 {
				t.Errorf("state %+v", st)
			}
			wg.Wait()
			made := 0
			for _, rep := range reps {
				if !deduped(rep) {
					made++
				}
				if rep.status != 200 || rep.endAt != 6*time.Second || rep.text == "" {
					t.Errorf("status %d at %v", rep.status, rep.endAt)
				}
			}
			if made != 1 {
				t.Errorf("%d generations, want 1", made)
			}
		})
	})

	// The caller gives up after 3 s; the work goes on, and the retry gets it.
	t.Run("abandoned", func(t *testing.T) {
		inLab(t, cfg, func(l *lab) {
			ctx, cancel := context.WithTimeout(l.t.Context(), 3*time.Second)
			defer cancel()
			if rep := l.send(ask{key: "k", stream: true, ctx: ctx}); rep.dialErr == nil {
				t.Errorf("status %d, want nothing", rep.status)
			}
			again := l.send(ask{key: "k", stream: true})
			if !deduped(again) || again.endAt != 3*time.Second {
				t.Errorf("retry: deduped %v at %v, want it after the remaining 3s", deduped(again), again.endAt)
			}
			synctest.Wait()
			a, _ := l.Attempts(0)
			if len(a) != 2 || a[0].Ended != EndedAbandoned || a[0].ElapsedMS != 6000 || !a[1].Deduped || a[1].Ended != EndedOK {
				t.Errorf("attempts %+v", a)
			}
		})
	})

	t.Run("another body", func(t *testing.T) {
		inLab(t, cfg, func(l *lab) {
			l.send(ask{key: "k"})
			if rep := l.send(ask{key: "k", text: "Another text."}); rep.status != 409 || !strings.Contains(string(rep.raw), "idempotency_key_reused") {
				t.Errorf("%d %s", rep.status, rep.raw)
			}
		})
	})

	t.Run("faults are not remembered", func(t *testing.T) {
		inLab(t, cfg, func(l *lab) {
			if rep := l.send(ask{key: "k", fault: "empty"}); rep.text != "" {
				t.Errorf("text %q", rep.text)
			}
			if rep := l.send(ask{key: "k"}); deduped(rep) || rep.text == "" {
				t.Errorf("deduped %v, text %q", deduped(rep), rep.text)
			}
		})
	})

	t.Run("a copy waits no longer than its client", func(t *testing.T) {
		inLab(t, cfg, func(l *lab) {
			go l.send(ask{key: "k"})
			synctest.Wait()
			ctx, cancel := context.WithTimeout(l.t.Context(), time.Second)
			defer cancel()
			l.send(ask{key: "k", ctx: ctx})
			synctest.Wait()
			if a, _ := l.Attempts(1); len(a) != 1 || a[0].Ended != EndedClientGone || a[0].ElapsedMS != 1000 {
				t.Errorf("attempts %+v", a)
			}
			time.Sleep(time.Minute)
		})
	})

	for _, tt := range []struct {
		n    int
		want bool
	}{{MaxIdempotencyKey, true}, {MaxIdempotencyKey + 1, false}} {
		t.Run(fmt.Sprintf("key of %d bytes", tt.n), func(t *testing.T) {
			inLab(t, Config{Dedupe: true}, func(l *lab) {
				if rep := l.send(ask{key: strings.Repeat("k", tt.n)}); (rep.status == 200) != tt.want {
					t.Errorf("status %d", rep.status)
				}
			})
		})
	}
}

func TestDedupeForgetsTheOldest(t *testing.T) {
	var d dedupe
	for i := range maxKeys + 10 {
		key := fmt.Sprint(i)
		m, mine, _ := d.claim(key, [32]byte{})
		if !mine {
			t.Fatalf("key %s is known", key)
		}
		d.finish(m, answer{}, i%2 == 0)
	}
	if got := len(d.made.values); got != maxKeys || len(d.made.order) != maxKeys {
		t.Errorf("%d keys, %d in order; want %d", got, len(d.made.order), maxKeys)
	}
	for _, tt := range []struct {
		key, name string
		mine      bool
	}{
		{"9998", "the newest that succeeded", false},
		{"9999", "the newest that failed", true},
		{"10", "the oldest that is remembered", false},
		{"0", "one that is forgotten", true},
	} {
		if _, mine, _ := d.claim(tt.key, [32]byte{}); mine != tt.mine {
			t.Errorf("%s: made anew %v, want %v", tt.name, mine, tt.mine)
		}
	}
}

// What happens to work whose caller has gone: dropped at once, or finished.
func TestAbandoned(t *testing.T) {
	for _, tt := range []struct {
		name   string
		finish bool
		ended  Ended
		held   int // in service just after
		ms     float64
	}{
		{"dropped", false, EndedClientGone, 0, 3000},
		{"finished", true, EndedAbandoned, 1, 6000},
	} {
		for _, tail := range []string{"0", "4s"} { // before the first byte, or while it streams
			t.Run(tt.name+" tail "+tail, func(t *testing.T) {
				profile := map[string]string{"0": "fixed:6s", "4s": "fixed:2s"}[tail]
				cfg := Config{Profile: profile, Tail: tail, Slots: 1, FinishAbandoned: tt.finish}
				inLab(t, cfg, func(l *lab) {
					ctx, cancel := context.WithTimeout(l.t.Context(), 3*time.Second)
					defer cancel()
					rep := l.send(ask{stream: true, ctx: ctx})
					synctest.Wait()
					if st := l.State(); st.InService != tt.held || rep.endAt != 3*time.Second {
						t.Errorf("state %+v at %v, want %d in service", st, rep.endAt, tt.held)
					}
					time.Sleep(time.Minute)
					a, _ := l.Attempts(0)
					if len(a) != 1 || a[0].Ended != tt.ended || a[0].ElapsedMS < tt.ms || a[0].ElapsedMS > tt.ms+50 {
						t.Errorf("attempts %+v", a)
					}
					if tt.finish && a[0].CompletionTokens != 123 {
						t.Errorf("%d tokens generated, want all", a[0].CompletionTokens)
					}
				})
			})
		}
	}
}
