package slackgate

import "testing"

func TestPart(t *testing.T) {
	t.Parallel()
	for total := range 20 {
		for n := 1; n < 8; n++ {
			sum, least, most := 0, total, 0
			for shard := range n {
				part := Part(total, shard, n)
				sum, least, most = sum+part, min(least, part), max(most, part)
			}
			if sum != total || most-least > 1 {
				t.Errorf("%d over %d: sum %d, %d to %d", total, n, sum, least, most)
			}
		}
	}
}
