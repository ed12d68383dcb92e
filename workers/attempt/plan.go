package attempt

import "time"

// DefaultShare is the part of the remaining time that an attempt may spend on
// its first byte while another backend is left.
const DefaultShare = 0.6

// PlanInput is what the planner decides from. There is no clock in it.
type PlanInput struct {
	// Slack is the time left for the first byte: deadline - reserve - now.
	Slack time.Duration
	// Share is the largest part of Slack an attempt may spend on its first
	// byte while another backend is left. In (0, 1].
	Share float64
	// Cap bounds the same in absolute terms; 0: no cap. Like Share it does
	// not bind the last backend.
	Cap time.Duration
	// P95 is, for each backend that could be called now, in order, its own
	// 95th percentile of the first byte.
	P95 []time.Duration
}

// Plan is the next attempt.
type Plan struct {
	// Index is the backend's place in PlanInput.P95; -1: none may be called.
	Index int
	// FirstByte is how long its first answer text may take, waiting for a
	// permit and connecting included.
	FirstByte time.Duration
	// Last is set when no other backend is left, so that the attempt has all
	// the slack there is.
	Last bool
}

// Next plans the next attempt: the first backend whose own p95 fits the slack,
// and how much of the slack it may spend.
//
// Another backend is left if what the attempt's share would leave of the slack
// reaches that backend's own p95. While one is left, the attempt may spend its
// share and no more, and less if the next one needs it: when the next one would
// itself have to leave time for a third, its share of the rest must still reach
// its p95 (but an attempt is not cut below its own p95 for that). The last may
// spend everything.
//
// A backend whose p95 is unknown (zero or less) is never called.
func Next(in PlanInput) Plan {
	for i, p95 := range in.P95 {
		if p95 <= 0 || p95 > in.Slack {
			continue
		}
		budget := in.share(in.Slack)
		next := left(in.P95[i+1:], in.Slack-budget)
		if next < 0 {
			return Plan{Index: i, FirstByte: in.Slack, Last: true}
		}
		next += i + 1
		return Plan{Index: i, FirstByte: in.lessen(budget, p95, next)}
	}
	return Plan{Index: -1}
}

// share is what an attempt may spend of slack while another backend is left.
func (in *PlanInput) share(slack time.Duration) time.Duration {
	d := time.Duration(float64(slack) * in.Share)
	if in.Cap > 0 {
		d = min(d, in.Cap)
	}
	return d
}

// left is the first backend whose p95 fits what would be left; -1: none.
func left(p95s []time.Duration, rest time.Duration) int {
	for i, p95 := range p95s {
		if p95 > 0 && p95 <= rest {
			return i
		}
	}
	return -1
}

// lessen takes from budget what the backend at next needs to have its own p95
// within its own share, if it will have to leave time for yet another one.
func (in *PlanInput) lessen(budget, p95 time.Duration, next int) time.Duration {
	need := in.P95[next]
	rest := in.Slack - budget
	if in.share(rest) >= need || left(in.P95[next+1:], rest-in.share(rest)) < 0 {
		return budget
	}
	less := in.Slack - time.Duration(float64(need)/in.Share)
	if less < p95 {
		return budget
	}
	return min(budget, less)
}
