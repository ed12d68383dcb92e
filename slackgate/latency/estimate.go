package latency

import (
	"math"
	"slices"

	"leeway/slackgate"
)

const (
	// EnoughSamples is the number of calls below which the declared p95 is a
	// floor: of 59 calls the longest is beyond the true p95 with 95 %
	// confidence (0.95^59 = 4.9 %), of fewer it need not be.
	EnoughSamples = 59

	// AnsweredSince is how many calls must have ended since the last one that was
	// cut for those that were to count no more: of a backend that hangs, hardly
	// ever so many do.
	AnsweredSince = slackgate.ProbesToReopen

	// NotIdentifiedFactor is how much above the largest call seen the p95 is
	// taken to be when it is not identified.
	NotIdentifiedFactor = 1.2

	// SliceMS is the length of the slices in which recent calls are counted. A
	// change in the backends is found from a few calls when they stand in a
	// slice of their own.
	SliceMS = 5_000
)

// WindowsMS are the windows, narrowest first. A wider one is read when the
// narrower has too few samples.
var WindowsMS = [...]int64{60_000, 5 * 60_000, 15 * 60_000}

// priorWeight is how many samples the declared mean is worth while there are
// few.
const priorWeight = 4

// Slice is the calls that ended in one stretch of time.
type Slice struct {
	// AgeMS is how long ago the slice began; at least 0.
	AgeMS int64
	// Calls are the calls that ended in it.
	Calls *Histogram
}

// Estimate is what the measurements say about the next call.
type Estimate struct {
	slackgate.Dist
	// Samples is the number of calls that ended in the window.
	Samples int
	State   slackgate.State
	// WindowMS is the window read; 0 without samples.
	WindowMS int64
	// Change is the factor by which recent calls take longer than the window's
	// earlier ones did, 1 if there is no change: the earlier ones then count
	// as if they had taken that much longer.
	Change float64
}

// Belief is what two estimates, of first byte and hold, say against what is declared.
func Belief(declared *slackgate.Belief, firstByte, hold *Estimate) slackgate.Belief {
	b := slackgate.Belief{
		FirstByte: firstByte.Dist, Hold: hold.Dist, Samples: firstByte.Samples, State: firstByte.State,
		DeclaredFirstByteMS: declared.FirstByte.P95MS, DeclaredHoldMS: declared.Hold.P95MS,
	}
	// A slot is held past the first byte, whatever two samples of the two say.
	b.Hold.MeanMS, b.Hold.P95MS = max(b.Hold.MeanMS, b.FirstByte.MeanMS), max(b.Hold.P95MS, b.FirstByte.P95MS)
	if hold.State == slackgate.NotIdentified {
		b.State = hold.State
	}
	return b
}

// Estimator makes estimates, reusing its memory. The zero value is ready; it is
// not safe for concurrent use.
type Estimator struct {
	window, early, recent Histogram
}

// Estimate reads the narrowest window with enough samples. The slices come
// newest first. Calls in flight count as cut at their present age, so that a
// backend that hangs shows before its first call has ended.
//
// The declared distribution is what is believed without samples; its p95 is a
// floor until there are [EnoughSamples].
//
// Where so many calls were cut that the p95 lies beyond all that ended, it is
// believed to lie beyond the cut ones too; but one cut call alone says nothing
// against calls that ended and the declared p95 together, nor do any number that
// [AnsweredSince] calls have followed: then the p95 is that of the calls that ended,
// and at least the declared one. In the same way the longest call in flight alone
// says nothing beside a few that ended, until it is cut.
func (e *Estimator) Estimate(slices []Slice, inFlightMS []int64, declared slackgate.Dist) Estimate {
	window := e.choose(slices)
	out := Estimate{Dist: declared, Change: 1}
	e.window.Reset()
	for _, s := range slices {
		if s.AgeMS <= window {
			e.window.Merge(s.Calls)
		}
	}
	out.Samples = int(e.window.Samples())
	if out.Samples == 0 && len(inFlightMS) == 0 {
		return out
	}
	if out.Samples > 0 {
		out.WindowMS = window
	}
	out.Change = e.change(slices, window, inFlightMS)
	floored := e.dropCut(slices) || out.Samples < EnoughSamples
	e.fill(&out, inFlightMS, declared, floored)
	return out
}

