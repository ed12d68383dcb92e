//go:build bench

package bench

import (
	"context"
	"fmt"
	"testing"
)

// durability: what an admission costs when each write is on disk before it is
// acknowledged, against a disk that is up to a second behind.
func durability(t *testing.T, r *Report) {
	g := newGate(t, 1000, 10)
	under := func(policy string, callers int) func() float64 {
		return func() float64 {
			must(t, g.rdb.ConfigSet(context.Background(), "appendfsync", policy).Err())
			return rate(t, callers, func(ctx context.Context, _ int) (int, error) { return g.submit(ctx, longDeadline, true) })
		}
	}
	for _, callers := range []int{1, 16, 128} {
		r.Measures = append(r.Measures, g.turns(fmt.Sprintf("admission, appendfsync always / everysec, %d callers", callers),
			under("everysec", callers), under("always", callers)))
	}
}
