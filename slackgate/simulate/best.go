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
	if s.Random || s.SlowBy > 0 {
		b.Ceiling = ceiling(jobs, &s, seed)
		return b
	}
	t := timesOf(&s, &jobs[0])
	b.Bound = min(len(jobs), slots(jobs, &t), fluid(jobs, &t))
	if len(w.Classes) == 0 {
		b.PaidCalls = max(0, b.Bound-freeAlone(jobs, &t))
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
func slots(jobs []Arrival, t *times) int {
	n := 0
	for _, path := range slackgate.Paths {
		last := int64(-1)
		for i := range jobs {
			last = max(last, t.latest(&jobs[i], path))
		}
		if span := last - jobs[0].AtMS; span >= 0 {
			n += Workers[path] * int(span/t.hold[path]+1)
		}
	}
	return n
}

// fluid serves the jobs as one fluid, the earliest due first, at the rate of all
// workers together, each job until the last instant at which any pool could
// still be working on it. Every real schedule is one of these with less freedom.
func fluid(jobs []Arrival, t *times) int {
	rate := 0.0 // jobs a millisecond
	for _, path := range slackgate.Paths {
		rate += float64(Workers[path]) / float64(t.hold[path])
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
func freeAlone(jobs []Arrival, t *times) int {
	free := make([]int64, Workers[slackgate.Free])
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
	first, hold := draw(jobs, s, seed)
	type worker struct {
		path slackgate.Path
		free int64
	}
	var workers []worker
	for _, path := range slackgate.Paths {
		for range Workers[path] {
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
		by := s.slowness(now)
		w.free = now + int64(float64(hold[taken][w.path])*by)
		if now+int64(float64(first[taken][w.path])*by) <= newest && w.free <= last {
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
