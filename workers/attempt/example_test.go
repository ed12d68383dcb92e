package attempt_test

import (
	"fmt"
	"time"

	"leeway/workers/attempt"
)

// Ten seconds are left for the first byte. The first backend may spend six of
// them, because the second needs at most one; once the first has been silent
// for that long, the second has the four that are left to itself.
func ExampleNext() {
	p95 := []time.Duration{500 * time.Millisecond, time.Second}
	first := attempt.Next(attempt.PlanInput{Slack: 10 * time.Second, Share: attempt.DefaultShare, P95: p95})
	second := attempt.Next(attempt.PlanInput{Slack: 4 * time.Second, Share: attempt.DefaultShare, P95: p95[1:]})
	fmt.Println(first.FirstByte, first.Last)
	fmt.Println(second.FirstByte, second.Last)
	// Output:
	// 6s false
	// 4s true
}
