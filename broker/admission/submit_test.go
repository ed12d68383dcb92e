package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/coalesce"
	"leeway/broker/store/storetest"
	"leeway/slackgate"
)

// offers has n jobs offered and waits until nothing more comes of it.
func (b *bench) offers(name string, n int) []Offered {
	out := make([]Offered, n)
	for i := range out {
		out[i] = b.Offer(b.ctx, b.job(fmt.Sprintf("%s%03d", name, i), 15_000))
	}
	synctest.Wait()
	return out
}

// paused makes calls to the store wait; what it returns lets them all go.
func (b *bench) paused() (release func()) {
	pause := make(chan struct{})
	b.watched.mu.Lock()
	defer b.watched.mu.Unlock()
	b.watched.pause = pause
	return func() {
		b.watched.mu.Lock()
		if b.watched.pause == pause {
			b.watched.pause = nil
		}
		b.watched.mu.Unlock()
		close(pause)
	}
}

// A second call follows one that is away once it is as large. Whatever else
// comes shares the next, in the order in which it came.
func TestConcurrentSubmissionsShareACall(t *testing.T) {
	inBubble(t, slackgate.Seed, func(b *bench) {
		release := b.paused()
		away := append(b.offers("a", 1), b.offers("b", 1)...)
		offered := b.offers("j", 200)
		if n := len(b.calls()); n != coalesce.MostInFlight {
			t.Errorf("%d calls are away", n)
		}
		release()
		admitted, refused := 0, false
		for i, o := range append(away, offered...) {
			v, err := o.Wait(b.ctx)
			if err != nil {
				t.Fatal(err)
			}
			if v.Admitted() {
				admitted++
			}
			// Of those that went one call after the other the limit goes to who came first.
			if refused = refused || i >= len(away) && !v.Admitted(); refused && v.Admitted() {
				t.Errorf("submission %d: %s", i, v.Reason)
			}
		}
		calls := b.calls()
		if len(calls) != 4 || len(calls[2]) != maxJobs || len(calls[3]) != 200-maxJobs {
			t.Errorf("%d calls for 202 submissions", len(calls))
		}
		n := 0
		for _, ids := range calls[2:] {
			for _, id := range ids {
				if want := fmt.Sprintf("j%03d", n); id != want {
					t.Fatalf("%s in the place of %s", id, want)
				}
				n++
			}
		}
		if len(b.seen.verdicts) != 202 || admitted != 8 {
			t.Errorf("%d decisions observed, %d admitted", len(b.seen.verdicts), admitted)
		}
		// One for each slot that is free. They are written beside the verdicts.
		synctest.Wait()
		if p, err := b.Tickets.Pending(b.ctx, slackgate.Paid); p != 8 || err != nil {
			t.Errorf("%d tickets, %v", p, err)
		}
	})
}

// A state that takes longer to read than it stands for is read once for a call,
// as slow as that may be.
func TestSlowStateIsReadOnce(t *testing.T) {
	inBubble(t, slackgate.Predictive, func(b *bench) {
		b.watched.delay = TrustFor + 10*time.Millisecond
		if v, err := b.Submit(b.ctx, b.job("j", 15_000)); err != nil || !v.Admitted() {
			t.Errorf("%+v, %v", v, err)
		}
		if b.watched.states != 1 {
			t.Errorf("%d reads of the state", b.watched.states)
		}
	})
}

// Lines of batches are decided in their order: a call with some is not sent before
// another with some is back, and not at all if the store did not decide that.
func TestLinesGoOneCallAfterTheOther(t *testing.T) {
	inBubble(t, slackgate.Seed, func(b *bench) {
		line := func(name string) Offered {
			j := b.job(name, 15_000)
			j.Place = broker.BatchPlace{Batch: "b", Line: name}
			o := b.Offer(b.ctx, j)
			synctest.Wait()
			return o
		}
		release := b.paused()
		offered := []Offered{line("1"), line("2"), line("3")}
		if n := len(b.calls()); n != 1 {
			t.Errorf("%d calls away", n)
		}
		time.Sleep(4 * coalesce.LateAfter)
		due := int64(0)
		release()
		for i, o := range offered {
			v, err := o.Wait(b.ctx)
			if err != nil || !v.Admitted() {
				t.Errorf("%+v, %v", v, err)
			}
			if i == 0 {
				due = v.DeadlineAtMS
			} else if v.DeadlineAtMS != due {
				t.Errorf("waiting for its turn has given line %d %d ms more", i+1, v.DeadlineAtMS-due)
			}
		}
		release = b.paused()
		offered = append([]Offered{line("4")}, b.offers("no line", 1)...)
		if n := len(b.calls()); n != 5 {
			t.Errorf("%d calls: what is no line waits for one", n)
		}
		release()
		for _, o := range offered {
			if _, err := o.Wait(b.ctx); err != nil {
				t.Error(err)
			}
		}
		release = b.paused()
		b.watched.err = fmt.Errorf("%w: away", broker.ErrUnavailable)
		offered = []Offered{line("5"), line("6"), line("7")}
		release()
		for _, o := range offered {
			if _, err := o.Wait(b.ctx); !errors.Is(err, broker.ErrUnavailable) {
				t.Error(err)
			}
		}
		if calls := b.calls(); len(calls) != 6 || calls[5][0] != "5" {
			t.Errorf("calls %v: some followed one that failed", calls[5:])
		}
	})
}

