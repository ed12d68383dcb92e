package simulate

import (
	"math/rand/v2"
	"sort"

	"leeway/slackgate"
)

// Best is what no schedule can beat in one run; a field that cannot be worked
// out for the kind of run is -1.
type Best struct {
	// Bound is the most jobs that any schedule, knowing everything from the
	// start, could have made usable: where all services in a pool are equal,
	// the smallest of the jobs offered, the slots that the workers have, and
	// what a fluid that pours into all of them at once would fill.
	Bound int
	// Ceiling is, for services that are not known beforehand, what workers
	// achieve that are never idle while a job is left that is not yet due.
	Ceiling int
	// PaidCalls is the fewest calls of the paid backend with which Bound jobs
	// are usable.
	PaidCalls int
}

// BestPossible works out the best for a run.
func BestPossible(w Workload, s Service, seed uint64) Best {
	jobs := w.Make(seed)
	b := Best{Bound: -1, Ceiling: -1, PaidCalls: -1}
	if len(jobs) == 0 {
		return b
	}
	if s.Serve != nil {
		b.Ceiling = ceiling(jobs, &s, seed)
		if !s.Random {
			b.Bound = reach(jobs, &s)
		}
		return b
	}
	if s.Random || s.SlowBy > 0 {
		b.Ceiling = ceiling(jobs, &s, seed)
		return b
	}
	t := timesOf(&s, &jobs[0])
	b.Bound = min(len(jobs), slots(jobs, &t, s.workers()), fluid(jobs, &t, s.workers()))
	if len(w.Classes) == 0 {
		b.PaidCalls = max(0, b.Bound-freeAlone(jobs, &t, s.workers()[slackgate.Free]))
	}
	return b
}

// times are the equal services of each pool.
type times struct{ first, hold [slackgate.NumPaths]int64 }

func timesOf(s *Service, job *Arrival) (t times) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, path := range slackgate.Paths {
		t.first[path], t.hold[path] = s.Draw(rng, path, job)
	}
	return t
}

// latest is the last instant at which a job may start in a pool and be usable.
func (t *times) latest(j *Arrival, path slackgate.Path) int64 {
	return j.AtMS + min(j.DeadlineMS-j.ReserveMS-t.first[path], j.DeadlineMS-t.hold[path])
}

// slots counts how often each worker can start between the first arrival and
// the last useful start.
func slots(jobs []Arrival, t *times, workers [slackgate.NumPaths]int) int {
	n := 0
	for _, path := range slackgate.Paths {
		last := int64(-1)
		for i := range jobs {
			last = max(last, t.latest(&jobs[i], path))
		}
		if span := last - jobs[0].AtMS; span >= 0 {
			n += workers[path] * int(span/t.hold[path]+1)
		}
	}
	return n
}

// fluid serves the jobs as one fluid, the earliest due first, at the rate of all
// workers together, each job until the last instant at which any pool could
// still be working on it. Every real schedule is one of these with less freedom.
func fluid(jobs []Arrival, t *times, workers [slackgate.NumPaths]int) int {
	rate := 0.0 // jobs a millisecond
	for _, path := range slackgate.Paths {
		rate += float64(workers[path]) / float64(t.hold[path])
	}
	type part struct {
		end  int64
		left float64
	}
	var open []part // by end
	served, now := 0.0, float64(jobs[0].AtMS)
	serve := func(until float64) {
		for now < until && len(open) > 0 {
			p := &open[0]
			stop := min(until, float64(p.end))
			can := max(0, stop-now) * rate
			if can >= p.left {
				served += p.left
				now += p.left / rate
				open = open[1:]
				continue
			}
			served += can
			p.left -= can
			now = max(now, stop)
			if until >= float64(p.end) {
				open = open[1:]
			}
		}
		now = max(now, until)
	}
	last := int64(0)
	for i := range jobs {
		serve(float64(jobs[i].AtMS))
		end := int64(-1)
		for _, path := range slackgate.Paths {
			end = max(end, t.latest(&jobs[i], path)+t.hold[path])
		}
		at := sort.Search(len(open), func(k int) bool { return open[k].end > end })
		open = append(open, part{})
		copy(open[at+1:], open[at:])
		open[at] = part{end, 1}
		last = max(last, end)
	}
	serve(float64(last))
	return int(served + 1e-6)
}

// freeAlone is the most jobs the free pool can make usable on its own. With
// equal services and deadlines in order of arrival, taking each job that can
// still start in time is best.
func freeAlone(jobs []Arrival, t *times, workers int) int {
	free := make([]int64, workers)
	n := 0
	for i := range jobs {
		w := 0
		for k := range free {
			if free[k] < free[w] {
				w = k
			}
		}
		start := max(free[w], jobs[i].AtMS)
		if start <= t.latest(&jobs[i], slackgate.Free) {
			free[w] = start + t.hold[slackgate.Free]
			n++
		}
	}
	return n
}

