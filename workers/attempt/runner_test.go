package attempt

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/workers/backend"
)

func TestConfig(t *testing.T) {
	c := &script{name: "a"}
	ok := Backend{Caller: c, P95: second}
	tests := []struct {
		field string
		cfg   Config
	}{
		{"", Config{Backends: []Backend{ok}}},
		{"", Config{Backends: []Backend{ok}, Share: 1}},
		{"Share", Config{Backends: []Backend{ok}, Share: 1.01}},
		{"Share", Config{Backends: []Backend{ok}, Share: -0.1}},
		{"Backends", Config{}},
		{"Cap", Config{Backends: []Backend{ok}, Cap: -1}},
		{"OpenFor", Config{Backends: []Backend{ok}, OpenFor: -1}},
		{"Backends[0].Caller", Config{Backends: []Backend{{P95: second}}}},
		{"Backends[0].P95", Config{Backends: []Backend{{Caller: c}}}},
		{"Backends[1]", Config{Backends: []Backend{ok, ok}}},
		{"Backends[0].MaxInFlight", Config{Backends: []Backend{{Caller: c, P95: second, MaxInFlight: -1}}}},
	}
	for _, tt := range tests {
		_, err := NewRunner(tt.cfg)
		var ce *broker.FieldError
		switch {
		case tt.field == "" && err != nil:
			t.Error(err)
		case tt.field != "" && (!errors.As(err, &ce) || ce.Field != tt.field):
			t.Errorf("%v, want an error of %s", err, tt.field)
		}
	}
}

// script is a caller without a network: it plays step after step.
type script struct {
	name, model string
	mu          sync.Mutex
	steps       []step
	calls       int
	onCall      func(ctx context.Context, r backend.Request)
}

// step is one call: first answer text after first, the end hold later, with err
// unless nil.
type step struct {
	first, hold time.Duration
	err         *backend.Error
	silent      bool
}

func (s *script) Name() string { return s.name }

func (s *script) Model() string {
	if s.model == "" {
		return "model-" + s.name
	}
	return s.model
}

// Generate behaves as a client does: it ends with the first byte's time or the
// context, whichever is first.
func (s *script) Generate(ctx context.Context, r backend.Request, obs backend.Observer) (backend.Answer, error) {
	if r.FirstByte == 0 {
		r.FirstByte = 1000 * time.Hour // only ctx bounds it
	}
	s.mu.Lock()
	st := step{}
	if len(s.steps) > 0 {
		st = s.steps[min(s.calls, len(s.steps)-1)]
	}
	s.calls++
	s.mu.Unlock()
	if s.onCall != nil {
		s.onCall(ctx, r)
	}
	wait := func(d, limit time.Duration) error {
		t := time.NewTimer(min(d, limit))
		defer t.Stop()
		select {
		case <-t.C:
			if d > limit {
				return &backend.Error{Reason: backend.ReasonFirstByte, Backend: s.name}
			}
			return nil
		case <-ctx.Done():
			reason := backend.ReasonCancelled
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				reason = backend.ReasonDeadline
			}
			return &backend.Error{Reason: reason, Backend: s.name}
		}
	}
	unknown := backend.Answer{Usage: used(broker.KnownUnknown, 10, 0)}
	first := st.first
	if st.silent {
		first = 1000 * time.Hour
	}
	if err := wait(first, r.FirstByte); err != nil {
		return unknown, err
	}
	if st.err != nil && st.hold == 0 {
		return unknown, st.err
	}
	a := backend.Answer{Text: s.name, HasText: true, FirstByte: st.first, LastByte: st.first, Usage: used(broker.KnownEstimated, 10, 1)}
	if obs.Text != nil {
		obs.Text(s.name)
	}
	if err := wait(st.hold, 1000*time.Hour); err != nil {
		return a, err
	}
	if st.err != nil {
		return a, st.err
	}
	a.LastByte, a.Whole, a.Finish = st.first+st.hold, true, backend.FinishStop
	return a, nil
}

func used(how broker.Known, in, out int64) backend.Usage {
	return backend.Usage{Usage: broker.Usage{InputTokens: in, OutputTokens: out, Known: how}}
}

func scripted(bs ...*script) Config {
	var cfg Config
	for _, s := range bs {
		cfg.Backends = append(cfg.Backends, Backend{Caller: s, P95: 500 * time.Millisecond})
	}
	return cfg
}

