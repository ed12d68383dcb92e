package slackgate

import "math"

// z95 is the 95th percentile of the standard normal distribution.
const z95 = 1.6448536269514722

// Dist is what is believed about a duration: its first two moments and its
// 95th percentile. The three need not belong to one known distribution.
type Dist struct {
	// MeanMS is the mean in milliseconds. Above 0.
	MeanMS float64
	// VarMS2 is the variance in squared milliseconds. At least 0.
	VarMS2 float64
	// P95MS is the 95th percentile in milliseconds. Above 0.
	P95MS float64
}

// Fixed returns the belief in a duration that is always ms.
func Fixed(ms float64) Dist { return Dist{MeanMS: ms, P95MS: ms} }

// Lognormal returns the belief in a lognormal duration with the given 95th
// percentile and sigma, the standard deviation of its logarithm.
func Lognormal(p95MS, sigma float64) Dist {
	median := p95MS / math.Exp(z95*sigma)
	mean := median * math.Exp(sigma*sigma/2)
	return Dist{MeanMS: mean, VarMS2: mean * mean * math.Expm1(sigma*sigma), P95MS: p95MS}
}

// ok reports whether the numbers can be calculated with.
func (d Dist) ok() bool {
	return d.MeanMS > 0 && d.P95MS > 0 && d.VarMS2 >= 0 &&
		d.MeanMS <= maxBeliefMS && d.P95MS <= maxBeliefMS && d.VarMS2 <= maxBeliefMS*maxBeliefMS
}

// maxBeliefMS (a week) bounds what is believed of one call, so that sums stay
// far from overflow.
const maxBeliefMS = 7 * 24 * 3600 * 1000

// tail is how much heavier than a normal's the upper tail is, scaled so that
// the tails of a sum's parts add: (z - z95) * variance^1.5, where z is how many
// standard deviations the p95 lies above the mean. It plays the part of the
// third cumulant in a Cornish-Fisher expansion, matched at the 95th percentile.
func (d Dist) tail() float64 {
	if d.VarMS2 <= 0 {
		return 0
	}
	sd := math.Sqrt(d.VarMS2)
	// Beyond 2.4 the quantile of a sum could fall as a part is added.
	z := min(max((d.P95MS-d.MeanMS)/sd, 1), 2.4)
	return (z - z95) * d.VarMS2 * sd
}

// State says where a belief comes from.
type State uint8

// The states of a belief.
const (
	// Declared: from configuration, nothing measured yet.
	Declared State = iota
	// Floored: measured, but with too few samples, or too many of them cut, to go
	// below the declared p95.
	Floored
	// Measured: from enough samples.
	Measured
	// NotIdentified: so many calls were cut that the p95 lies beyond anything
	// seen; what is believed is a lower bound.
	NotIdentified
)

// String returns the state's name as it stands in metrics and JSON.
func (s State) String() string {
	switch s {
	case Declared:
		return "declared"
	case Floored:
		return "floored"
	case Measured:
		return "measured"
	case NotIdentified:
		return "not_identified"
	}
	return "unknown"
}

// Belief is what is believed about one pool's calls.
type Belief struct {
	// FirstByte is the time from the call to the first byte of answer text.
	FirstByte Dist
	// Hold is how long a worker stays taken. At least the first byte.
	Hold Dist
	// DeclaredFirstByteMS and DeclaredHoldMS are the declared p95s, to which what is
	// measured may come back; 0: not known.
	DeclaredFirstByteMS, DeclaredHoldMS float64
	// Samples is the number of calls behind the numbers; 0 when declared.
	Samples int
	// State says where the numbers come from.
	State State
}

// FixedBelief is the belief in calls that always take firstByteMS to the first
// byte and holdMS in all.
func FixedBelief(firstByteMS, holdMS int64) Belief {
	return Belief{FirstByte: Fixed(float64(firstByteMS)), Hold: Fixed(float64(holdMS))}
}

// OK reports whether the belief can be calculated with.
func (b *Belief) OK() bool { return b.FirstByte.ok() && b.Hold.ok() }

