package slackgate

import (
	"math"
	"slices"
)

// Demand is how fast one producer submits to a pool, in jobs a millisecond:
// those it took and those it refused.
type Demand float64

// within is how many jobs a producer is expected to want within ms, with what
// it may want at once on top: twice what such a number strays by, and one.
func (d Demand) within(ms float64) float64 {
	n := max(float64(d), 0) * ms
	return n + 2*math.Sqrt(n) + 1
}

// Shares says, for each rung of a ladder, how many unfinished jobs due before
// its mark a single producer may have: the max-min fair level. Of what the pool
// can promise by the mark, each gets what it wants up to the level, and what
// others leave is shared among those who want more. nil where fewer than two
// producers are active: then nobody is held back.
type Shares []int64

// Shares works out the level of each rung for producers with these demands.
func (l *Ladder) Shares(demands []Demand) Shares {
	if len(demands) < 2 || len(l.rungs) == 0 {
		return nil
	}
	out := make(Shares, len(l.rungs))
	wants := make([]float64, len(demands))
	at, least := float64(0), int64(0)
	for i, r := range l.rungs {
		if r.WithinMS != Unbounded { // the last counts every job: its mark is the one before
			at = float64(r.WithinMS)
		}
		for n, d := range demands {
			wants[n] = d.within(at)
		}
		least = max(least, level(float64(r.Max), wants))
		out[i] = least
	}
	return out
}

// level shares room among wants, which it sorts, and returns the most that one
// of them gets; Unbounded where there is room for all. At least 1, and rounded
// up: a place that nobody may take helps nobody.
func level(room float64, wants []float64) int64 {
	slices.Sort(wants)
	for i, w := range wants {
		fair := room / float64(len(wants)-i)
		if w > fair {
			return max(1, int64(math.Ceil(fair)))
		}
		room -= w
	}
	return Unbounded
}

// Check returns the first rung, from first (counted from 0) on, on which a
// producer would have more than its share with one job more. before counts its
// unfinished jobs that are due before a mark; with [Unbounded] all of them. The
// store's script makes the same comparisons.
func (s Shares) Check(l *Ladder, first int, before func(atMS int64) int64) Break {
	all := before(Unbounded)
	for i := first; i < len(s); i++ {
		if all+1 <= s[i] {
			return Break{} // later levels are no lower
		}
		if n := before(l.rungs[i].WithinMS); n+1 > s[i] {
			return Break{Rung: i + 1, Waiting: n}
		}
	}
	return Break{}
}
