package simulate

import (
	"slices"

	"leeway/slackgate"
	"leeway/slackgate/latency"
)

// learner measures one pool during a run, as the workers and the store would:
// in slices of five seconds, read again at every ended call and otherwise four
// times a second.
type learner struct {
	declared    slackgate.Belief
	first, hold kind
	estimator   latency.Estimator
	readAtMS    int64
	known       slackgate.Belief
}

// kind is the slices of one of the two times that are measured, oldest first.
type kind struct {
	startMS []int64
	calls   []*latency.Histogram
	slices  []latency.Slice
	flying  []int64
}

const readEveryMS = 250

// newLearner begins with what a configuration declares: the p95s, and nothing
// of how much the times vary.
func newLearner(truth *slackgate.Belief) *learner {
	return &learner{declared: slackgate.Belief{
		FirstByte: slackgate.Fixed(truth.FirstByte.P95MS), Hold: slackgate.Fixed(truth.Hold.P95MS),
	}}
}

func (k *kind) add(ms, now int64, cut bool) {
	start := now - now%latency.SliceMS
	if n := len(k.startMS); n == 0 || k.startMS[n-1] != start {
		k.startMS = append(k.startMS, start)
		k.calls = append(k.calls, new(latency.Histogram))
	}
	k.calls[len(k.calls)-1].Add(ms, cut)
}

func (k *kind) estimate(e *latency.Estimator, now int64, declared slackgate.Dist) latency.Estimate {
	k.slices = k.slices[:0]
	for i, start := range slices.Backward(k.startMS) {
		k.slices = append(k.slices, latency.Slice{AgeMS: now - start, Calls: k.calls[i]})
	}
	return e.Estimate(k.slices, k.flying, declared)
}

// gotFirst notes a first byte, gotLast the end of a call; or, of a call that was
// cut before, how long there was none.
func (l *learner) gotFirst(ms, now int64, cut bool) { l.first.add(ms, now, cut); l.readAtMS = 0 }
func (l *learner) gotLast(ms, now int64, cut bool)  { l.hold.add(ms, now, cut); l.readAtMS = 0 }

// belief returns what is believed at now, with these calls in flight.
func (l *learner) belief(now int64, running []call) slackgate.Belief {
	if now < l.readAtMS+readEveryMS && l.readAtMS > 0 {
		return l.known
	}
	l.readAtMS = now
	l.first.flying, l.hold.flying = l.first.flying[:0], l.hold.flying[:0]
	for i := range running {
		age := now - running[i].startMS
		l.hold.flying = append(l.hold.flying, age)
		if !running[i].firstNoted {
			l.first.flying = append(l.first.flying, age)
		}
	}
	first := l.first.estimate(&l.estimator, now, l.declared.FirstByte)
	hold := l.hold.estimate(&l.estimator, now, l.declared.Hold)
	l.known = slackgate.Belief{FirstByte: first.Dist, Hold: hold.Dist, Samples: first.Samples, State: first.State}
	return l.known
}
