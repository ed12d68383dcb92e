package admission

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/flag"
	"leeway/slackgate"
)

// flood fills the paid pool for jobs with so much time, and has the store
// refuse so many that the next are refused without asking.
func (b *bench) flood(deadlineMS int64) {
	b.t.Helper()
	refused := 0
	for n := 0; refused < FloodAt; n++ {
		v, err := b.Submit(b.ctx, b.job(fmt.Sprintf("fill%d", n), deadlineMS))
		switch {
		case err != nil || n > 1000:
			b.t.Fatal(n, err)
		case !v.Admitted():
			refused++
		}
	}
}

// asks reports whether a job's submission calls the store, and its verdict.
func (b *bench) asks(j *broker.Submission) (bool, broker.Verdict) {
	b.t.Helper()
	before := len(b.calls())
	v, err := b.Submit(b.ctx, j)
	if err != nil {
		b.t.Fatal(err)
	}
	return len(b.calls()) > before, v
}

func TestFloodIsRefusedWithoutAsking(t *testing.T) {
	inBubble(t, slackgate.Predictive, func(b *bench) {
		b.flood(15_000)
		asked, v := b.asks(b.job("like", 15_000))
		if asked || v.Reason != slackgate.ReasonNoSlack || v.SlackMS != 13_000 || v.RetryAfterMS <= 0 || v.NowMS == 0 || v.DeadlineAtMS != v.NowMS+15_000 {
			t.Errorf("asked %v, %+v", asked, v)
		}
		if got := b.seen.verdicts[len(b.seen.verdicts)-1]; got.JobID != "like" || got.Reason != slackgate.ReasonNoSlack {
			t.Errorf("observed %+v", got)
		}
		if asked, v := b.asks(b.job("less slack", 9_000)); asked || v.Admitted() || v.SlackMS != 7_000 {
			t.Errorf("less slack: asked %v, %+v", asked, v)
		}
		// The first place behind those that wait needs 14 s; this one has 13.9.
		if asked, v := b.asks(b.job("a little more", 15_900)); asked || v.Admitted() || v.SlackMS != 13_900 {
			t.Errorf("a little more slack: asked %v, %+v", asked, v)
		}
		// What the store has to know of goes there.
		for name, change := range map[string]func(j *broker.Submission){
			"more slack":    func(j *broker.Submission) { j.DeadlineInMS += 2_000 },
			"a key":         func(j *broker.Submission) { j.Key = broker.IdempotencyKey{Value: "k", BodyHash: "h"} },
			"another class": func(j *broker.Submission) { j.Class = "d" },
			"other pools":   func(j *broker.Submission) { j.Prefer = [2]slackgate.Path{slackgate.Paid, slackgate.Free} },
			"no slack left": func(j *broker.Submission) { j.DeadlineInMS = 1_000 },
		} {
			j := b.job(name, 15_000)
			change(j)
			if asked, _ := b.asks(j); !asked {
				t.Errorf("%s: the store was not asked", name)
			}
		}
		time.Sleep(FreshFor)
		if asked, _ := b.asks(b.job("later", 15_000)); !asked {
			t.Error("the store was not asked again")
		}
	})
}

// Where few are refused, asking costs nothing and every job is asked for.
func TestFewRefusalsAreAllAskedFor(t *testing.T) {
	inBubble(t, slackgate.Predictive, func(b *bench) {
		b.flood(15_000)
		for n := range 3 * FloodAt {
			time.Sleep(FreshFor / 8)
			if n < FloodAt {
				_, _ = b.asks(b.job(fmt.Sprintf("settle%d", n), 15_000)) // the flood fades from the count
			} else if asked, v := b.asks(b.job(fmt.Sprintf("few%d", n), 15_000)); !asked || v.Admitted() {
				t.Fatalf("job %d: asked %v, %+v", n, asked, v)
			}
		}
	})
}

// What is refused without asking is told with the next call, none twice and
// none never.
func TestRefusalsAreToldLater(t *testing.T) {
	inBubble(t, slackgate.Predictive, func(b *bench) {
		ctx, stop := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { _ = b.Refresh(ctx) })
		b.flood(15_000)
		const n = 500
		quiet := 0
		for i := range n {
			j := b.job(fmt.Sprintf("j%d", i), 15_000)
			j.Producer = fmt.Sprintf("p%d", i%2)
			if asked, v := b.asks(j); v.Admitted() {
				t.Fatalf("%+v", v)
			} else if !asked {
				quiet++
			}
		}
		time.Sleep(RefreshEvery + time.Millisecond)
		stop()
		wg.Wait()
		if b.anyUntold() {
			t.Error("some are untold")
		}
		if quiet < n*9/10 {
			t.Errorf("%d of %d without asking", quiet, n)
		}
		// Whether told late or at once, each is a submission of its producer.
		// No time passes but for the refresh, so that hardly any has faded.
		got, err := b.store.State(context.Background(), b.settings().Pools)
		if err != nil {
			t.Fatal(err)
		}
		var sum float64
		for _, d := range got.Demands[slackgate.Paid] {
			sum += float64(d)
		}
		// Demands are per millisecond over at least a second.
		if jobs := sum * 1000; jobs < n*0.95 {
			t.Errorf("demand of %.0f jobs; %d were refused", jobs, n)
		}
	})
}

