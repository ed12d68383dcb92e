// Package knee measures how many calls at once a backend takes before it gets
// no faster, and finds that number by a rule.
//
// [Find] is the rule and is pure. A [Runner] makes the measurements it is given.
// Loads are numbers of calls in flight; throughput is output tokens per second
// over all of them; times are milliseconds.
package knee

import (
	"fmt"
	"math"
)

// The rule's numbers, for one doubling of the load.
const (
	// MaxClimb is the growth of the first byte's p95 beyond which it climbs.
	// With no throughput to gain it doubles.
	MaxClimb = 1.75
	// MinGain is the least gain in throughput that is worth a doubling.
	MinGain = 0.10
	// MaxFailed is the largest share of calls that may fail at a load that
	// stands.
	MaxFailed = 0.01
)

// Spread is a measured value over repeats: the median, and the least and the
// greatest.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// Step is one load and what was measured at it.
type Step struct {
	// Concurrent is the load: calls in flight. Rising from step to step.
	Concurrent int `json:"concurrent"`
	// TokensPerS is the throughput.
	TokensPerS Spread `json:"tokens_per_s"`
	// FirstByteP95MS is the 95th percentile of the first byte, counted from
	// when a call should have been sent; a median of 0: not known.
	FirstByteP95MS Spread `json:"first_byte_p95_ms"`
	// FailedShare is the share of calls without a whole answer.
	FailedShare float64 `json:"failed_share"`
}

// Change is a step beside the one before it, for one doubling of the load.
type Change struct {
	// Gain is the relative gain in throughput: 0.1 is 10 %.
	Gain float64
	// Climb is the growth of the first byte's p95: 2 is twice; 0: not known.
	Climb float64
	// InNoise is set when the repeats of the two steps overlap in their p95, so
	// that a climb is no more than the noise.
	InNoise bool
	// Beyond says why the step is beyond the knee; empty: it stands.
	Beyond string
}

// Result is what the rule says of a measurement.
type Result struct {
	// Limit is the load of the knee.
	Limit int
	// Reached is unset when every load stands: the knee is Limit or more, and
	// higher loads would have to be measured.
	Reached bool
	// Changes are the steps' from the second on; Changes[i] belongs to
	// steps[i+1].
	Changes []Change
}

// Find applies the rule: the knee is the last load before the first that does
// not stand. A load does not stand when, for each doubling of the load since the
// one before, the p95 of the first byte grows by more than MaxClimb and by more
// than the spread of the repeats, or the throughput gains less than MinGain; or
// when more than MaxFailed of its calls fail. Where the p95 is not known the
// gain decides alone.
//
// There must be at least two steps, of rising loads and with throughput.
func Find(steps []Step) (Result, error) {
	if len(steps) < 2 {
		return Result{}, fmt.Errorf("knee: %d loads were measured; it takes two", len(steps))
	}
	for i := range steps {
		switch s := &steps[i]; {
		case s.Concurrent < 1 || i > 0 && s.Concurrent <= steps[i-1].Concurrent:
			return Result{}, fmt.Errorf("knee: load %d is out of order", s.Concurrent)
		case !(s.TokensPerS.Median > 0) && s.FailedShare <= MaxFailed:
			return Result{}, fmt.Errorf("knee: no throughput at load %d", s.Concurrent)
		}
	}
	if steps[0].FailedShare > MaxFailed {
		return Result{}, fmt.Errorf("knee: %.0f %% of the calls fail at load %d: there is nothing to measure", 100*steps[0].FailedShare, steps[0].Concurrent)
	}
	r := Result{}
	for i := 1; i < len(steps); i++ {
		c := compare(&steps[i-1], &steps[i])
		r.Changes = append(r.Changes, c)
		if c.Beyond != "" && !r.Reached {
			r.Limit, r.Reached = steps[i-1].Concurrent, true
		}
	}
	if !r.Reached {
		r.Limit = steps[len(steps)-1].Concurrent
	}
	return r, nil
}

// compare puts a step beside the one before it.
func compare(a, b *Step) Change {
	doublings := math.Log2(float64(b.Concurrent) / float64(a.Concurrent))
	per := func(ratio float64) float64 { return math.Pow(ratio, 1/doublings) }
	var c Change
	if a.TokensPerS.Median > 0 { // else it failed, and so did the rest
		c.Gain = per(b.TokensPerS.Median/a.TokensPerS.Median) - 1
	}
	if a.FirstByteP95MS.Median > 0 && b.FirstByteP95MS.Median > 0 {
		c.Climb = per(b.FirstByteP95MS.Median / a.FirstByteP95MS.Median)
		c.InNoise = b.FirstByteP95MS.Low <= a.FirstByteP95MS.High
	}
	switch {
	case b.FailedShare > MaxFailed:
		c.Beyond = fmt.Sprintf("%.0f %% of the calls fail", 100*b.FailedShare)
	case c.Climb > MaxClimb && !c.InNoise:
		c.Beyond = fmt.Sprintf("p95 grows %.1f times a doubling", c.Climb)
	case c.Gain < MinGain:
		c.Beyond = fmt.Sprintf("throughput gains %.0f %% a doubling", 100*c.Gain)
	}
	return c
}