func TestBoundariesOfUsable(t *testing.T) {
	tests := []struct {
		name          string
		first, hold   time.Duration
		firstByteOnly bool
		want          broker.Outcome
	}{
		{"first byte at deadline - reserve", 8 * second, 0, false, broker.OutcomeUsable},
		{"first byte a millisecond later", 8*second + time.Millisecond, 0, false, broker.OutcomeLate},
		{"last byte just before the deadline", 5 * second, 5*second - 1, false, broker.OutcomeUsable},
		{"last byte after the deadline", 5 * second, 5*second + time.Millisecond, false, broker.OutcomeLate},
		{"the same, but the first byte alone counts", 5 * second, 5*second + time.Millisecond, true, broker.OutcomeUsable},
		{"the first byte alone counts and is late", 8*second + time.Millisecond, 0, true, broker.OutcomeLate},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := NewRunner(scripted(&script{name: "a", steps: []step{{first: tt.first, hold: tt.hold}}}))
				j := job(10 * second)
				j.Reserve, j.FirstByteOnly = 2*second, tt.firstByteOnly
				res, err := r.Run(t.Context(), j, Hooks{})
				if err != nil || res.Outcome != tt.want {
					t.Errorf("%+v %v, want %s", res, err, tt.want)
				}
				if res.EndedAt > 10*second {
					t.Errorf("ended at %v", res.EndedAt)
				}
			})
		})
	}
}

func TestExpired(t *testing.T) {
	for _, tt := range []struct {
		left, reserve time.Duration
		want          broker.Outcome
	}{
		{500 * time.Millisecond, 0, broker.OutcomeUsable},
		{499 * time.Millisecond, 0, broker.OutcomeExpired},
		{2500 * time.Millisecond, 2 * second, broker.OutcomeUsable},
		{2499 * time.Millisecond, 2 * second, broker.OutcomeExpired},
		{0, 0, broker.OutcomeExpired},
		{-second, 0, broker.OutcomeExpired},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{name: "a"}
			r, _ := NewRunner(scripted(s))
			j := job(tt.left)
			j.Reserve = tt.reserve
			res, _ := r.Run(t.Context(), j, Hooks{})
			if res.Outcome != tt.want || (tt.want == broker.OutcomeExpired) != (s.calls == 0) {
				t.Errorf("left %v reserve %v: %s after %d calls", tt.left, tt.reserve, res.Outcome, s.calls)
			}
		})
	}
}

func TestMeasuredP95(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{name: "a"}
		r, _ := NewRunner(scripted(s))
		r.Upstreams()[0].SetP95(5 * second)
		if res, _ := r.Run(t.Context(), job(4*second), Hooks{}); res.Outcome != broker.OutcomeExpired {
			t.Error(res.Outcome)
		}
		r.Upstreams()[0].SetP95(0)
		if res, _ := r.Run(t.Context(), job(4*second), Hooks{}); res.Outcome != broker.OutcomeUsable {
			t.Error(res.Outcome)
		}
	})
}

// The write-ahead row decides whether a backend is called at all.
func TestBeforeRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{name: "a"}
		r, _ := NewRunner(scripted(s))
		fenced := errors.New("another owner")
		after := 0
		_, err := r.Run(t.Context(), job(10*second), Hooks{
			Before: func(context.Context, Call) error { return fenced },
			After:  func(Attempt) { after++ },
		})
		if !errors.Is(err, ErrBefore) || !errors.Is(err, fenced) || s.calls != 0 || after != 0 {
			t.Errorf("%v, %d calls, %d settled", err, s.calls, after)
		}
	})
}

// A ledger that is slow eats the time of the call, and the call is not made
// when too little is left.
func TestSlowBefore(t *testing.T) {
	for _, tt := range []struct {
		delay time.Duration
		calls int
		want  broker.Outcome
	}{
		{9500 * time.Millisecond, 1, broker.OutcomeUsable},
		{9501 * time.Millisecond, 0, broker.OutcomeExpired},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{name: "a", steps: []step{{first: 500 * time.Millisecond}}}
			r, _ := NewRunner(scripted(s))
			l := newLedger(t)
			h := l.hooks()
			before := h.Before
			h.Before = func(ctx context.Context, c Call) error { time.Sleep(tt.delay); return before(ctx, c) }
			j := job(11 * second)
			j.Reserve = second
			res, err := r.Run(t.Context(), j, h)
			if err != nil || res.Outcome != tt.want || s.calls != tt.calls {
				t.Errorf("%+v, %v, %d calls", res, err, s.calls)
			}
			l.check()
			if len(l.settled) != 1 || l.settled[0].NotCalled != (tt.calls == 0) || l.settled[0].CostMicro() != 0 {
				t.Errorf("%+v", l.settled)
			}
		})
	}
}

