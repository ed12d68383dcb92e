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
	first, hold samples
	estimator   latency.Estimator
	readAtMS    int64
	known       slackgate.Belief
}

// samples are the slices of one of the two times that are measured, oldest first.
type samples struct {
	startAtMS []int64
	calls     []*latency.Histogram
	slices    []latency.Slice
	running   []int64 // the ages of the calls in flight
}

const readEveryMS = 250

// newLearner begins with what a configuration declares: the p95s, and nothing
// of how much the times vary.
func newLearner(truth *slackgate.Belief) *learner {
	return &learner{declared: slackgate.Belief{
		FirstByte: slackgate.Fixed(truth.FirstByte.P95MS), Hold: slackgate.Fixed(truth.Hold.P95MS),
	}}
}

func (k *samples) add(ms, now int64, cut bool) {
	start := now - now%latency.SliceMS
	if n := len(k.startAtMS); n == 0 || k.startAtMS[n-1] != start {
		k.startAtMS = append(k.startAtMS, start)
		k.calls = append(k.calls, new(latency.Histogram))
	}
	k.calls[len(k.calls)-1].Add(ms, cut)
}

func (k *samples) estimate(e *latency.Estimator, now int64, declared slackgate.Dist) latency.Estimate {
	k.slices = k.slices[:0]
	for i, start := range slices.Backward(k.startAtMS) {
		k.slices = append(k.slices, latency.Slice{AgeMS: now - start, Calls: k.calls[i]})
	}
	return e.Estimate(k.slices, k.running, declared)
}

// ended notes the end of a call; or, of a call that was cut before its first or
// last byte, how long there was none.
func (l *learner) ended(c *call) {
	if !c.firstNoted {
		l.first.add(min(c.firstAtMS, c.doneAtMS)-c.startAtMS, c.doneAtMS, c.firstAtMS > c.doneAtMS)
	}
	l.hold.add(c.doneAtMS-c.startAtMS, c.doneAtMS, c.cut)
	l.readAtMS = 0
}

// belief returns what is believed at now, with these calls in flight.
func (l *learner) belief(now int64, running []call) slackgate.Belief {
	for i := range running {
		if c := &running[i]; !c.firstNoted && c.firstAtMS <= now {
			c.firstNoted = true
			l.first.add(c.firstAtMS-c.startAtMS, c.firstAtMS, false)
			l.readAtMS = 0
		}
	}
	if now < l.readAtMS+readEveryMS && l.readAtMS > 0 {
		return l.known
	}
	l.readAtMS = now
	l.first.running, l.hold.running = l.first.running[:0], l.hold.running[:0]
	for i := range running {
		age := now - running[i].startAtMS
		l.hold.running = append(l.hold.running, age)
		if !running[i].firstNoted {
			l.first.running = append(l.first.running, age)
		}
	}
	first := l.first.estimate(&l.estimator, now, l.declared.FirstByte)
	hold := l.hold.estimate(&l.estimator, now, l.declared.Hold)
	l.known = latency.Belief(&l.declared, &first, &hold)
	return l.known
}
