//go:build server && accept

package e2e_test

import (
	"fmt"
	"testing"
	"time"
)

// TestAcceptNightPredictive plays the same night under the predictive gate,
// which promises only what it can keep: the page does not fire, with the
// re-check behind the gate or without.
func TestAcceptNightPredictive(t *testing.T) {
	for _, off := range []bool{false, true} {
		t.Run(fmt.Sprintf("recheck_off=%v", off), func(t *testing.T) {
			n := begin(t, "predictive", off)
			broken := time.Now()
			n.batch()
			worst, oldest, until := 0.0, 0.0, broken.Add(60*time.Second)
			n.wait(2*time.Minute, "60 s of it without the page", func() error {
				alerts, err := n.alerts()
				if err != nil {
					t.Fatal(err)
				}
				if alerts[pagingAlert].State == "firing" {
					misses, _ := n.now(`leeway:misses:rate5m`)
					t.Fatalf("the page fires at %v misses a second", misses)
				}
				misses, _ := n.now(`leeway:misses:rate5m`)
				_, age, _ := n.pager(broken)
				worst, oldest = max(worst, misses), max(oldest, age)
				if left := time.Until(until); left > 0 {
					return notYetError(left)
				}
				return nil
			})
			p99, _, jobs := n.pager(broken)
			rejects, _ := n.now(`sum(rate(job_decision_total{path="reject"}[10s]))`)
			misses, _ := n.now(`sum(max by (path) (increase(job_deadline_miss_total{path=~"paid|free"}[90s])))`)
			t.Logf("p99 of %d jobs %s, oldest queue age on free %s; at most %.2f misses a second, %.0f in all; rejects at the end: %.1f a second",
				jobs, article(p99), article(oldest), worst, misses, rejects)
			// Without the re-check, what paid had in hand when it went waits for it.
			if !off && p99 > deadlineMS/jobsFaster*1.1 {
				t.Errorf("p99 %s", article(p99))
			}
		})
	}
}

// notYetError is how long is left.
type notYetError time.Duration

func (e notYetError) Error() string { return time.Duration(e).String() + " left" }