func TestRelay(t *testing.T) {
	stall := &backend.Error{Reason: backend.ReasonStall}
	synctest.Test(t, func(t *testing.T) {
		a := &script{name: "a", steps: []step{{hold: second, err: stall}}}
		b := &script{name: "b"}
		r, _ := NewRunner(scripted(a, b))
		var got strings.Builder
		res, _ := r.Run(t.Context(), job(10*second), Hooks{Relay: func(p string) { got.WriteString(p) }})
		if res.Outcome != broker.OutcomeTruncated || !res.Relayed || b.calls != 0 || got.String() != "a" {
			t.Errorf("%+v, relayed %q, fallback called %d times", res, got.String(), b.calls)
		}
		// Without a listener the fallback is used.
		a.calls = 0
		res, _ = r.Run(t.Context(), job(10*second), Hooks{})
		if res.Outcome != broker.OutcomeUsable || res.Text != "b" || res.Relayed {
			t.Errorf("%+v", res)
		}
		// Nor does a listener who has heard nothing yet stand in the way.
		c := &script{name: "c", steps: []step{{silent: true}}}
		r, _ = NewRunner(scripted(c, b))
		got.Reset()
		res, _ = r.Run(t.Context(), job(10*second), Hooks{Relay: func(p string) { got.WriteString(p) }})
		if res.Outcome != broker.OutcomeUsable || got.String() != "b" {
			t.Errorf("%+v, relayed %q", res, got.String())
		}
	})
}

func TestNoFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &script{name: "a", steps: []step{{silent: true}}}
		b := &script{name: "b"}
		r, _ := NewRunner(scripted(a, b))
		j := job(10 * second)
		j.NoFallback = true
		res, _ := r.Run(t.Context(), j, Hooks{})
		// The first backend then has all the time.
		if res.Outcome != broker.OutcomeLate || res.EndedAt != 10*second || b.calls != 0 {
			t.Errorf("%+v, fallback called %d times", res, b.calls)
		}
		r.Upstreams()[0].TakeOut("maintenance")
		if res, _ = r.Run(t.Context(), j, Hooks{}); res.Outcome != broker.OutcomeExpired || b.calls != 0 {
			t.Errorf("%+v", res)
		}
	})
}

func TestTakeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &script{name: "a"}, &script{name: "b"}
		r, _ := NewRunner(scripted(a, b))
		r.Upstreams()[0].TakeOut("maintenance")
		if s := r.Upstreams()[0].State(); s.State != broker.BackendOut || s.Why != "maintenance" {
			t.Errorf("%+v", s)
		}
		if res, _ := r.Run(t.Context(), job(10*second), Hooks{}); res.Text != "b" || a.calls != 0 {
			t.Errorf("%+v", res)
		}
		// A probe that goes well does not overrule the operator.
		if err := r.Probe(t.Context(), r.Upstreams()[0], "p", Hooks{}); err != nil || r.Upstreams()[0].State().State != broker.BackendOut {
			t.Errorf("%v %+v", err, r.Upstreams()[0].State())
		}
		r.Upstreams()[0].PutBack()
		if res, _ := r.Run(t.Context(), job(10*second), Hooks{}); res.Text != "a" {
			t.Errorf("%+v", res)
		}
	})
}