// ceiling plays the run with workers that are never idle while there is a job
// that can still be started, know nothing of its service, and owe each answer
// only by the time at which that of the newest job is due: jobs whose services
// are not known are as good as each other.
func ceiling(jobs []Arrival, s *Service, seed uint64) int {
	var first, hold [][slackgate.NumPaths]int64
	if s.Serve == nil {
		first, hold = draw(jobs, s, seed)
	}
	type worker struct {
		path slackgate.Path
		free int64
	}
	var workers []worker
	for _, path := range slackgate.Paths {
		for range s.workers()[path] {
			workers = append(workers, worker{path: path})
		}
	}
	due := func(i int) int64 { return jobs[i].AtMS + jobs[i].DeadlineMS - jobs[i].ReserveMS }
	usable, arrived, taken := 0, 0, 0
	newest, last := int64(-1), int64(-1)
	for {
		w := &workers[0]
		for k := range workers {
			if workers[k].free < w.free {
				w = &workers[k]
			}
		}
		now := w.free
		for arrived < len(jobs) && jobs[arrived].AtMS <= now {
			newest, last = max(newest, due(arrived)), max(last, jobs[arrived].AtMS+jobs[arrived].DeadlineMS)
			arrived++
		}
		for taken < arrived && due(taken) <= now {
			taken++
		}
		if taken == arrived {
			if arrived == len(jobs) {
				return usable
			}
			w.free = jobs[arrived].AtMS
			continue
		}
		var firstAt int64
		fate := Answered
		if s.Serve != nil {
			v := s.Serve(&Call{Job: taken, Path: w.path, AtMS: now, SlackMS: newest - now, LeftMS: last - now})
			firstAt, fate, w.free = now+min(v.FirstMS, farMS), v.Fate, now+max(v.HoldMS, 1)
		} else {
			by := s.slowness(now)
			firstAt = now + int64(float64(first[taken][w.path])*by)
			w.free = now + int64(float64(hold[taken][w.path])*by)
		}
		if fate == Answered && firstAt <= newest && w.free <= last {
			usable++
		}
		taken++
	}
}

// slowness is the factor for a call that starts at ms.
func (s *Service) slowness(ms int64) float64 {
	if s.SlowBy > 0 && ms >= s.SlowFromMS {
		return s.SlowBy
	}
	return 1
}

// reachStepMS is the grid on which [reach] looks for the fastest call.
const reachStepMS = 50

// reach is the most calls that workers could bring to a useful end between the
// first arrival and the last due time, where services depend on the time of the
// call and not on the job: each worker takes the fastest call it can have now
// or, if waiting pays, a little later. It asks nothing of deadlines in between,
// so that it may be more than can be had, and is never less.
func reach(jobs []Arrival, s *Service) int {
	from, firstDue, lastDue := jobs[0].AtMS, int64(0), int64(0)
	for i := range jobs {
		firstDue = max(firstDue, jobs[i].AtMS+jobs[i].DeadlineMS-jobs[i].ReserveMS)
		lastDue = max(lastDue, jobs[i].AtMS+jobs[i].DeadlineMS)
	}
	n := 0
	for _, path := range slackgate.Paths {
		workers := s.workers()[path]
		if workers == 0 {
			continue
		}
		fastest := func(at int64) int64 {
			end := lastDue + 1
			for i := 0; i < len(jobs); i += max(1, len(jobs)/reachJobs) {
				v := s.Serve(&Call{Job: i, Path: path, AtMS: at, SlackMS: firstDue - at, LeftMS: lastDue - at})
				if v.Fate == Answered && at+v.FirstMS <= firstDue {
					end = min(end, at+max(v.HoldMS, 1))
				}
			}
			return end
		}
		// later[k] is the soonest end of a call that starts k steps on, or
		// after that.
		later := make([]int64, (firstDue-from)/reachStepMS+2)
		soonest := lastDue + 1
		for k := len(later) - 1; k >= 0; k-- {
			soonest = min(soonest, fastest(from+int64(k)*reachStepMS))
			later[k] = soonest
		}
		for now := from; now <= firstDue; n += workers {
			end := min(fastest(now), later[(now-from)/reachStepMS+1])
			if end > lastDue {
				break
			}
			now = max(now+1, end)
		}
	}
	return min(n, len(jobs))
}

// reachJobs is how many jobs' calls stand for all of them.
const reachJobs = 8
