package simulate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"leeway/slackgate"
)

// Arrival is one job of a workload.
type Arrival struct {
	// AtMS is when the job is submitted, counted from the start of the run.
	AtMS int64
	// DeadlineMS and ReserveMS count from AtMS, as in a submission.
	DeadlineMS, ReserveMS int64
	// Prefer is the class's order of pools.
	Prefer [2]slackgate.Path
	// Class tells the parts of a mixed workload apart, from 0.
	Class int
	// InputTokens and OutputTokens are the job's size, where the workload
	// knows it; a service model may use it.
	InputTokens, OutputTokens int
}

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
	articleDeadlineMS = slackgate.ArticleDeadlineMS
	articleReserveMS  = slackgate.ArticleReserveMS
	articleSeconds    = 90
	articlePerSecond  = 8
	articleJobs       = articleSeconds * articlePerSecond
)

func articleJob(atMS int64) Arrival {
	return Arrival{AtMS: atMS, DeadlineMS: articleDeadlineMS, ReserveMS: articleReserveMS, Prefer: PaidFirst}
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
		return poisson(arrivalsFrom(seed), perSecond, seconds, func(at int64) Arrival {
			j := articleJob(at)
			j.Prefer = prefer
			return j
		})
	}}
}

func poisson(rng *rand.Rand, perSecond float64, seconds int, job func(int64) Arrival) []Arrival {
	var jobs []Arrival
	for at := rng.ExpFloat64() / perSecond; at < float64(seconds); at += rng.ExpFloat64() / perSecond {
		jobs = append(jobs, job(int64(at*1000)))
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
			jobs := make([]Arrival, 0, batch+int(perSecond*float64(seconds)*1.2))
			for range batch {
				jobs = append(jobs, Arrival{
					DeadlineMS: int64(seconds) * 1000, ReserveMS: articleReserveMS, Prefer: FreeFirst, Class: 1,
				})
			}
			return append(jobs, poisson(arrivalsFrom(seed), perSecond, seconds, articleJob)...)
		},
	}
}

// Service says how long the backends take.
type Service struct {
	Name string
	// Draw returns first byte and hold of a job in a pool. The same rng state
	// gives the same times, so that every policy meets the same backends.
	Draw func(rng *rand.Rand, path slackgate.Path, job *Arrival) (firstByteMS, holdMS int64)
	// Belief is what is true of the pool before any slowdown.
	Belief [slackgate.NumPaths]slackgate.Belief
	// Random is set when the times are not known before the call.
	Random bool
	// SlowFromMS and SlowBy: calls that start from then on take SlowBy times
	// as long. SlowBy 0: no slowdown.
	SlowFromMS int64
	SlowBy     float64
	// Workers is how many workers each pool has. Defaults to [Workers].
	Workers [slackgate.NumPaths]int
	// Serve, if set, takes the place of Draw and of the slowdown: it says what
	// a call comes to, with the time of its start in hand. It must give the
	// same answer to the same question.
	Serve func(c *Call) Served
	// Closed, if set, tells whether an operator has closed a pool by then.
	Closed func(path slackgate.Path, atMS int64) bool
}

// Call is one job on a worker, as [Service].Serve sees it.
type Call struct {
	// Job is its place in the arrivals.
	Job  int
	Path slackgate.Path
	// AtMS is when the worker takes it, from the start of the run.
	AtMS int64
	// SlackMS is what is left then for the first byte, LeftMS for the last.
	// They may be negative where nothing checks them.
	SlackMS, LeftMS int64
	// Patient is set under a policy that waits for the answer however late.
	Patient bool
}

// Served is what a call comes to. Times count from its start.
type Served struct {
	// FirstMS is when the first byte of answer text comes; [Never]: none does.
	FirstMS int64
	// HoldMS is how long the worker is taken, at least 1.
	HoldMS int64
	// Fate says what came.
	Fate Fate
	// Backend gave the end, after so many attempts; for the record.
	Backend  string
	Attempts int
}

// Fate is how a call ends, apart from when.
type Fate uint8

// The fates. Only an answered call can be usable.
const (
	Answered Fate = iota
	Empty         // finished without answer text
	Broken        // an error, a cut, or no answer at all
)

// Never is the time of a first byte that does not come.
const Never = farMS

// farMS is beyond every deadline and still adds to any instant.
const farMS = int64(1) << 50