// A job waits for a permit only as long as its p95 still fits what it may
// spend, and for a backend that is held only within its slack.
func TestWaits(t *testing.T) {
	busy := func(t *testing.T, r *Runner, d time.Duration) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _, _ = r.Run(ctx, job(time.Hour), Hooks{}) }()
		synctest.Wait()
		go func() { time.Sleep(d); cancel(); <-done }()
	}
	for _, tt := range []struct {
		name     string
		busy     time.Duration
		fallback bool
		want     broker.Outcome
		by       string
		ended    time.Duration
	}{
		{"alone, freed in time", 9500*time.Millisecond - 1, false, broker.OutcomeUsable, "a", 9500*time.Millisecond - 1},
		{"alone, freed too late", 9501 * time.Millisecond, false, broker.OutcomeExpired, "", 9500 * time.Millisecond},
		{"with a fallback, freed in time", 5 * second, true, broker.OutcomeUsable, "a", 5 * second},
		{"with a fallback, freed too late", 6 * second, true, broker.OutcomeUsable, "b", 5500 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &script{name: "a", steps: []step{{silent: true}, {}}}
				cfg := scripted(a)
				if tt.fallback {
					cfg = scripted(a, &script{name: "b"})
				}
				cfg.Backends[0].MaxInFlight = 1
				r, _ := NewRunner(cfg)
				busy(t, r, tt.busy)
				if s := r.Upstreams()[0].State(); s.InFlight != 1 {
					t.Errorf("%+v", s)
				}
				res, _ := r.Run(t.Context(), job(10*second), Hooks{})
				if res.Outcome != tt.want || res.Backend != tt.by || res.EndedAt != tt.ended {
					t.Errorf("%s by %q at %v, want %s by %q at %v", res.Outcome, res.Backend, res.EndedAt, tt.want, tt.by, tt.ended)
				}
				time.Sleep(time.Minute)
			})
		})
	}
	t.Run("held", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, _ := NewRunner(scripted(&script{name: "a"}))
			r.Upstreams()[0].Hold(9500*time.Millisecond, "told by another worker")
			if res, _ := r.Run(t.Context(), job(10*second), Hooks{}); res.Outcome != broker.OutcomeUsable || res.EndedAt != 9500*time.Millisecond {
				t.Errorf("%+v", res)
			}
			r.Upstreams()[0].Hold(9501*time.Millisecond, "told by another worker")
			if res, _ := r.Run(t.Context(), job(10*second), Hooks{}); res.Outcome != broker.OutcomeExpired || res.Reason != ReasonNoBackend || res.EndedAt != 0 {
				t.Errorf("%+v", res)
			}
		})
	})
}

func TestInFlightBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most := 0, 0
		a := &script{name: "a", steps: []step{{first: second}}}
		a.onCall = func(context.Context, backend.Request) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.AfterFunc(second-1, func() { mu.Lock(); now--; mu.Unlock() })
		}
		cfg := scripted(a)
		cfg.Backends[0].MaxInFlight = 3
		r, _ := NewRunner(cfg)
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() {
				if res, _ := r.Run(t.Context(), job(10*second), Hooks{}); res.Outcome != broker.OutcomeUsable {
					t.Error(res.Outcome)
				}
			})
		}
		wg.Wait()
		if most != 3 {
			t.Errorf("%d calls at once", most)
		}
		time.Sleep(second)
	})
}

func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := NewRunner(scripted(&script{name: "a", steps: []step{{silent: true}}}))
		ctx, cancel := context.WithTimeoutCause(t.Context(), 3*second, errors.New("the producer left"))
		defer cancel()
		ctx2, cancel2 := context.WithCancel(ctx)
		defer cancel2()
		time.AfterFunc(2*second, cancel2)
		l := newLedger(t)
		res, err := r.Run(ctx2, job(10*second), l.hooks())
		if err != nil || res.Outcome != broker.OutcomeCancelled || res.EndedAt != 2*second {
			t.Errorf("%+v %v", res, err)
		}
		l.check()
		if len(l.settled) != 1 || !l.settled[0].Censored {
			t.Errorf("%+v", l.settled)
		}
		// A cancel changes nothing once the deadline has passed.
		ctx3, cancel3 := context.WithCancel(t.Context())
		defer cancel3()
		h := Hooks{After: func(Attempt) { cancel3() }}
		if res, _ = r.Run(ctx3, job(10*second), h); res.Outcome != broker.OutcomeLate {
			t.Errorf("%+v", res)
		}
	})
}

// Each backend is told its own key, the same for each attempt of one job.
func TestKeys(t *testing.T) {
	bubble(t, func(w *world) {
		flaky := func(o *out, n int) {
			if n%2 == 0 {
				o.status(500, ``)
				return
			}
			o.status(501, ``)
		}
		var bs []Backend
		for _, name := range []string{"a", "b"} {
			bs = append(bs, Backend{Caller: w.client(w.backend(name, flaky)), P95: 100 * time.Millisecond})
		}
		r := w.runner(Config{Backends: bs, FailureThreshold: 100})
		for _, first := range []int{1, 5} {
			j := job(10 * second)
			j.FirstNumber = first
			_, _ = r.Run(w.t.Context(), j, Hooks{})
		}
		a, b := w.calls("a"), w.calls("b")
		if len(a) != 4 || len(b) != 4 {
			t.Fatalf("%d and %d calls", len(a), len(b))
		}
		var ids []string
		for i := range a {
			if a[i].key != a[0].key || b[i].key != b[0].key || a[i].key == b[i].key || a[i].key == "" {
				t.Errorf("keys %q and %q", a[i].key, b[i].key)
			}
			ids = append(ids, a[i].requestID, b[i].requestID)
		}
		slices.Sort(ids)
		if want := "[j1-1 j1-2 j1-3 j1-4 j1-5 j1-6 j1-7 j1-8]"; fmt.Sprint(ids) != want {
			t.Errorf("request ids %v, want %s", ids, want)
		}
	})
}