// Counts that a call carried go with the next where the store has said that it
// did nothing, and with none where it may have taken them.
func TestRefusalsOfACallThatFailed(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		stale bool
		again bool
	}{
		"full":          {err: &broker.StoreError{Trouble: broker.TroubleFull, Err: errors.New("OOM")}, again: true},
		"read-only":     {err: &broker.StoreError{Trouble: broker.TroubleReadOnly, Err: errors.New("READONLY")}, again: true},
		"too late":      {stale: true, again: true},
		"no answer":     {err: &broker.StoreError{Trouble: broker.TroubleNoAnswer, Err: context.DeadlineExceeded}},
		"no connection": {err: &broker.StoreError{Trouble: broker.TroubleNoConnection, Err: io.EOF}},
	} {
		inBubble(t, slackgate.Predictive, func(b *bench) {
			b.flood(15_000)
			const quiet = 40
			for i := range quiet {
				if asked, _ := b.asks(b.job(fmt.Sprintf("q%d", i), 15_000)); asked {
					t.Fatalf("%s: the store was asked for job %d", name, i)
				}
			}
			b.watched.mu.Lock()
			b.watched.failAdmit = c.err
			b.watched.stale = c.stale
			b.watched.mu.Unlock()
			asked := b.job("asked", 15_000)
			asked.Class = "d"
			if _, err := b.Submit(b.ctx, asked); !errors.Is(err, broker.ErrUnavailable) {
				t.Fatalf("%s: %v", name, err)
			}
			if b.anyUntold() != c.again {
				t.Errorf("%s: counts are kept: %t, want %t", name, !c.again, c.again)
			}
			b.watched.mu.Lock()
			b.watched.failAdmit, b.watched.stale = nil, false
			b.watched.mu.Unlock()
			if _, err := b.Submit(b.ctx, b.job("next", 15_000)); err != nil || b.anyUntold() {
				t.Fatalf("%s: %v, untold %t", name, err, b.anyUntold())
			}
			told := 0
			for _, n := range b.watched.told {
				told += int(n)
			}
			if want := map[bool]int{true: quiet}[c.again]; told != want {
				t.Errorf("%s: the next call told of %d refusals, want %d", name, told, want)
			}
		})
	}
}

// A flag that another replica closes holds for the next decision, in a flood
// too; one that it opens may lag by FreshFor, and no more.
func TestFlagsInAFlood(t *testing.T) {
	inBubble(t, slackgate.Predictive, func(b *bench) {
		set := func(value string) {
			t.Helper()
			if err := b.store.SetFlag(b.ctx, flag.AdmitPaid, "", value, "somebody", "a test", 0); err != nil {
				t.Fatal(err)
			}
		}
		set("0")
		b.flood(15_000)
		set("1")
		if asked, v := b.asks(b.job("lags", 15_000)); asked || v.Reason != slackgate.ReasonClosed {
			t.Errorf("asked %v, %+v", asked, v)
		}
		time.Sleep(FreshFor)
		if asked, v := b.asks(b.job("open", 15_000)); !asked || !v.Admitted() {
			t.Errorf("asked %v, %+v", asked, v)
		}
		set("0")
		if asked, v := b.asks(b.job("closed", 15_000)); !asked || v.Reason != slackgate.ReasonClosed {
			t.Errorf("asked %v, %+v", asked, v)
		}
	})
}

// With the store away nobody is refused on its behalf for longer than its last
// answer stands, and then told that the gate cannot know.
func TestFloodWithTheStoreAway(t *testing.T) {
	inBubble(t, slackgate.Predictive, func(b *bench) {
		b.flood(15_000)
		b.watched.mu.Lock()
		b.watched.err = broker.ErrUnavailable
		b.watched.mu.Unlock()
		time.Sleep(FreshFor)
		for n := range 3 {
			if _, err := b.Submit(b.ctx, b.job(fmt.Sprintf("j%d", n), 15_000)); err == nil {
				t.Fatal("a verdict without the store")
			}
		}
	})
}

// served floods a pool of eight slots at 1,000 a second for three seconds, whose
// jobs take a quarter of one, and counts what was admitted and how often the store was
// asked.
func served(t *testing.T, ask bool) (admitted, calls int) {
	inBubble(t, slackgate.Predictive, func(b *bench) {
		ctx, stop := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { _ = b.Refresh(ctx) })
		for range 8 {
			wg.Go(func() {
				for ctx.Err() == nil {
					c, _, err := b.store.Claim(ctx, slackgate.Paid, 8, time.Minute)
					if err != nil || c == nil {
						time.Sleep(5 * time.Millisecond)
						continue
					}
					time.Sleep(245 * time.Millisecond)
					_, _ = b.store.Finish(context.Background(), c, &broker.Finish{Outcome: broker.OutcomeUsable, Answer: "x"})
				}
			})
		}
		for n := range 3_000 {
			if ask {
				b.forget()
			}
			v, err := b.Submit(b.ctx, b.job(fmt.Sprintf("j%d", n), 6_000))
			if err != nil {
				t.Fatal(err)
			}
			if v.Admitted() {
				admitted++
			}
			time.Sleep(time.Millisecond)
		}
		stop()
		wg.Wait()
		calls = len(b.calls())
	})
	return admitted, calls
}

// A place that comes free is taken within FreshFor: hardly a job less is
// admitted than if the store were asked for each.
func TestFalseRefusalsAreFew(t *testing.T) {
	always, all := served(t, true)
	fresh, some := served(t, false)
	t.Logf("admitted %d with %d calls to the store, %d with %d", always, all, fresh, some)
	if fresh < always*95/100 {
		t.Errorf("%d admitted, %d when each is asked for", fresh, always)
	}
	if some*5 > all {
		t.Errorf("%d calls to the store; %d when each is asked for", some, all)
	}
}
