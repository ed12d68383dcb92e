package admission

import (
	"context"
	"sync"
	"time"

	"leeway/broker"
	"leeway/slackgate"
)

// When a submission is refused without asking the store.
const (
	// FreshFor is how long after it came a refusal of the store's stands for
	// others of its class. A flag that opens, or a place that comes free, may go
	// unseen for as long, and for the answer's way; nothing is ever admitted
	// without asking. Counted from the question, a slow machine would never
	// have a fresh answer in just the flood that makes it slow.
	FreshFor = 20 * time.Millisecond
	// FloodAt is how many jobs of a class must have been refused within FreshFor
	// before others are refused without asking: below it, asking costs nobody
	// anything.
	FloodAt = 16
	// mostKinds and mostCounted bound what is kept: kinds of jobs, and
	// producers whose refusals are not told yet. The store notes as many
	// producers at most.
	mostKinds   = 256
	mostCounted = 200
)

// kind is what jobs have in common that the gate treats alike, but for their
// slack.
type kind struct {
	class         string
	prefer        [2]slackgate.Path
	firstByteOnly bool
	reserveMS     int64 // as submitted
}

func kindOf(p *pending) kind {
	return kind{p.job.Class, p.job.Prefer, p.job.FirstByteOnly, p.job.ReserveMS}
}

// refusal is what the store answered last to jobs of a kind, and how many of
// them are refused.
type refusal struct {
	// What was refused, and up to which slack: the rule never admits with less
	// what it refuses with more.
	at      time.Time // when the answer came; zero: nothing stands
	slackMS int64
	state   slackgate.Snapshot
	class   ClassSettings
	limits  func(producer string) slackgate.Quota
	asked   [slackgate.NumPaths]bool // pools that count it as demand

	since         time.Time // when the count began
	count, count0 int       // refused since then, and in the time before
}

// fresh holds refusals, and what of them the store has not heard.
type fresh struct {
	mu    sync.Mutex // guards what follows
	kinds map[kind]*refusal
	// counted are the refusals that the store was not asked for, by pool and
	// producer: what it works the producers' shares out from. A process that
	// dies takes with it what it refused in the last moments; promises and
	// misses are never among them.
	counted [slackgate.NumPaths]map[string]int64
}

// refused counts a refusal.
func (r *refusal) refused(now time.Time) {
	if age := now.Sub(r.since); age >= FreshFor {
		r.count0, r.count, r.since = r.count, 0, now
		if age >= 2*FreshFor {
			r.count0 = 0
		}
	}
	r.count++
}

// limited reports whether the store counts what the producer submits.
func (r *refusal) limited(producer string) bool {
	if r.limits == nil {
		return false
	}
	q := r.limits(producer)
	return q.Limited()
}

// flooded reports whether so many are refused that asking for each is worth
// saving.
func (r *refusal) flooded(now time.Time) bool {
	return now.Sub(r.since) < 2*FreshFor && max(r.count, r.count0) >= FloodAt
}

// refuseFresh gives a job the verdict that the store gave one with at least as
// much slack a moment ago, if there is one.
func (a *Admitter) refuseFresh(p *pending) bool {
	if p.job.Key.Value != "" || p.job.Place.Batch != "" {
		return false
	}
	now := time.Now()
	a.fresh.mu.Lock()
	r := a.fresh.kinds[kindOf(p)]
	if r == nil || r.at.IsZero() || now.Sub(r.at) >= FreshFor || !r.flooded(now) {
		a.fresh.mu.Unlock()
		return false
	}
	left := p.job.LeftMS(now)
	reserve := max(p.job.ReserveMS, r.class.ReserveMS)
	slack := left - reserve
	if slack <= 0 || slack > r.slackMS || r.limited(p.job.Producer) || !a.count(r, p.job.Producer) {
		a.fresh.mu.Unlock()
		return false
	}
	r.refused(now)
	state, policy := r.state, r.class.Policy
	a.fresh.mu.Unlock()

	p.reserveMS = reserve
	nowMS := a.Store.NowMS()
	v := verdictOf(p, &state, policy, nowMS, left)
	if v.Admitted() { // the state is another's: what it says of this job is not for it to say
		return false
	}
	p.verdict = v
	return true
}

