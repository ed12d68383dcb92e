package simulate

import (
	"sort"

	"leeway/slackgate"
)

// waiting is one job in a pool's order.
type waiting struct {
	urgency int64
	job     int
}

// call is one job on a worker.
type call struct {
	job                            int
	startAtMS, firstAtMS, doneAtMS int64
	firstNoted                     bool // the learner knows the first byte
	cut                            bool // ended before its time, in vain
	fate                           Fate
}

// pool is one pool's workers and queue.
type pool struct {
	path    slackgate.Path
	queue   []waiting // in the order in which they will be taken
	running []call
	ages    []int64
	ladder  slackgate.Ladder
	belief  slackgate.Belief
	learner *learner
	probing probing
	nowMS   int64
	list    bool
	workers int
}

// Before implements [slackgate.Counter].
func (p *pool) Before(atMS int64) int64 {
	if atMS == slackgate.Unbounded || p.list {
		return int64(len(p.queue))
	}
	limit := p.nowMS + atMS
	return int64(sort.Search(len(p.queue), func(i int) bool { return p.queue[i].urgency >= limit }))
}

// place is where in the order a newcomer goes.
func (p *pool) place(urgency int64) int {
	if p.list {
		return len(p.queue)
	}
	return sort.Search(len(p.queue), func(i int) bool { return p.queue[i].urgency > urgency })
}

// refresh brings ages and, when learning, the belief up to now.
func (p *pool) refresh(now int64) {
	p.nowMS = now
	p.ages = p.ages[:0]
	for i := range p.running {
		p.ages = append(p.ages, now-p.running[i].startAtMS)
	}
	if p.learner != nil {
		p.belief = p.learner.belief(now, p.running)
	}
}