// NeedMS is the slack that job j needs with every worker free: the 95th percentile
// of the first byte and, unless its class counts the first byte alone, that of the
// hold less the reserve. A pool in which that is more than the slack of any job that
// may come has been closed by its own measurement: nothing but a probe can show that
// it has recovered.
func (b *Belief) NeedMS(j *Job) int64 { return idleNeedMS(b.FirstByte.P95MS, b.Hold.P95MS, j) }

func idleNeedMS(firstByteP95MS, holdP95MS float64, j *Job) int64 {
	if !j.FirstByteOnly {
		firstByteP95MS = max(firstByteP95MS, holdP95MS-float64(j.ReserveMS))
	}
	return ceilMS(firstByteP95MS)
}

// A pool that its own measurement has closed.
const (
	// ProbeEveryMS is how often it is probed, over all workers together.
	ProbeEveryMS = 3000
	// ProbesToReopen is how many probes in a row reopen it if they are answered in
	// time.
	ProbesToReopen = 3
)

// reopensInMS is when a pool that is closed to job j by its own measurement may be
// open to it again; [Unbounded] if it would be closed by what is declared, too.
func (b *Belief) reopensInMS(j *Job, slackMS int64) int64 {
	if b.State == Declared || idleNeedMS(b.DeclaredFirstByteMS, b.DeclaredHoldMS, j) > slackMS {
		return Unbounded
	}
	return ProbesToReopen * ProbeEveryMS
}

// residual is what is expected of a call that has run for some time.
type residual struct{ mean, variance float64 }

// residualSteps is the number of ages, in eighths of the mean, for which the
// table of a lognormal's remaining time is kept.
const residualSteps = 8 * 12

// residuals answers how long a call that has run for an age will still run.
// It reads the belief as a lognormal, the usual shape of service times of
// language models; nothing but the remaining time depends on that.
type residuals struct {
	dist  Dist
	table [residualSteps + 1]residual
}

// set fills the table for a distribution, unless it is there already.
func (r *residuals) set(d Dist) {
	if r.dist == d {
		return
	}
	r.dist = d
	s2 := math.Log1p(d.VarMS2 / (d.MeanMS * d.MeanMS))
	s := math.Sqrt(s2)
	mu := math.Log(d.MeanMS) - s2/2
	for i := range r.table {
		age := float64(i) / 8 * d.MeanMS
		r.table[i] = lognormalResidual(d, mu, s, age)
	}
}

// lognormalResidual returns mean and variance of X-age given X > age.
func lognormalResidual(d Dist, mu, s, age float64) residual {
	switch {
	case age <= 0:
		return residual{d.MeanMS, d.VarMS2}
	case s < 1e-3:
		return overdue(d, age)
	}
	k := (math.Log(age) - mu) / s
	beyond := upper(k)
	if beyond < 1e-9 {
		return overdue(d, age)
	}
	m1 := d.MeanMS * upper(k-s) / beyond
	m2 := d.MeanMS * d.MeanMS * math.Exp(s*s) * upper(k-2*s) / beyond
	return residual{max(m1-age, 0), max(m2-m1*m1, 0)}
}

// overdue is the remaining time where the distribution has none to say: what
// is missing to the mean or, past it, as long again as it is overdue, up to a
// quarter of its age.
func overdue(d Dist, age float64) residual {
	if age < d.MeanMS {
		return residual{mean: d.MeanMS - age}
	}
	return residual{mean: min(age-d.MeanMS, age/4)}
}

// at returns what is left of a call that has run for ageMS.
func (r *residuals) at(ageMS float64) residual {
	if ageMS <= 0 {
		return r.table[0]
	}
	if r.dist.VarMS2 < 1e-6*r.dist.MeanMS*r.dist.MeanMS {
		return overdue(r.dist, ageMS) // exact where the table would interpolate
	}
	x := ageMS / r.dist.MeanMS * 8
	if x >= residualSteps {
		// The mean residual of a lognormal grows about in proportion with age.
		last := r.table[residualSteps]
		f := x / residualSteps
		return residual{last.mean * f, last.variance * f * f}
	}
	i := int(x)
	f := x - float64(i)
	a, b := r.table[i], r.table[i+1]
	return residual{a.mean + f*(b.mean-a.mean), a.variance + f*(b.variance-a.variance)}
}

// upper is the probability of a standard normal above x.
func upper(x float64) float64 { return math.Erfc(x/math.Sqrt2) / 2 }
