package simulate

import (
	"math"

	"leeway/slackgate"
)

// probeTimeoutMS bounds a probe, as the workers do.
const probeTimeoutMS = 30_000

// probing is one pool's probes: one at a time, every [slackgate.ProbeEveryMS].
type probing struct {
	nextAtMS         int64 // when the pool is looked at next
	startMS, endAtMS int64 // of the probe under way; endAtMS 0: none
	cut              bool
}

// nextProbe is when a probe in the shard ends, or may begin.
func (r *run) nextProbe(sh *shard) int64 {
	next := int64(math.MaxInt64)
	for _, path := range slackgate.Paths {
		switch p := sh.pools[path]; {
		case r.service.ProbeMS == nil || p.learner == nil || p.workers == 0:
		case p.probing.endAtMS > 0:
			next = min(next, p.probing.endAtMS)
		default:
			next = min(next, max(p.probing.nextAtMS, startAtMS))
		}
	}
	return next
}

// probe ends a probe that is due, and begins one if the pool is closed by its own
// measurement.
func (r *run) probe(p *pool, now int64) {
	if r.service.ProbeMS == nil || p.learner == nil || p.workers == 0 {
		return
	}
	if b := &p.probing; b.endAtMS > 0 && b.endAtMS <= now {
		p.learner.first.add(now-b.startMS, now, b.cut)
		p.learner.hold.add(now-b.startMS, now, b.cut)
		p.learner.readAtMS, b.endAtMS = 0, 0
	}
	if p.probing.endAtMS > 0 || now < p.probing.nextAtMS {
		return
	}
	p.probing.nextAtMS = now - now%slackgate.ProbeEveryMS + slackgate.ProbeEveryMS
	p.refresh(now)
	job := slackgate.Job{ReserveMS: r.reserveMS}
	if p.belief.NeedMS(&job) > r.horizonMS-r.reserveMS {
		ms := r.service.ProbeMS(p.path, now-startAtMS)
		p.probing.startMS, p.probing.endAtMS, p.probing.cut = now, now+max(1, min(ms, probeTimeoutMS)), ms > probeTimeoutMS
	}
}
