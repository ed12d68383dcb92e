// Package latency turns measured calls, finished and cut ones, into what the
// slack gate believes about the next call.
//
// Counts are kept in log-spaced buckets, so that the counts of many processes
// merge by addition, for instance in plain Redis hashes. Everything here is a
// pure function of counts and ages.
package latency

import (
	"fmt"
	"math"
	"strconv"
)

const (
	// Buckets is the number of buckets. The last also takes what is longer.
	Buckets = 2048
	// Width is the ratio of a bucket's upper to its lower bound. The first
	// bucket begins at 1 ms; the last ends beyond a week.
	Width = 1.01
)

var logWidth = math.Log(Width)

// Bucket returns the bucket of a duration in milliseconds. Less than 1 ms, and
// what is not a number, counts as 1 ms.
func Bucket(ms float64) int {
	if !(ms > 1) {
		return 0
	}
	return int(min(math.Log(ms)/logWidth, Buckets-1))
}

// edge is a bucket's lower bound in milliseconds.
func edge(bucket int) float64 { return math.Exp(float64(bucket) * logWidth) }

// Field is the name under which a duration is counted in a hash: the bucket's
// number after d for a call that came to its end (or first byte), or after c
// for one that was cut before.
func Field(ms int64, cut bool) string {
	kind := "d"
	if cut {
		kind = "c"
	}
	return kind + strconv.Itoa(Bucket(float64(ms)))
}

// Histogram counts calls by how long they took: those that were done apart from
// those that were cut, of which only a lower bound is known. The zero value is
// empty and ready to use.
type Histogram struct {
	done, cut [Buckets]int64
	samples   int64
	doneMS    int64 // exact sum over the done calls, or 0 if it is not known
	lo, hi    int   // range of buckets in use; meaningless while samples is 0
}

// SumField is the name under which a hash keeps the sum of the done calls in
// whole milliseconds, so that their mean is exact.
const SumField = "sum"

// MaxCount bounds a single count read from outside.
const MaxCount = 1 << 40

// Add counts one call.
func (h *Histogram) Add(ms int64, cut bool) {
	h.add(Bucket(float64(ms)), cut, 1)
	if !cut {
		h.doneMS += max(ms, 1)
	}
}

// addInFlight counts a call that has run for some time and still does. It has
// outlived the buckets before that of its age, and may end within that one.
func (h *Histogram) addInFlight(ageMS int64) { h.add(max(Bucket(float64(ageMS))-1, 0), true, 1) }

func (h *Histogram) add(bucket int, cut bool, n int64) {
	if n <= 0 {
		return
	}
	if h.samples == 0 {
		h.lo, h.hi = bucket, bucket
	}
	h.lo, h.hi = min(h.lo, bucket), max(h.hi, bucket)
	h.samples += n
	if cut {
		h.cut[bucket] += n
	} else {
		h.done[bucket] += n
	}
}

// AddField adds a count kept under a name made by [Field]. A name or a count
// that cannot have been written by us is an error and adds nothing.
func (h *Histogram) AddField(field string, count int64) error {
	if field == SumField {
		if count < 0 {
			return fmt.Errorf("latency: a sum of %d ms is out of range", count)
		}
		h.doneMS += count
		return nil
	}
	if len(field) < 2 || len(field) > 5 || field[0] != 'd' && field[0] != 'c' {
		return fmt.Errorf("latency: no such bucket: %.16q", field)
	}
	bucket, err := strconv.ParseUint(field[1:], 10, 16)
	if err != nil || bucket >= Buckets {
		return fmt.Errorf("latency: no such bucket: %.16q", field)
	}
	if count < 0 || count > MaxCount {
		return fmt.Errorf("latency: count %d of bucket %.16q is out of range", count, field)
	}
	h.add(int(bucket), field[0] == 'c', count)
	return nil
}

// Merge adds the counts of o.
func (h *Histogram) Merge(o *Histogram) { h.mergeShifted(o, 0) }

// mergeShifted adds the counts of o as if every call had taken Width^by times
// as long.
func (h *Histogram) mergeShifted(o *Histogram, by int) {
	if o.samples == 0 {
		return
	}
	for b := o.lo; b <= o.hi; b++ {
		to := min(max(b+by, 0), Buckets-1)
		h.add(to, false, o.done[b])
		h.add(to, true, o.cut[b])
	}
	if by == 0 {
		h.doneMS += o.doneMS
	} else {
		h.doneMS += int64(float64(o.doneMS) * math.Exp(float64(by)*logWidth))
	}
}