// dropCut takes the cut calls out of the window where they would leave its p95 open
// and yet say nothing, and reports whether it did.
func (e *Estimator) dropCut(newest []Slice) bool {
	cut := e.window.cutCalls()
	if cut == 0 || cut == e.window.Samples() || cut > 1 && answeredSince(newest) < AnsweredSince {
		return false
	}
	if _, identified := e.window.Quantile(0.95); identified {
		return false
	}
	e.window.dropCut()
	return true
}

// answeredSince counts the calls that have ended in the slices after the newest
// in which one was cut.
func answeredSince(newest []Slice) (n int64) {
	for _, s := range newest {
		if s.Calls.cutCalls() > 0 {
			break
		}
		n += s.Calls.Samples()
	}
	return n
}

// choose returns the narrowest window with enough samples; if none has, the
// widest.
func (e *Estimator) choose(slices []Slice) int64 {
	for _, w := range WindowsMS {
		n := int64(0)
		for _, s := range slices {
			if s.AgeMS <= w {
				n += s.Calls.Samples()
			}
		}
		if n >= EnoughSamples {
			return w
		}
	}
	return WindowsMS[len(WindowsMS)-1]
}

// fill reads the distribution off the window, and adds the calls in flight to it.
// With floored the declared p95 is the least.
func (e *Estimator) fill(out *Estimate, inFlightMS []int64, declared slackgate.Dist, floored bool) {
	floor := declared.P95MS
	_, known := e.window.Quantile(0.95)
	usual, oldest, alone := e.window.LargestMS(), 0.0, -1
	if floored {
		usual = max(usual, floor)
	}
	if out.Samples > 0 && out.Samples < EnoughSamples && out.Samples == int(e.window.endedWith()) && len(inFlightMS) > 0 {
		alone = slices.Index(inFlightMS, slices.Max(inFlightMS))
	}
	for i, age := range inFlightMS {
		if i != alone {
			e.window.addInFlight(age)
			oldest = max(oldest, float64(age))
		}
	}
	p95, identified := e.window.Quantile(0.95)
	switch {
	case identified && !floored:
		out.P95MS, out.State = p95, slackgate.Measured
	case identified:
		out.P95MS, out.State = max(p95, floor), slackgate.Floored
	case out.Samples == 0 && oldest <= usual:
		// Nothing has ended yet, and nothing is late yet.
		return
	case out.Samples == 0 || known: // but for the calls in flight
		out.P95MS, out.State = overdue(oldest, usual), slackgate.NotIdentified
		if oldest <= usual {
			out.State = slackgate.Floored
		}
	default:
		out.P95MS = max(e.window.LargestMS()*NotIdentifiedFactor, floor)
		out.State = slackgate.NotIdentified
		if floored && e.window.LargestMS() < floor {
			out.State = slackgate.Floored
		}
	}
	if alone >= 0 { // whoever waits for its slot waits for it all the same
		e.window.addInFlight(inFlightMS[alone])
	}
	mean, variance := e.window.Moments()
	n := float64(e.window.Samples())
	w := n / (n + priorWeight)
	scale := max(out.Change, 1)
	prior := declared.MeanMS * scale
	out.MeanMS = w*mean + (1-w)*prior
	out.VarMS2 = w*(variance+mean*mean) + (1-w)*(declared.VarMS2*scale*scale+prior*prior) - out.MeanMS*out.MeanMS
	out.VarMS2 = max(out.VarMS2, 0)
}

// overdue is the p95 while nothing but calls in flight leaves it open. As long as
// the oldest of them is not longer than what is usual, they say nothing. After
// that it is believed to take as much longer again as it is overdue, up to
// NotIdentifiedFactor: the belief must not leap in the moment in which a call of
// the usual length is about to end, or promises made a moment ago were broken
// for it.
func overdue(oldest, usual float64) float64 {
	return max(usual, min(oldest+(oldest-usual), oldest*NotIdentifiedFactor))
}

// Limits of the search for a change.
const (
	// earlyEnough is how many earlier calls are needed to know what was usual;
	// with fewer the declared distribution is not trusted to stand for them.
	earlyEnough = 8
	// changeZ is how many standard deviations from what was usual the recent
	// calls must lie. They are looked at some four times a second in a dozen
	// ways, so it is far out.
	changeZ = 4.2
	// oneCallMost is the hazard that a call can use up at most, however long it
	// takes: so much by one call is no change, by two it is.
	oneCallMost = 11
	// changeLeast is the smallest change worth the name, as a logarithm.
	changeLeast = 0.15
	// changeMost bounds a change, as a logarithm (a factor of 20).
	changeMost = 3.0
	// sigmaLeast keeps calls that all take the same time from making every
	// millisecond a change.
	sigmaLeast = 0.1
)

