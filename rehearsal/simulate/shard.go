package simulate

import (
	"fmt"
	"math"
	"math/rand/v2"

	"leeway/slackgate"
)

// Sharding is how a run's pools are split. Each shard has its part of every
// pool's workers and a gate that knows of nothing else; a job stays in the shard
// that it was submitted to.
type Sharding struct {
	// Shards is their number, at least 1.
	Shards int
	// Choices is among how many of them, taken at random, a job goes to the one
	// in which it would wait least: 1 or 2.
	Choices int
	// ViewAgeMS is how old the view may be by which two shards are compared. It
	// is taken anew by the first job that finds it older. 0: every job sees what
	// is. The gate itself always decides on what is.
	ViewAgeMS int64
}

// MaxShards is the largest number of shards of a run.
const MaxShards = 64

// Check reports why a service's workers cannot be split so.
func (over Sharding) Check(s *Service) error {
	switch {
	case over.Shards < 1 || over.Shards > MaxShards:
		return fmt.Errorf("simulate: %d shards: must be from 1 to %d", over.Shards, MaxShards)
	case over.Choices != 1 && over.Choices != 2:
		return fmt.Errorf("simulate: %d choices: must be 1 or 2", over.Choices)
	case over.ViewAgeMS < 0:
		return fmt.Errorf("simulate: a view of %d ms: must not be negative", over.ViewAgeMS)
	}
	workers := s.workers()
	for _, path := range slackgate.Paths {
		if workers[path] < over.Shards {
			return fmt.Errorf("simulate: the %s pool has %d workers, fewer than %d shards", path, workers[path], over.Shards)
		}
	}
	return nil
}

// shard is a part of every pool, with a gate state of its own.
type shard struct {
	pools [slackgate.NumPaths]*pool
	// view is what whoever compares shards knows of this one, as of viewAtMS.
	view     *shard
	viewAtMS int64
}

// chooser picks shards.
type chooser struct {
	Sharding
	rng      *rand.Rand
	idleAtMS int64 // the instant up to which idle slots are counted
}

// split makes the shards.
func (r *run) split(over Sharding, seed uint64) {
	r.choice = chooser{Sharding: over, rng: rand.New(rand.NewPCG(seed, 3)), idleAtMS: startAtMS}
	workers := r.service.workers()
	for i := range over.Shards {
		sh := &shard{view: &shard{}, viewAtMS: math.MinInt64}
		for _, path := range slackgate.Paths {
			p := &pool{path: path, belief: r.service.Belief[path], list: r.policy.ListOrder}
			p.workers = slackgate.Part(workers[path], i, over.Shards)
			if r.policy.Learn {
				p.learner = newLearner(&r.service.Belief[path])
				p.belief = p.learner.belief(startAtMS, nil)
			}
			sh.pools[path] = p
			sh.view.pools[path] = &pool{path: path, list: p.list, workers: p.workers}
		}
		r.shards = append(r.shards, sh)
	}
}

// nextEnd is when the next call in the shard ends.
func (sh *shard) nextEnd() int64 {
	end := int64(math.MaxInt64)
	for _, path := range slackgate.Paths {
		for i := range sh.pools[path].running {
			end = min(end, sh.pools[path].running[i].doneAtMS)
		}
	}
	return end
}

// waiting counts the jobs that wait in the shard.
func (sh *shard) waiting() int {
	n := 0
	for _, path := range slackgate.Paths {
		n += len(sh.pools[path].queue)
	}
	return n
}

// choose returns the shard that a new job goes to: of those taken at random the
// one in which it would wait least, and of equals the one where fewer wait. In
// one that would refuse it, it would wait for ever.
func (r *run) choose(job int, now int64) *shard {
	n := len(r.shards)
	if n == 1 {
		return r.shards[0]
	}
	// Both are drawn whatever the choices, so that runs differ in nothing else.
	first, second := r.choice.rng.IntN(n), r.choice.rng.IntN(n-1)
	if second >= first {
		second++
	}
	a, b := r.shards[first], r.shards[second]
	if r.choice.Choices == 1 {
		return a
	}
	waitA, waitingA := r.look(a, job, now)
	waitB, waitingB := r.look(b, job, now)
	if waitB < waitA || waitB == waitA && waitingB < waitingA {
		return b
	}
	return a
}

// look is how long a job would wait in a shard, and how many wait there, as far
// as whoever chooses can see.
func (r *run) look(sh *shard, job int, now int64) (waitMS int64, waiting int) {
	if r.choice.ViewAgeMS == 0 {
		return r.waitIn(sh, job, now, now), sh.waiting()
	}
	if now-r.choice.ViewAgeMS > sh.viewAtMS {
		sh.viewAtMS = now
		for _, path := range slackgate.Paths {
			from, to := sh.pools[path], sh.view.pools[path]
			from.refresh(now)
			to.belief = from.belief
			to.queue = append(to.queue[:0], from.queue...)
			to.running = append(to.running[:0], from.running...)
		}
	}
	return r.waitIn(sh.view, job, sh.viewAtMS, now), sh.view.waiting()
}

// waitIn is how long a job would wait in a shard that stands as it stood at
// asOf, by its gate.
func (r *run) waitIn(sh *shard, i int, asOf, now int64) int64 {
	// The job has the slack that it has; only the shard is older.
	job := r.jobs[i]
	job.DeadlineAtMS -= now - asOf
	if res := r.ask(sh, job, asOf); res.Admitted() {
		return res.PredictedWaitMS
	}
	return math.MaxInt64
}

// countIdle counts, up to now, the slots that stood idle while a job waited for
// the same pool in another shard. Within one shard there are none.
func (r *run) countIdle(now int64) {
	ms := now - r.choice.idleAtMS
	r.choice.idleAtMS = now
	if len(r.shards) == 1 || ms <= 0 {
		return
	}
	for _, path := range slackgate.Paths {
		idle, waiting := 0, 0
		for _, sh := range r.shards {
			idle += sh.pools[path].workers - len(sh.pools[path].running)
			waiting += len(sh.pools[path].queue)
		}
		r.out.IdleWhileWaitingMS += int64(min(idle, waiting)) * ms
	}
}
