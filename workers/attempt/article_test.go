package attempt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"leeway/broker"
	"leeway/workers/backend"
)

const second = time.Second

// attemptCounted is the policy of the second article's fault: so many attempts,
// each with a timeout of its own, whoever waits. It lives here only to show
// what it does.
func attemptCounted(ctx context.Context, callers []Caller, attempts int, timeout time.Duration) error {
	var last error
	for i := range attempts {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		_, err := callers[i%len(callers)].Generate(ctx, backend.Request{Text: "x"}, backend.Observer{})
		cancel()
		if err == nil {
			return nil
		}
		last = err
	}
	return last
}

// The second article's fault: a primary that answers after 3 s although its p95
// is declared as 0.5 s, a healthy fallback, callers that wait 1.5 s.
func TestSlowPrimary(t *testing.T) {
	const (
		jobs = 8
		wait = 1500 * time.Millisecond
	)
	setUp := func(w *world) (primary, fallback Caller) {
		return w.client(w.backend("primary", answers(3*second, 0, "slow"))),
			w.client(w.backend("fallback", answers(100*time.Millisecond, 0, "fast")))
	}
	// each runs eight callers at once and returns how long each took.
	each := func(f func(i int) error) (took []time.Duration, failed int) {
		took = make([]time.Duration, jobs)
		errs := make([]error, jobs)
		var wg sync.WaitGroup
		for i := range jobs {
			wg.Go(func() {
				start := time.Now()
				errs[i] = f(i)
				took[i] = time.Since(start)
			})
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				failed++
			}
		}
		slices.Sort(took)
		return took, failed
	}
	inTime := func(took []time.Duration) (n int) {
		for _, d := range took {
			if d <= wait {
				n++
			}
		}
		return n
	}

	t.Run("attempt-counted", func(t *testing.T) {
		bubble(t, func(w *world) {
			primary, fallback := setUp(w)
			took, failed := each(func(int) error {
				return attemptCounted(w.t.Context(), []Caller{primary, fallback}, 3, 5*second)
			})
			t.Logf("%d of %d logged as success, %d in time, p50 %v, fallback called %d times",
				jobs-failed, jobs, inTime(took), took[jobs/2], len(w.calls("fallback")))
			if failed != 0 || inTime(took) != 0 || len(w.calls("fallback")) != 0 {
				t.Error("the fault does not show")
			}
		})
	})
	t.Run("deadline-owned", func(t *testing.T) {
		bubble(t, func(w *world) {
			primary, fallback := setUp(w)
			r := w.runner(Config{Backends: []Backend{{Caller: primary, P95: 500 * time.Millisecond}, {Caller: fallback, P95: 500 * time.Millisecond}}})
			took, failed := each(func(i int) error {
				j := job(wait)
				j.ID = fmt.Sprint(i)
				res, err := r.Run(w.t.Context(), j, Hooks{})
				if err == nil && res.Outcome != broker.OutcomeUsable {
					err = errors.New(string(res.Outcome))
				}
				return err
			})
			p50 := took[jobs/2]
			t.Logf("%d of %d usable, %d in time, p50 %v", jobs-failed, jobs, inTime(took), p50)
			if failed != 0 || inTime(took) != jobs {
				t.Errorf("%d failed, %d in time", failed, inTime(took))
			}
			if p50 != 1000*time.Millisecond {
				t.Errorf("p50 %v, want 900 ms of patience and 100 ms of fallback", p50)
			}
		})
	})
}

// slotted is a backend that works on as many requests at once as sem holds and
// queues the rest. What it began it finishes, whoever has gone, as the
// article's does.
func slotted(sem chan struct{}, d time.Duration, text string) reply {
	return func(o *out, _ int) {
		select {
		case sem <- struct{}{}:
		case <-o.r.Context().Done():
			return
		}
		defer func() { <-sem }()
		time.Sleep(d)
		o.text(text)
		o.end("stop", 10, 5)
	}
}

