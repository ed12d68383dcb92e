//go:build server

package redisstore

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"leeway/broker"
	"leeway/rehearsal/redistest"
	"leeway/slackgate"
)

// Two hundred submissions at once, through eight clients, against a budget for
// ten: ten are in, and when their producers take them back nothing is left.
func TestParallelSubmissionsAgainstABudgetOverRedis(t *testing.T) {
	const clients, each, cost = 8, 25, 15_000
	h := newHarness(t, redistest.Start(t).URL())
	h.live(1000, 0)
	for round := range 3 {
		var wg sync.WaitGroup
		var mu sync.Mutex
		var in []string
		var refused atomic.Int64
		for c := range clients {
			other := h.another()
			for i := range each {
				wg.Go(func() {
					id := fmt.Sprintf("r%d-c%d-%d", round, c, i)
					got, err := other.Admit(bg, openPools(), []broker.Offer{budgetedOffer(id, cost, 10*cost+cost-1)})
					if err != nil || got.Stale {
						t.Errorf("%+v, %v", got, err)
						return
					}
					b := got.Jobs[0].Budgets[slackgate.ProducerBudget]
					if fits := b.Admits(cost); fits != (got.Jobs[0].Path == slackgate.Paid) || b.ReservedMicro > 10*cost {
						t.Errorf("%s with %+v", got.Jobs[0].Path, b)
					}
					if got.Jobs[0].Path != slackgate.Paid {
						refused.Add(1)
						return
					}
					mu.Lock()
					in = append(in, id)
					mu.Unlock()
				})
			}
		}
		wg.Wait()
		if len(in) != 10 || refused.Load() != clients*each-10 {
			t.Fatalf("round %d: %d are in, %d were refused", round, len(in), refused.Load())
		}
		h.wantCharged("ten are in", 0, 10*cost)
		// Half is claimed first, and ends as cancelled when its worker says so.
		for range 5 {
			c, _, err := h.Claim(bg, slackgate.Paid, 1000, time.Minute)
			h.must(err)
			wg.Go(func() {
				_, err := h.another().CancelAll(bg, c.ID)
				h.must(err)
				h.must(h.Handback(bg, c))
			})
		}
		wg.Wait()
		for _, id := range in {
			wg.Go(func() {
				if _, err := h.another().CancelAll(bg, id); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		h.wantCharged("all taken back", 0, 0)
		if held, reserved := h.held(); len(held)+len(reserved) != 0 {
			t.Errorf("round %d: %v, %v", round, held, reserved)
		}
	}
}