// change compares the calls of the newest slices with those before them, for
// every number of slices in the narrowest window, by the one-sample log-rank
// test: were nothing changed, a call that lasted x has used up -ln S(x) of the
// hazard, one on average. If the recent ones have used up far more or less than
// they are many, the window is filled again with the earlier ones stretched,
// and the factor returned.
func (e *Estimator) change(slices []Slice, window int64, inFlightMS []int64) float64 {
	best, bestShift, bestAt := changeZ, 0, -1
	e.recent.Reset()
	e.early.Reset()
	e.early.Merge(&e.window)
	for k := 0; k < len(slices) && slices[k].AgeMS <= WindowsMS[0]; k++ {
		e.recent.Merge(slices[k].Calls)
		e.early.remove(slices[k].Calls)
		if e.early.Samples() < earlyEnough {
			break
		}
		mu, v := e.early.logMoments()
		u := usual{mu, max(math.Sqrt(v), sigmaLeast)}
		ended := float64(e.recent.endedWith())
		used := u.usedUp(&e.recent, inFlightMS, 0)
		// What was usual is itself known only from so many calls.
		known := math.Sqrt(1 + ended/float64(e.early.Samples()))
		if z := math.Abs(gammaZ(ended, used)) / known; z > best {
			shift := u.fit(&e.recent, inFlightMS, ended)
			if math.Abs(float64(shift)*logWidth) >= changeLeast {
				best, bestShift, bestAt = z, shift, k
			}
		}
	}
	if bestAt < 0 {
		return 1
	}
	e.window.Reset()
	for k, s := range slices {
		if s.AgeMS > window {
			continue
		}
		by := 0
		if k > bestAt {
			by = bestShift
		}
		e.window.mergeShifted(s.Calls, by)
	}
	return math.Exp(float64(bestShift) * logWidth)
}

// usual is the lognormal that fits what was usual before.
type usual struct{ mu, sigma float64 }

// hazard is -ln S(x) of a call whose logarithm lies z standard deviations above
// the usual. It is looked up: it is asked for thousands of times an estimate.
func hazard(z float64) float64 {
	x := (z + hazardSpan) * hazardSteps
	switch {
	case !(x > 0):
		return 0
	case x >= float64(len(hazards)-1): // S underflows; its asymptotic expansion
		return z*z/2 + math.Log(z*math.Sqrt(2*math.Pi))
	}
	i := int(x)
	return hazards[i] + (x-float64(i))*(hazards[i+1]-hazards[i])
}

const hazardSpan, hazardSteps = 8, 32

var hazards = func() (t [2*hazardSpan*hazardSteps + 1]float64) {
	for i := range t {
		z := float64(i)/hazardSteps - hazardSpan
		t[i] = -math.Log(math.Erfc(z/math.Sqrt2) / 2)
	}
	return t
}()

// inFlightFree is the hazard that a call in flight may use up before it counts:
// what is in flight is long by selection.
const inFlightFree = 2

// usedUp sums the hazard used up by calls, were all of them shorter by shift
// buckets.
func (u usual) usedUp(h *Histogram, inFlightMS []int64, shift int) float64 {
	sum := 0.0
	for b := h.lo; h.samples > 0 && b <= h.hi; b++ {
		if n := h.done[b] + h.cut[b]; n > 0 {
			sum += float64(n) * min(hazard(((float64(b-shift)+0.5)*logWidth-u.mu)/u.sigma), oneCallMost)
		}
	}
	for _, age := range inFlightMS {
		x := math.Log(max(float64(age), 1)) - float64(shift)*logWidth
		sum += max(0, min(hazard((x-u.mu)/u.sigma), oneCallMost)-inFlightFree)
	}
	return sum
}

// fit returns the shift at which the recent calls have used up what they ought
// to.
func (u usual) fit(h *Histogram, inFlightMS []int64, ended float64) int {
	lo, hi := int(-changeMost/logWidth), int(changeMost/logWidth)
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		if u.usedUp(h, inFlightMS, mid) > max(ended, 1) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

// gammaZ is how far out a sum of n unit exponentials with the value x lies, in
// standard deviations (Wilson and Hilferty's approximation).
func gammaZ(n, x float64) float64 {
	n = max(n, 1)
	return 3 * math.Sqrt(n) * (math.Cbrt(x/n) - 1 + 1/(9*n))
}
