package simulate

import (
	"fmt"
	"math/rand/v2"

	"leeway/rehearsal/trace"
	"leeway/slackgate"
)

// Arrival is one job of a workload.
type Arrival struct {
	// AtMS is when the job is submitted, counted from the start of the run.
	AtMS int64
	// DeadlineInMS counts from AtMS, as in a submission. ReserveMS of it are
	// kept back.
	DeadlineInMS, ReserveMS int64
	// Prefer is the class's order of pools.
	Prefer [2]slackgate.Path
	// Class tells the parts of a mixed workload apart, from 0.
	Class int
	// InputTokens and OutputTokens are the job's size, where the workload
	// knows it; a service model may use it.
	InputTokens, OutputTokens int
}

// firstDueAtMS is when the first byte is due, lastDueAtMS when the last is.
func (a *Arrival) firstDueAtMS() int64 { return a.lastDueAtMS() - a.ReserveMS }
func (a *Arrival) lastDueAtMS() int64  { return a.AtMS + a.DeadlineInMS }

// Workload makes the arrivals of one run from a seed.
type Workload struct {
	Name string
	// Classes names the parts of a mixed workload.
	Classes []string
	// Slices is the number of different runs there are, where the arrivals are
	// not drawn; 0: every seed gives another. 1: all are the same.
	Slices int
	// Make returns the arrivals in order of time. Seeds count from 1.
	Make func(seed uint64) []Arrival
}

// arrivalsFrom is the source of a seed's arrivals; its services have another.
func arrivalsFrom(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// PaidFirst and FreeFirst are the two orders of preference.
var (
	PaidFirst = [2]slackgate.Path{slackgate.Paid, slackgate.Free}
	FreeFirst = [2]slackgate.Path{slackgate.Free, slackgate.Paid}
)

// The article's job: 15 s of deadline, 2 s of them in reserve.
const (
	articleReserveMS = slackgate.ArticleReserveMS
	articleSeconds   = 90
	articlePerSecond = 8
	articleJobs      = articleSeconds * articlePerSecond
)

func articleJob(atMS int64) Arrival {
	return Arrival{AtMS: atMS, DeadlineInMS: slackgate.ArticleDeadlineMS, ReserveMS: articleReserveMS, Prefer: PaidFirst}
}

// DeclaredWorkload is the article's: eight jobs a second for ninety seconds,
// evenly spaced.
func DeclaredWorkload() Workload {
	return Workload{Name: "declared", Slices: 1, Make: func(uint64) []Arrival {
		jobs := make([]Arrival, articleJobs)
		for i := range jobs {
			jobs[i] = articleJob(int64(i) * 1000 / articlePerSecond)
		}
		return jobs
	}}
}

// BurstWorkload submits size jobs at once every periodMS, for ninety seconds.
func BurstWorkload(size int, periodMS int64) Workload {
	name := fmt.Sprintf("bursts of %d each %g s", size, float64(periodMS)/1000)
	return Workload{Name: name, Slices: 1, Make: func(uint64) []Arrival {
		var jobs []Arrival
		for at := int64(0); at < articleSeconds*1000; at += periodMS {
			for range size {
				jobs = append(jobs, articleJob(at))
			}
		}
		return jobs
	}}
}

// PoissonWorkload submits the article's jobs at random, perSecond on average,
// for seconds.
func PoissonWorkload(perSecond float64, seconds int, prefer [2]slackgate.Path) Workload {
	name := fmt.Sprintf("poisson %g/s", perSecond)
	if prefer == FreeFirst {
		name += ", free-first"
	}
	return Workload{Name: name, Make: func(seed uint64) []Arrival {
		jobs := poisson(seed, perSecond, seconds)
		for i := range jobs {
			jobs[i].Prefer = prefer
		}
		return jobs
	}}
}

func poisson(seed uint64, perSecond float64, seconds int) (jobs []Arrival) {
	rng := arrivalsFrom(seed)
	for at := rng.ExpFloat64() / perSecond; at < float64(seconds); at += rng.ExpFloat64() / perSecond {
		jobs = append(jobs, articleJob(int64(at*1000)))
	}
	return jobs
}

// MixedWorkload is a Poisson stream of the article's jobs beside a batch that
// is submitted at the start, is due after seconds and prefers the free pool.
func MixedWorkload(perSecond float64, seconds, batch int) Workload {
	return Workload{
		Name:    fmt.Sprintf("mixed %g/s beside %d", perSecond, batch),
		Classes: []string{"stream", "batch"},
		Make: func(seed uint64) []Arrival {
			jobs := make([]Arrival, 0, batch)
			for range batch {
				jobs = append(jobs, Arrival{DeadlineInMS: int64(seconds) * 1000, ReserveMS: articleReserveMS, Prefer: FreeFirst, Class: 1})
			}
			return append(jobs, poisson(seed, perSecond, seconds)...)
		},
	}
}

// TraceSlices is the number of different runs that a trace gives.
func TraceSlices(requests []trace.Request) int { return max(1, (len(requests)-1)/articleJobs) }

// TraceWorkload plays slices of a trace, 720 requests each, as the article's
// jobs, with time scaled so that eight a second arrive on average. Seed n takes
// slice n, counted from 1 and beginning anew after the last.
func TraceWorkload(name string, requests []trace.Request) Workload {
	n := TraceSlices(requests)
	return Workload{Name: name, Slices: n, Make: func(seed uint64) []Arrival {
		from := int((seed-1)%uint64(n)) * articleJobs
		end := min(from+articleJobs, len(requests))
		return scaled(requests[from:end], requests[min(end, len(requests)-1)].AtUS, articlePerSecond)
	}}
}

// WholeTraceWorkload plays a trace from its first request to its last as the
// article's jobs, with time scaled so that perSecond arrive on average.
func WholeTraceWorkload(name string, requests []trace.Request, perSecond float64) Workload {
	return Workload{
		Name: fmt.Sprintf("%s at %g/s", name, perSecond), Slices: 1,
		Make: func(uint64) []Arrival { return scaled(requests, requests[len(requests)-1].AtUS, perSecond) },
	}
}

// scaled are requests as the article's jobs, perSecond on average. Their time
// ends at endAtUS.
func scaled(requests []trace.Request, endAtUS int64, perSecond float64) []Arrival {
	span := endAtUS - requests[0].AtUS
	jobs := make([]Arrival, len(requests))
	for i, r := range requests {
		at := 0.0
		if span > 0 {
			at = float64(r.AtUS-requests[0].AtUS) / float64(span) * float64(len(requests)) / perSecond * 1000
		}
		jobs[i] = articleJob(int64(at))
		jobs[i].InputTokens, jobs[i].OutputTokens = r.InputTokens, r.OutputTokens
	}
	return jobs
}