// The third article's drills: 40 jobs at 10/s with 8 s each, a primary with two
// slots of 6 s, an attempt cap of 3 s, a fallback of 0.4 s.
//
// The article expects about two answers from the primary. With a cap of 3 s on
// a backend of 6 s there can be none: the right count is 0 and 40.
func TestDrills(t *testing.T) {
	type tally struct {
		outcomes map[broker.Outcome]int
		by       map[string]int
		longest  time.Duration
		answers  map[string]int
		fallback int // attempts at the fallback
		primary  int
	}
	// slots is a backend that works on n requests at once and queues the rest.
	type maker func() reply // called inside the bubble, to which its channel belongs
	slots := func(n int, d time.Duration, text string) maker {
		return func() reply { return slotted(make(chan struct{}, n), d, text) }
	}
	drill := func(t *testing.T, primary, fallback maker, p95Fallback time.Duration) (c tally) {
		c.outcomes, c.by, c.answers = map[broker.Outcome]int{}, map[string]int{}, map[string]int{}
		bubble(t, func(w *world) {
			r := w.runner(Config{
				Backends: []Backend{
					{Caller: w.client(w.backend("primary", primary())), P95: second},
					{Caller: w.client(w.backend("fallback", fallback())), P95: p95Fallback},
				},
				Cap: 3 * second,
			})
			l := newLedger(t)
			var mu sync.Mutex
			var wg sync.WaitGroup
			for i := range 40 {
				time.Sleep(100 * time.Millisecond)
				wg.Go(func() {
					j := job(8 * second)
					j.ID, j.FirstNumber = fmt.Sprint(i), i*10
					res, err := r.Run(w.t.Context(), j, l.hooks())
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					c.outcomes[res.Outcome]++
					if res.Outcome == broker.OutcomeUsable {
						c.by[res.Backend]++
						c.answers[j.ID]++
					}
					c.longest = max(c.longest, res.EndedAt)
				})
			}
			wg.Wait()
			l.check()
			c.primary, c.fallback = len(w.calls("primary")), len(w.calls("fallback"))
			// Let the primary finish what it had begun.
			time.Sleep(5 * time.Minute)
		})
		for id, n := range c.answers {
			if n > 1 {
				t.Errorf("job %s has %d recorded answers", id, n)
			}
		}
		t.Logf("outcomes %v, answers by %v, longest %v, calls: primary %d, fallback %d", c.outcomes, c.by, c.longest, c.primary, c.fallback)
		return c
	}

	t.Run("baseline", func(t *testing.T) {
		c := drill(t, slots(2, 6*second, "primary"), slots(40, 400*time.Millisecond, "fallback"), 500*time.Millisecond)
		if c.outcomes[broker.OutcomeUsable] != 40 || c.by["primary"] != 0 || c.by["fallback"] != 40 {
			t.Errorf("expected 0 answers from the primary, 40 from the fallback, none shed")
		}
		if c.longest > 3400*time.Millisecond {
			t.Errorf("longest %v", c.longest)
		}
	})
	t.Run("both slow", func(t *testing.T) {
		c := drill(t, slots(2, 6*second, "primary"), slots(40, 7*second, "fallback"), 500*time.Millisecond)
		if c.longest > 8100*time.Millisecond {
			t.Errorf("a job took %v: its deadline is decoration", c.longest)
		}
		if c.outcomes[broker.OutcomeUsable]+c.outcomes[broker.OutcomeLate]+c.outcomes[broker.OutcomeExpired]+c.outcomes[broker.OutcomeFailed] != 40 {
			t.Error(c.outcomes)
		}
	})
	t.Run("primary hangs", func(t *testing.T) {
		c := drill(t, slots(40, 30*second, "primary"), slots(40, 400*time.Millisecond, "fallback"), 500*time.Millisecond)
		if c.by["fallback"] != 40 {
			t.Errorf("the share did not fire")
		}
		if c.longest > 3400*time.Millisecond {
			t.Errorf("longest %v", c.longest)
		}
	})
}

// Three silent backends and 8 s: the job ends with its deadline.
func TestAllSilent(t *testing.T) {
	bubble(t, func(w *world) {
		var bs []Backend
		for _, name := range []string{"a", "b", "c"} {
			bs = append(bs, Backend{Caller: w.client(w.backend(name, silent)), P95: 200 * time.Millisecond, Price: fixed(backend.Price{InputMicroPerMTok: 1_000_000})})
		}
		l := newLedger(t)
		res, err := w.runner(Config{Backends: bs}).Run(w.t.Context(), job(8*second), l.hooks())
		if err != nil || res.Outcome != broker.OutcomeLate {
			t.Fatalf("%+v, %v", res, err)
		}
		if res.EndedAt < 8*second || res.EndedAt > 8*second+100*time.Millisecond {
			t.Errorf("ended at %v", res.EndedAt)
		}
		l.check()
		if len(l.settled) != 3 {
			t.Fatalf("%d spend rows", len(l.settled))
		}
		// 60 % of 8 s, 60 % of the 3.2 s left, and the 1.28 s after that.
		for i, want := range []time.Duration{4800 * time.Millisecond, 1920 * time.Millisecond, 1280 * time.Millisecond} {
			a := l.settled[i]
			if a.Hold.Round(time.Millisecond) != want || !a.Censored || a.FirstByte != a.Hold {
				t.Errorf("attempt %d held %v (first byte %v, censored %v), want %v", i, a.Hold, a.FirstByte, a.Censored, want)
			}
			if a.Usage.Known != broker.KnownUnknown || a.CostMicro() <= 0 {
				t.Errorf("attempt %d: usage %+v, cost %d", i, a.Usage, a.CostMicro())
			}
		}
	})
}