// Whatever backends do, a job ends in time with one outcome, each attempt is
// settled once, and no backend is called with less slack than its p95.
func TestInvariants(t *testing.T) {
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) { invariants(t, rand.New(rand.NewPCG(seed, 1))) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func invariants(t *testing.T, rnd *rand.Rand) {
	upTo := func(d time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(d))) }
	cfg := Config{Share: 0.1 + 0.9*rnd.Float64(), FailureThreshold: uint(1 + rnd.IntN(4)), OpenFor: 1 + upTo(5*second)}
	if rnd.IntN(2) == 0 {
		cfg.Cap = 1 + upTo(4*second)
	}
	due := map[string]time.Time{}
	var mu sync.Mutex
	for i := range 1 + rnd.IntN(4) {
		s := &script{name: string(rune('a' + i)), model: string(rune('m' + rnd.IntN(2)))}
		for range 1 + rnd.IntN(5) {
			st := step{first: upTo(4 * second), silent: rnd.IntN(4) == 0}
			if rnd.IntN(2) == 0 {
				st.hold = upTo(6 * second)
			}
			if rnd.IntN(2) == 0 {
				st.err = &backend.Error{Reason: backend.Reasons[rnd.IntN(len(backend.Reasons))], Status: []int{0, 429, 500, 503}[rnd.IntN(4)]}
				if rnd.IntN(3) == 0 {
					st.err.RetryAfter = upTo(3 * second)
				}
			}
			s.steps = append(s.steps, st)
		}
		b := Backend{Caller: s, P95: 1 + upTo(3*second), MaxInFlight: rnd.IntN(3), Price: fixed(backend.Price{InputMicroPerMTok: rnd.Int64N(1e9)})}
		s.onCall = func(_ context.Context, r backend.Request) {
			mu.Lock()
			defer mu.Unlock()
			id, _, _ := strings.Cut(r.RequestID, "-")
			if slack := time.Until(due[id]); slack < b.P95 || r.FirstByte > slack || r.FirstByte < 0 {
				t.Errorf("called with %v of slack and %v for the first byte, p95 %v", slack, r.FirstByte, b.P95)
			}
		}
		cfg.Backends = append(cfg.Backends, b)
	}
	r, err := NewRunner(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 1 + rnd.IntN(6) {
		j := job(upTo(12 * second))
		j.ID, j.Reserve, j.FirstByteOnly, j.NoFallback = fmt.Sprintf("j%d", i), upTo(2*second), rnd.IntN(4) == 0, rnd.IntN(6) == 0
		start := upTo(5 * second)
		cancelAfter := time.Duration(-1)
		if rnd.IntN(5) == 0 {
			cancelAfter = upTo(12 * second)
		}
		relay := rnd.IntN(3) == 0
		wg.Go(func() {
			time.Sleep(start)
			mu.Lock()
			due[j.ID] = time.Now().Add(j.Left - j.Reserve)
			mu.Unlock()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if cancelAfter >= 0 {
				defer time.AfterFunc(cancelAfter, cancel).Stop()
			}
			l := newLedger(t)
			h := l.hooks()
			if relay {
				h.Relay = func(string) {}
			}
			res, err := r.Run(ctx, j, h)
			l.check()
			if err != nil || !slices.Contains(broker.Outcomes[:], res.Outcome) {
				t.Errorf("%+v %v", res, err)
			}
			if res.EndedAt > max(j.Left, 0) {
				t.Errorf("ended at %v of %v", res.EndedAt, j.Left)
			}
			if (res.Outcome == broker.OutcomeExpired) && len(res.Attempts) != 0 || len(res.Attempts) != len(l.settled) {
				t.Errorf("%s with %d attempts, %d settled", res.Outcome, len(res.Attempts), len(l.settled))
			}
			if res.Outcome == broker.OutcomeUsable && (res.FirstByte > j.Left-j.Reserve || (res.LastByte > j.Left && !j.FirstByteOnly) || res.Text == "") {
				t.Errorf("not usable: %+v", res)
			}
			for _, a := range res.Attempts {
				if a.CostMicro() < 0 || a.Usage.Known == "" || a.At+a.Hold > j.Left {
					t.Errorf("%+v", a)
				}
			}
		})
	}
	wg.Wait()
	for _, u := range r.Upstreams() {
		if s := u.State(); s.InFlight != 0 {
			t.Errorf("%+v", s)
		}
	}
}
