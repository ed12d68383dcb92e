//go:build server && accept

package dashboards

import (
	"testing"
	"time"
)

// TestAcceptNightPredictive plays the same night under the predictive gate,
// which promises only what it can keep: the page does not fire.
func TestAcceptNightPredictive(t *testing.T) {
	n := begin(t, "predictive")
	n.Paid.Fault("down")
	worst, until := 0.0, time.Now().Add(45*time.Second)
	n.wait(time.Minute, "45 s of it without the page", func() error {
		alerts, err := n.Alerts()
		if err != nil {
			t.Fatal(err)
		}
		if alerts[page].State == "firing" {
			misses, _ := n.now(`leeway:misses:rate5m`)
			t.Fatalf("the page fires at %v misses a second", misses)
		}
		misses, _ := n.now(`leeway:misses:rate5m`)
		worst = max(worst, misses)
		if left := time.Until(until); left > 0 {
			return notYetError(left)
		}
		return nil
	})
	rejects, _ := n.now(`sum(rate(job_decision_total{path="reject"}[10s]))`)
	t.Logf("at most %.2f misses a second; rejects at the end: %.1f a second", worst, rejects)
}

// notYetError is how long is left.
type notYetError time.Duration

func (e notYetError) Error() string { return time.Duration(e).String() + " left" }