// workers are the service's own, or the article's.
func (s *Service) workers() [slackgate.NumPaths]int {
	if s.Workers == ([slackgate.NumPaths]int{}) {
		return Workers
	}
	return s.Workers
}

// p95MS are the article's declared first bytes.
var p95MS = [slackgate.NumPaths]int64{
	slackgate.Paid: slackgate.ArticlePaidP95FirstByteMS,
	slackgate.Free: slackgate.ArticleFreeP95FirstByteMS,
}

// FixedService takes exactly the declared p95 to the first byte, and holdMS
// longer to the last.
func FixedService(holdMS int64) Service {
	s := Service{Name: "fixed", Draw: func(_ *rand.Rand, path slackgate.Path, _ *Arrival) (int64, int64) {
		return p95MS[path], p95MS[path] + holdMS
	}}
	if holdMS > 0 {
		s.Name = fmt.Sprintf("fixed, hold +%g s", float64(holdMS)/1000)
	}
	for _, path := range slackgate.Paths {
		s.Belief[path] = slackgate.FixedBelief(p95MS[path], p95MS[path]+holdMS)
	}
	return s
}

// LognormalService draws lognormal first bytes whose 95th percentile is the
// declared one; the answer follows at once.
func LognormalService(sigma float64) Service {
	s := Service{Name: fmt.Sprintf("lognormal %g", sigma), Random: true}
	s.Draw = func(rng *rand.Rand, path slackgate.Path, _ *Arrival) (int64, int64) {
		const z95 = 1.6448536269514722
		ms := float64(p95MS[path]) * math.Exp(sigma*(rng.NormFloat64()-z95))
		t := max(1, int64(math.Round(ms)))
		return t, t
	}
	for _, path := range slackgate.Paths {
		d := slackgate.Lognormal(float64(p95MS[path]), sigma)
		s.Belief[path] = slackgate.Belief{FirstByte: d, Hold: d}
	}
	return s
}

// SlowedService is s, by a factor slower from fromMS on.
func SlowedService(s Service, fromMS int64, factor float64) Service {
	s.Name = fmt.Sprintf("%s, x%g from %g s", s.Name, factor, float64(fromMS)/1000)
	s.SlowFromMS, s.SlowBy = fromMS, factor
	return s
}

// TokenService takes time in proportion to a job's tokens: the prompt is read
// before the first byte, the answer written after it, and a token written costs
// as much as writeCost tokens read. The 95th percentile of the first byte over
// the given requests is the declared one. The gate, which does not look at
// sizes, believes in the distribution over all of them.
func TokenService(requests []Request, writeCost float64) Service {
	read := make([]float64, len(requests))
	all := make([]float64, len(requests))
	for i, r := range requests {
		read[i] = float64(r.InputTokens) + fixedTokens
		all[i] = read[i] + writeCost*float64(r.OutputTokens)
	}
	p95 := percentile95(read)
	s := Service{Name: tokenServiceName, Random: true}
	s.Draw = func(_ *rand.Rand, path slackgate.Path, job *Arrival) (int64, int64) {
		perToken := float64(p95MS[path]) / p95
		first := (float64(job.InputTokens) + fixedTokens) * perToken
		hold := first + writeCost*float64(job.OutputTokens)*perToken
		return max(1, int64(math.Round(first))), max(1, int64(math.Round(hold)))
	}
	for _, path := range slackgate.Paths {
		perToken := float64(p95MS[path]) / p95
		s.Belief[path] = slackgate.Belief{FirstByte: moments(read, perToken), Hold: moments(all, perToken)}
	}
	return s
}

// tokenServiceName marks services that depend on the job alone.
const tokenServiceName = "by tokens"

// fixedTokens stands for the cost of a call that does not grow with it.
const fixedTokens = 200

func percentile95(x []float64) float64 {
	s := slices.Clone(x)
	slices.Sort(s)
	return s[int(math.Ceil(0.95*float64(len(s))))-1]
}

func moments(x []float64, scale float64) slackgate.Dist {
	sum, squares := 0.0, 0.0
	for _, v := range x {
		sum += v * scale
		squares += v * v * scale * scale
	}
	n := float64(len(x))
	mean := sum / n
	return slackgate.Dist{MeanMS: mean, VarMS2: max(0, squares/n-mean*mean), P95MS: percentile95(x) * scale}
}
