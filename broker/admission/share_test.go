package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"leeway/broker"
	"leeway/slackgate"
)

// flooded runs two paid workers at a second a job, so that a fair half is one
// job a second, for a steady producer at 0.8 jobs a second beside one that
// floods at every millisecond given (0: none). It counts what was admitted of
// each after one deadline.
func flooded(t *testing.T, every time.Duration) (steady, flood, refusedSteady int, reasons map[slackgate.Reason]int) {
	const warm, run = 15 * time.Second, 30 * time.Second
	reasons = map[slackgate.Reason]int{}
	inBubble(t, slackgate.Predictive, func(b *bench) {
		ctx, stop := context.WithCancel(context.Background())
		if err := b.store.Leave(ctx, broker.Worker{ID: "paid", Path: slackgate.Paid, Slots: 8}); err != nil {
			t.Fatal(err)
		}
		if err := b.store.Beat(ctx, broker.Worker{ID: "two", Path: slackgate.Paid, Slots: 2}, time.Hour); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = b.Refresh(ctx) })
		for range 2 {
			wg.Go(func() {
				for ctx.Err() == nil {
					c, _, err := b.store.Claim(ctx, slackgate.Paid, 2, time.Minute)
					if err != nil || c == nil {
						time.Sleep(20 * time.Millisecond)
						continue
					}
					time.Sleep(980 * time.Millisecond)
					_, _ = b.store.Finish(context.Background(), c, &broker.Finish{Outcome: broker.OutcomeUsable, Answer: "x"})
				}
			})
		}
		var mu sync.Mutex
		start := time.Now()
		submit := func(producer string, every time.Duration, in, out *int) {
			for n := 0; time.Since(start) < warm+run; n++ {
				j := b.job(fmt.Sprintf("%s%d", producer, n), 15_000)
				j.Producer = producer
				v, err := b.Submit(context.Background(), j)
				mu.Lock()
				switch {
				case err != nil:
					t.Error(err)
				case time.Since(start) < warm:
				case v.Admitted():
					*in++
				default:
					*out++
					reasons[v.Reason]++
				}
				mu.Unlock()
				time.Sleep(every)
			}
		}
		var others int
		wg.Go(func() { submit("steady", 1250*time.Millisecond, &steady, &refusedSteady) })
		if every > 0 {
			wg.Go(func() { submit("flood", every, &flood, &others) })
		}
		time.Sleep(warm + run + time.Second)
		stop()
		wg.Wait()
		if strings.Contains(b.log.String(), errDisagree.Error()) {
			t.Error(b.log.String())
		}
	})
	return steady, flood, refusedSteady, reasons
}

// A producer that floods at 50 times its share leaves another its own: what it
// is admitted is within a tenth of what it is alone. What it does not want goes
// to the one that floods.
func TestFloodStarvesNobody(t *testing.T) {
	alone, _, refused, _ := flooded(t, 0)
	beside, flood, refusedBeside, reasons := flooded(t, 20*time.Millisecond)
	t.Logf("alone %d admitted, %d refused; beside a flood %d admitted, %d refused; the flood %d; %v", alone, refused, beside, refusedBeside, flood, reasons)
	if alone == 0 || 10*beside < 9*alone {
		t.Errorf("%d admitted alone, %d beside a flood", alone, beside)
	}
	// Two jobs a second for half a minute, less what the steady one took.
	if total := beside + flood; total < 55 {
		t.Errorf("%d admitted in all: places lie idle", total)
	}
	if reasons[slackgate.ReasonShare] == 0 {
		t.Errorf("%v", reasons)
	}
}

// A producer alone is held back by nothing but the gate.
func TestAloneNothingChanges(t *testing.T) {
	inBubble(t, slackgate.Predictive, func(b *bench) {
		for n := range 300 {
			j := b.job(fmt.Sprintf("j%d", n), 15_000)
			j.Producer = "only"
			v, err := b.Submit(context.Background(), j)
			if err != nil || v.Reason == slackgate.ReasonShare {
				t.Fatalf("%+v, %v", v, err)
			}
			time.Sleep(10 * time.Millisecond)
			if n%50 == 0 {
				if _, err := b.refresh(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// Names that come once give way to one who comes again and again.
func TestNamesThatComeOnceGiveWay(t *testing.T) {
	inBubble(t, slackgate.Predictive, func(b *bench) {
		from := func(producer string, i int) {
			j := b.job(fmt.Sprintf("%s-%d", producer, i), 15_000)
			j.Producer = producer
			b.asks(j)
			time.Sleep(time.Millisecond)
		}
		for i := range 250 {
			from(fmt.Sprintf("once-%d", i), i)
		}
		for i := range 5 {
			from("works", i)
		}
		for i := range 250 {
			from(fmt.Sprintf("again-%d", i), i)
		}
		got, err := b.store.State(context.Background(), b.settings().Pools)
		if err != nil {
			t.Fatal(err)
		}
		// Demands are per millisecond over at least a second.
		if most := slices.Max(got.Demands[slackgate.Paid]); most*1000 < 3 {
			t.Errorf("of %d producers none is noted with more than %.1f jobs: one sent 5", len(got.Demands[slackgate.Paid]), most*1000)
		}
	})
}
