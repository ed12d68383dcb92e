package simulate

import (
	"fmt"
	"testing"
)

func TestScratch(t *testing.T) {
	mean := func(w Workload, s Service, p Policy, n int) {
		var u, l, d, rej, a, pc, w8 float64
		cls := map[int]float64{}
		off := map[int]float64{}
		for seed := range n {
			o := Run(w, s, p, uint64(seed+1))
			u += float64(o.Usable)
			l += float64(o.Late)
			d += float64(o.Dropped)
			rej += o.MeanRejectMS()
			a += float64(o.Admitted())
			pc += float64(o.PaidCalls)
			w8 += float64(o.WastedMS)
			for i, c := range o.Classes {
				cls[i] += float64(c.Usable) / float64(n)
				off[i] += float64(c.Offered) / float64(n)
			}
		}
		f := float64(n)
		fmt.Printf("%-28s %-22s %-20s usable %.1f late %.1f dropped %.1f admitted %.1f rejectms %.0f paid %.1f wasted %.0f  %v/%v\n", w.Name, s.Name, p.Name, u/f, l/f, d/f, a/f, rej/f, pc/f, w8/f, cls, off)
	}
	D := DeclaredWorkload()
	for _, p := range []Policy{PredictiveLearns} {
		mean(D, SlowedService(LognormalService(.5), 30000, 3), p, 100)
		mean(D, FixedService(0), p, 1)
		mean(D, FixedService(2800), p, 1)
		mean(D, LognormalService(.5), p, 100)
		mean(D, LognormalService(.8), p, 100)
	}
}
