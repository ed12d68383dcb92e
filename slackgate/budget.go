package slackgate

// DayMS is the length of the day that a budget is for. Days begin at midnight
// UTC on the store's clock.
const DayMS = 24 * 3600 * 1000

// MaxBudgetMicro bounds budgets and costs, so that their sums stay exact in the
// store's script. A job that may cost more fits no budget.
const MaxBudgetMicro = 1 << 50

// Limit names what a producer or a class ran into. The set is closed.
type Limit string

// The limits.
const (
	LimitRate           Limit = "submissions_per_s"
	LimitInFlight       Limit = "in_flight"
	LimitProducerBudget Limit = "producer_budget"
	LimitClassBudget    Limit = "class_budget"
)

// The places of [Snapshot.Budgets].
const (
	ProducerBudget = iota
	ClassBudget

	// NumBudgets is how many budgets a job is charged to.
	NumBudgets
)

var budgetLimits = [NumBudgets]Limit{LimitProducerBudget, LimitClassBudget}

// Budget is a cap on what the jobs of one producer or class may cost in a day,
// and how far it is used. It closes the paid pool and nothing else. The zero
// value caps nothing.
type Budget struct {
	// Set is false where there is no cap. A cap of 0 closes paid to whatever
	// costs anything.
	Set bool
	// CapMicro is the cap in micro-units, 0..MaxBudgetMicro.
	CapMicro int64
	// SpentMicro is what has been booked since the day began, ReservedMicro
	// the most that the unfinished jobs may yet cost.
	SpentMicro, ReservedMicro int64
}

// MaxBooked is how much may be spent and reserved already for a job that may
// cost costMicro to be taken. Below 0: it does not fit at all.
func (b *Budget) MaxBooked(costMicro int64) int64 {
	return b.CapMicro - min(max(costMicro, 0), 2*MaxBudgetMicro)
}

// Admits reports whether a job that may cost costMicro fits. The store's script
// makes the same comparison, with the number that [Budget.MaxBooked] gave.
func (b *Budget) Admits(costMicro int64) bool {
	return !b.Set || b.SpentMicro+b.ReservedMicro <= b.MaxBooked(costMicro)
}

// LeftMicro is what may still be reserved. Never below 0.
func (b *Budget) LeftMicro() int64 {
	return max(0, b.CapMicro-b.SpentMicro-b.ReservedMicro)
}

// retryAfterMS is how long a job that did not fit has to wait: for the next day
// where it is what was spent that is in the way, for the next end of a job,
// which is expected in soonMS, where it is what is reserved. [Unbounded] if the
// job does not fit an unused budget.
func (b *Budget) retryAfterMS(costMicro, nowMS, soonMS int64) int64 {
	switch {
	case b.MaxBooked(costMicro) < 0:
		return Unbounded
	case b.SpentMicro > b.MaxBooked(costMicro):
		return DayLeftMS(nowMS)
	}
	return soonMS
}

// DayLeftMS is how long the day that holds an instant still lasts.
func DayLeftMS(nowMS int64) int64 { return DayMS - nowMS%DayMS }

// overBudget returns the first budget that the job does not fit, if any.
func (s *Snapshot) overBudget(costMicro int64) (which int, over bool) {
	for i := range s.Budgets {
		if !s.Budgets[i].Admits(costMicro) {
			return i, true
		}
	}
	return 0, false
}

// Quota is what one producer may submit, and how far it is used. The zero value
// limits nothing.
//
// The rate is kept as one instant (the generic cell rate algorithm): each
// submission moves it IntervalUS further, never from before now, and one is
// refused when it would come to lie more than ToleranceUS ahead.
type Quota struct {
	// IntervalUS is the time between two submissions at the rate that holds,
	// in microseconds; 0: no limit. ToleranceUS is how far ahead of it a
	// producer may get: a burst of 1 + ToleranceUS/IntervalUS.
	IntervalUS, ToleranceUS int64
	// AheadUS is how far ahead the producer is at this submission. At least 0.
	AheadUS int64
	// MaxInFlight bounds the producer's admitted and unfinished jobs; 0: no
	// limit. InFlight is how many there are.
	MaxInFlight, InFlight int64
}

// NewQuota is the quota of perSecond submissions a second on average and at
// most burst at once, and of maxInFlight unfinished jobs. 0 leaves a limit out;
// a burst below 1 is 1.
func NewQuota(perSecond float64, burst, maxInFlight int64) Quota {
	q := Quota{MaxInFlight: maxInFlight}
	if perSecond > 0 {
		q.IntervalUS = max(1, int64(1e6/perSecond))
		q.ToleranceUS = (max(burst, 1) - 1) * q.IntervalUS
	}
	return q
}

// Limited reports whether there is any limit.
func (q *Quota) Limited() bool { return q.IntervalUS > 0 || q.MaxInFlight > 0 }

// InRate reports whether the rate allows this submission. The store's script
// makes the same comparison.
func (q *Quota) InRate() bool { return q.IntervalUS == 0 || q.AheadUS <= q.ToleranceUS }

// HasRoom reports whether another job may be in flight.
func (q *Quota) HasRoom() bool { return q.MaxInFlight == 0 || q.InFlight < q.MaxInFlight }

// Burst is the most submissions at once.
func (q *Quota) Burst() int64 {
	if q.IntervalUS == 0 {
		return 0
	}
	return 1 + q.ToleranceUS/q.IntervalUS
}

// Remaining is how many submissions may follow this one at once.
func (q *Quota) Remaining() int64 {
	if q.IntervalUS == 0 || !q.InRate() {
		return 0
	}
	return (q.ToleranceUS - q.AheadUS) / q.IntervalUS
}

// retryAfterMS is when the rate allows the next submission.
func (q *Quota) retryAfterMS() int64 { return (q.AheadUS-q.ToleranceUS)/1000 + 1 }