// count notes a refusal as demand in the pools that were asked. It reports
// whether there was room to; the caller holds the lock.
func (a *Admitter) count(r *refusal, producer string) bool {
	for _, path := range slackgate.Paths {
		if m := a.fresh.counted[path]; r.asked[path] && m != nil && len(m) >= mostCounted && m[producer] == 0 {
			return false
		}
	}
	for _, path := range slackgate.Paths {
		if !r.asked[path] {
			continue
		}
		if a.fresh.counted[path] == nil {
			a.fresh.counted[path] = map[string]int64{}
		}
		a.fresh.counted[path][producer]++
	}
	return true
}

// untold takes the counts that are to go with the next call.
func (a *Admitter) untold(pools *[slackgate.NumPaths]broker.PoolPolicy) {
	a.fresh.mu.Lock()
	defer a.fresh.mu.Unlock()
	for _, path := range slackgate.Paths {
		pools[path].Refused = a.fresh.counted[path]
		a.fresh.counted[path] = nil
	}
}

// tellAgain puts counts back that the store has not taken. Those of a call
// whose answer was lost are not put back: the store may have them, and too many
// would take places from whom they count against.
func (a *Admitter) tellAgain(pools *[slackgate.NumPaths]broker.PoolPolicy) {
	a.fresh.mu.Lock()
	defer a.fresh.mu.Unlock()
	for _, path := range slackgate.Paths {
		if a.fresh.counted[path] == nil {
			a.fresh.counted[path] = pools[path].Refused
			continue
		}
		for producer, n := range pools[path].Refused {
			a.fresh.counted[path][producer] += n
		}
	}
}

// anyUntold reports whether there are counts that the store has not heard.
func (a *Admitter) anyUntold() bool {
	a.fresh.mu.Lock()
	defer a.fresh.mu.Unlock()
	return len(a.fresh.counted[slackgate.Paid])+len(a.fresh.counted[slackgate.Free]) > 0
}

// learn keeps what was answered to a job by a call whose answer came at some
// time.
func (a *Admitter) learn(p *pending, adm *broker.OfferResult, at time.Time) {
	a.fresh.mu.Lock()
	defer a.fresh.mu.Unlock()
	k, v := kindOf(p), &p.verdict
	r := a.fresh.kinds[k]
	if v.Admitted() {
		if r != nil && p.offer.SlackMS() <= r.slackMS {
			r.at = time.Time{}
		}
		return
	}
	if v.Reason != slackgate.ReasonNoSlack && v.Reason != slackgate.ReasonClosed {
		return
	}
	if r == nil {
		if len(a.fresh.kinds) >= mostKinds {
			a.fresh.kinds = nil
		}
		if a.fresh.kinds == nil {
			a.fresh.kinds = map[kind]*refusal{}
		}
		r = &refusal{}
		a.fresh.kinds[k] = r
	}
	r.refused(time.Now())
	upTo, job := int64(slackgate.Unbounded), p.job.Gate(0, p.reserveMS)
	for i := range p.offer.Bounds {
		b := &p.offer.Bounds[i]
		upTo = min(upTo, b.RefusedUpToMS(&adm.Pools[b.Path], &job))
	}
	upTo = max(upTo, p.offer.SlackMS())
	if r.at.Equal(at) && upTo < r.slackMS {
		return // the same call refused one with more
	}
	r.at, r.slackMS = at, upTo
	r.state, r.class, r.limits = slackgate.Snapshot{Pools: adm.Pools}, p.class, p.limits
	r.asked = [slackgate.NumPaths]bool{}
	for i := range p.offer.Bounds {
		if b := &p.offer.Bounds[i]; b.Path != slackgate.Reject {
			r.asked[b.Path] = b.Laddered && adm.Pools[b.Path].Capacity > 0
		}
	}
}

// forget drops every refusal: the gate cannot know.
func (a *Admitter) forget() {
	a.fresh.mu.Lock()
	defer a.fresh.mu.Unlock()
	a.fresh.kinds = nil
}

// tell has the store hear of what was refused without asking it.
func (a *Admitter) tell(ctx context.Context) {
	if !a.anyUntold() {
		return
	}
	if _, err := a.offer(ctx, nil, atOnce); err != nil {
		a.Log.Warn("refusals not counted", "error", err)
	}
}
