package simulate

import (
	"slices"
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
	serve, workers := s.Start(jobs, seed), s.workers()
	if s.Times == Equal {
		t := timesOf(serve)
		b.Bound = min(len(jobs), slots(jobs, &t, workers), fluid(jobs, &t, workers))
		if len(w.Classes) == 0 {
			b.PaidCalls = max(0, b.Bound-freeAlone(jobs, &t, workers[slackgate.Free]))
		}
		return b
	}
	b.Ceiling = ceiling(jobs, serve, workers)
	if s.Times == ByStart {
		b.Bound = reach(jobs, serve, workers)
	}
	return b
}

// times are the equal services of each pool.
type times struct{ first, hold [slackgate.NumPaths]int64 }

func timesOf(serve func(*Call) Served) (t times) {
	for _, path := range slackgate.Paths {
		v := serve(&Call{Path: path})
		t.first[path], t.hold[path] = v.FirstMS, v.HoldMS
	}
	return t
}

// latestAtMS is the last instant at which a job may start in a pool and be usable.
func (t *times) latestAtMS(j *Arrival, path slackgate.Path) int64 {
	return min(j.firstDueAtMS()-t.first[path], j.lastDueAtMS()-t.hold[path])
}

// slots counts how often each worker can start between the first arrival and
// the last useful start.
func slots(jobs []Arrival, t *times, workers [slackgate.NumPaths]int) int {
	n := 0
	for _, path := range slackgate.Paths {
		last := int64(-1)
		for i := range jobs {
			last = max(last, t.latestAtMS(&jobs[i], path))
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
			end = max(end, t.latestAtMS(&jobs[i], path)+t.hold[path])
		}
		at := sort.Search(len(open), func(k int) bool { return open[k].end > end })
		open = slices.Insert(open, at, part{end, 1})
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
		w := slices.Index(free, slices.Min(free))
		start := max(free[w], jobs[i].AtMS)
		if start <= t.latestAtMS(&jobs[i], slackgate.Free) {
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
func ceiling(jobs []Arrival, serve func(*Call) Served, size [slackgate.NumPaths]int) int {
	type worker struct {
		path     slackgate.Path
		freeAtMS int64
	}
	var workers []worker
	for _, path := range slackgate.Paths {
		for range size[path] {
			workers = append(workers, worker{path: path})
		}
	}
	usable, arrived, taken := 0, 0, 0
	firstDue, lastDue := int64(-1), int64(-1) // of the newest job
	for {
		w := &workers[0]
		for k := range workers {
			if workers[k].freeAtMS < w.freeAtMS {
				w = &workers[k]
			}
		}
		now := w.freeAtMS
		for arrived < len(jobs) && jobs[arrived].AtMS <= now {
			firstDue, lastDue = max(firstDue, jobs[arrived].firstDueAtMS()), max(lastDue, jobs[arrived].lastDueAtMS())
			arrived++
		}
		for taken < arrived && jobs[taken].firstDueAtMS() <= now {
			taken++
		}
		if taken == arrived {
			if arrived == len(jobs) {
				return usable
			}
			w.freeAtMS = jobs[arrived].AtMS
			continue
		}
		v := serve(&Call{Job: taken, Path: w.path, AtMS: now, SlackMS: firstDue - now, LeftMS: lastDue - now})
		w.freeAtMS = now + max(v.HoldMS, 1)
		if v.Fate == Answered && now+v.FirstMS <= firstDue && w.freeAtMS <= lastDue {
			usable++
		}
		taken++
	}
}

// reachStepMS is the grid on which [reach] looks for the fastest call, reachJobs
// how many jobs' calls stand for all of them.
const (
	reachStepMS = 50
	reachJobs   = 8
)

// reach is the most calls that workers could bring to a useful end between the
// first arrival and the last due time, where services depend on the time of the
// call and not on the job: each worker takes the fastest call it can have now
// or, if waiting pays, a little later. It asks nothing of deadlines in between,
// so that it may be more than can be had, and is never less.
func reach(jobs []Arrival, serve func(*Call) Served, size [slackgate.NumPaths]int) int {
	from, firstDue, lastDue := jobs[0].AtMS, int64(0), int64(0)
	for i := range jobs {
		firstDue = max(firstDue, jobs[i].firstDueAtMS())
		lastDue = max(lastDue, jobs[i].lastDueAtMS())
	}
	n := 0
	for _, path := range slackgate.Paths {
		if size[path] == 0 {
			continue
		}
		fastest := func(at int64) int64 {
			end := lastDue + 1
			for i := 0; i < len(jobs); i += max(1, len(jobs)/reachJobs) {
				v := serve(&Call{Job: i, Path: path, AtMS: at, SlackMS: firstDue - at, LeftMS: lastDue - at})
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
		for now := from; now <= firstDue; n += size[path] {
			end := min(fastest(now), later[(now-from)/reachStepMS+1])
			if end > lastDue {
				break
			}
			now = max(now+1, end)
		}
	}
	return min(n, len(jobs))
}