func TestLargeTextsBoundACall(t *testing.T) {
	inBubble(t, slackgate.Seed, func(b *bench) {
		pause := make(chan struct{})
		b.watched.pause = pause
		offered := []Offered{b.Offer(b.ctx, b.job("first", 15_000))}
		synctest.Wait()
		text := string(make([]byte, 1<<20))
		for i := range 20 {
			j := b.job(fmt.Sprint(i), 1000) // no slack: nothing is stored
			j.Text = text
			offered = append(offered, b.Offer(b.ctx, j))
		}
		b.watched.mu.Lock()
		b.watched.pause = nil
		b.watched.mu.Unlock()
		close(pause)
		for _, o := range offered {
			_, _ = o.Wait(b.ctx)
		}
		for _, ids := range b.calls() {
			if len(ids) > maxBytes>>20 {
				t.Errorf("%d MiB in a call", len(ids))
			}
		}
	})
}

// With a store that does not answer everybody is told within the time of one
// call, whenever they come.
func TestStoreStandsStill(t *testing.T) {
	const within = 250 * time.Millisecond
	for _, rule := range []slackgate.Rule{slackgate.Seed, slackgate.Predictive} {
		inBubble(t, rule, func(b *bench) {
			b.watched.err, b.watched.slow = fmt.Errorf("%w: away", broker.ErrUnavailable), within
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					asked := time.Now()
					if _, err := b.Submit(b.ctx, b.job(fmt.Sprint("j", i), 15_000)); !errors.Is(err, broker.ErrUnavailable) {
						t.Errorf("%v", err)
					}
					if took := time.Since(asked); took > within {
						t.Errorf("job %d was told after %v", i, took)
					}
				})
				time.Sleep(7 * time.Millisecond)
			}
			wg.Wait()
		})
	}
}

// A panic in Run, or its end, must not leave submitters waiting for ever.
func TestNobodyHangsWhenRunIsOver(t *testing.T) {
	inBubble(t, slackgate.Seed, func(b *bench) {
		b.stop()
		for range 2 * maxQueue { // more than the queue takes
			v, err := b.Submit(context.Background(), b.job("j", 15_000))
			if !errors.Is(err, broker.ErrUnavailable) || v.Reason != slackgate.ReasonGateUnavailable {
				t.Fatalf("%+v, %v", v, err)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		a := New(Options{
			Store: &watched{Store: storetest.New(nil, storetest.Options{Prefix: "t"})}, Observer: &seen{}, Log: slog.New(slog.DiscardHandler),
			Settings: func() Settings { panic("boom") },
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			_ = a.Run(context.Background())
		})
		for range 3 {
			v, err := a.Submit(context.Background(), &broker.Submission{Spec: broker.Spec{ID: "j"}, DeadlineInMS: 1000, ReceivedAt: time.Now()})
			if !errors.Is(err, broker.ErrUnavailable) || v.Reason != slackgate.ReasonGateUnavailable {
				t.Errorf("%+v, %v", v, err)
			}
		}
		wg.Wait()
	})
}

// What is queued when Run is told to stop is still decided; a submitter that
// has gone does not break its promise.
func TestStopDecidesWhatIsQueued(t *testing.T) {
	inBubble(t, slackgate.Seed, func(b *bench) {
		pause := make(chan struct{})
		b.watched.pause = pause
		ctx, cancel := context.WithCancel(b.ctx)
		offered := []Offered{b.Offer(ctx, b.job("a", 15_000))}
		synctest.Wait()
		offered = append(offered, b.Offer(ctx, b.job("b", 15_000)))
		cancel()
		stopped := make(chan struct{})
		go func() { b.stop(); close(stopped) }()
		synctest.Wait()
		close(pause)
		for _, o := range offered {
			if v, err := o.Wait(ctx); err != nil || !v.Admitted() {
				t.Errorf("%+v, %v", v, err)
			}
		}
		<-stopped
		if p, err := b.Tickets.Pending(context.Background(), slackgate.Paid); p != 2 || err != nil {
			t.Errorf("%d tickets, %v: those who had gone broke their promises", p, err)
		}
	})
}