// remove takes away the counts of o, which are part of h.
func (h *Histogram) remove(o *Histogram) {
	if o.samples == 0 {
		return
	}
	for b := o.lo; b <= o.hi; b++ {
		h.done[b] -= o.done[b]
		h.cut[b] -= o.cut[b]
	}
	h.doneMS -= o.doneMS
	h.samples -= o.samples // lo and hi stay: a range that is too wide is harmless
}

// Reset empties the histogram.
func (h *Histogram) Reset() {
	clear(h.done[h.lo : h.hi+1])
	clear(h.cut[h.lo : h.hi+1])
	h.samples, h.doneMS, h.lo, h.hi = 0, 0, 0, 0
}

// Samples is the number of calls counted, cut ones included.
func (h *Histogram) Samples() int64 { return h.samples }

// endedWith counts the calls that were done.
func (h *Histogram) endedWith() int64 { return h.samples - h.cutCalls() }

// cutCalls counts the calls that were cut.
func (h *Histogram) cutCalls() (n int64) {
	for b := h.lo; h.samples > 0 && b <= h.hi; b++ {
		n += h.cut[b]
	}
	return n
}

// dropCut takes the cut calls away.
func (h *Histogram) dropCut() {
	h.samples = h.endedWith()
	clear(h.cut[h.lo : h.hi+1])
	for h.hi > h.lo && h.done[h.hi] == 0 {
		h.hi--
	}
}

// LargestMS is the upper bound of the longest call counted; 0 if there is none.
func (h *Histogram) LargestMS() float64 {
	if h.samples == 0 {
		return 0
	}
	return edge(h.hi + 1)
}

// Quantile is the Kaplan-Meier estimate of the p-quantile (0 < p < 1): a call
// that was cut counts as having taken at least as long as it ran. It is the
// upper bound of the bucket in which the quantile lies, so at most one percent
// too long. It is not identified when so many were cut that the quantile lies
// beyond all that was seen; ms is then the largest seen.
func (h *Histogram) Quantile(p float64) (ms float64, identified bool) {
	survival, atRisk := 1.0, float64(h.samples)
	for b := h.lo; h.samples > 0 && b <= h.hi; b++ {
		if d := float64(h.done[b]); d > 0 {
			survival *= 1 - d/atRisk
			if survival <= 1-p+1e-12 {
				return edge(b + 1), true
			}
		}
		// Cut calls of the bucket were at risk when its done ones ended.
		atRisk -= float64(h.done[b] + h.cut[b])
	}
	return h.LargestMS(), false
}

// beyondLargest is where the part of the distribution that no finished call
// bears witness to is put, as a multiple of the largest seen.
const beyondLargest = 1.5

// Moments returns mean and variance under the Kaplan-Meier estimate, each call
// taken at its bucket's upper bound, or as much below it as makes the sum of
// the done calls come out right. What is left of the distribution beyond the
// largest call seen counts as half as long again as that.
func (h *Histogram) Moments() (mean, variance float64) {
	scale := 1.0
	if h.doneMS > 0 {
		upper := 0.0
		for b := h.lo; b <= h.hi; b++ {
			if h.done[b] > 0 {
				upper += float64(h.done[b]) * edge(b+1)
			}
		}
		scale = min(max(float64(h.doneMS)/upper, 1/Width), 1)
	}
	return h.weigh(func(b int) float64 { return edge(b+1) * scale }, h.LargestMS()*beyondLargest)
}

// logMoments is Moments of the logarithm, each call taken at the middle of its
// bucket.
func (h *Histogram) logMoments() (mean, variance float64) {
	return h.weigh(func(b int) float64 { return (float64(b) + 0.5) * logWidth },
		float64(h.hi+1)*logWidth+math.Log(beyondLargest))
}

func (h *Histogram) weigh(value func(bucket int) float64, beyond float64) (mean, variance float64) {
	if h.samples == 0 {
		return 0, 0
	}
	survival, atRisk := 1.0, float64(h.samples)
	sum, squares := 0.0, 0.0
	for b := h.lo; b <= h.hi; b++ {
		if d := float64(h.done[b]); d > 0 {
			x, weight := value(b), survival*d/atRisk
			sum += x * weight
			squares += x * x * weight
			survival *= 1 - d/atRisk
		}
		atRisk -= float64(h.done[b] + h.cut[b])
	}
	if survival > 1e-12 {
		sum += beyond * survival
		squares += beyond * beyond * survival
	}
	return sum, max(0, squares-sum*sum)
}
