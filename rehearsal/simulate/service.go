package simulate

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"leeway/rehearsal/trace"
	"leeway/slackgate"
)

// Service says how long the backends take.
type Service struct {
	Name string
	// Start begins a run: what it returns says what each call of the run comes
	// to. The same seed gives the same answers, so that every policy meets the
	// same backends.
	Start func(jobs []Arrival, seed uint64) func(*Call) Served
	// Times says what the times depend on.
	Times Times
	// Belief is what is true of the pool before any slowdown.
	Belief [slackgate.NumPaths]slackgate.Belief
	// Workers is how many workers each pool has. Defaults to [Workers].
	Workers [slackgate.NumPaths]int
	// Closed, if set, tells whether an operator has closed a pool by then.
	Closed func(path slackgate.Path, atMS int64) bool
	// ProbeMS, if set, is when the first byte of a tiny request comes that is made
	// then: pools that their own measurement has closed are probed. The answer
	// follows at once.
	ProbeMS func(path slackgate.Path, atMS int64) int64
}

// Times is what the times of a service depend on.
type Times uint8

// The kinds of times.
const (
	Equal   Times = iota // on the pool alone
	ByStart              // on the pool and on when the call starts
	ByJob                // on the job too; nobody knows before the call
	Drawn                // on the seed as well; nobody knows before the call
)

// Workers is the number of workers of each pool: the article's. A [Service] may
// name others.
var Workers = [slackgate.NumPaths]int{slackgate.Paid: 2, slackgate.Free: 1}

// workers are the service's own, or the article's.
func (s *Service) workers() [slackgate.NumPaths]int {
	if s.Workers == ([slackgate.NumPaths]int{}) {
		return Workers
	}
	return s.Workers
}

// Call is one job on a worker, as a [Service] sees it.
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

// Never is the time of a first byte that does not come. It is beyond every
// deadline and still adds to any instant.
const Never = int64(1) << 50

// p95MS are the article's declared first bytes.
var p95MS = [slackgate.NumPaths]int64{
	slackgate.Paid: slackgate.ArticlePaidP95FirstByteMS,
	slackgate.Free: slackgate.ArticleFreeP95FirstByteMS,
}

// FixedService takes exactly the declared p95 to the first byte, and holdMS
// longer to the last.
func FixedService(holdMS int64) Service {
	s := Service{Name: "fixed", Start: func([]Arrival, uint64) func(*Call) Served {
		return func(c *Call) Served { return Served{FirstMS: p95MS[c.Path], HoldMS: p95MS[c.Path] + holdMS} }
	}}
	if holdMS > 0 {
		s.Name = fmt.Sprintf("fixed, hold +%g s", float64(holdMS)/1000)
	}
	for _, path := range slackgate.Paths {
		s.Belief[path] = slackgate.FixedBelief(p95MS[path], p95MS[path]+holdMS)
	}
	return s
}

// draw is a [Service].Start that fixes every job's times in every pool
// beforehand, however the run then goes.
func draw(times func(rng *rand.Rand, path slackgate.Path, job *Arrival) (firstMS, holdMS float64)) func([]Arrival, uint64) func(*Call) Served {
	whole := func(ms float64) int64 { return max(1, int64(math.Round(ms))) }
	return func(jobs []Arrival, seed uint64) func(*Call) Served {
		rng := rand.New(rand.NewPCG(seed, 2))
		drawn := make([][slackgate.NumPaths]Served, len(jobs))
		for i := range jobs {
			for _, path := range slackgate.Paths {
				first, hold := times(rng, path, &jobs[i])
				drawn[i][path] = Served{FirstMS: whole(first), HoldMS: whole(hold)}
			}
		}
		return func(c *Call) Served { return drawn[c.Job][c.Path] }
	}
}

// LognormalService draws lognormal first bytes whose 95th percentile is the
// declared one; the answer follows at once.
func LognormalService(sigma float64) Service {
	const z95 = 1.6448536269514722
	s := Service{Name: fmt.Sprintf("lognormal %g", sigma), Times: Drawn}
	s.Start = draw(func(rng *rand.Rand, path slackgate.Path, _ *Arrival) (firstMS, holdMS float64) {
		ms := float64(p95MS[path]) * math.Exp(sigma*(rng.NormFloat64()-z95))
		return ms, ms
	})
	for _, path := range slackgate.Paths {
		d := slackgate.Lognormal(float64(p95MS[path]), sigma)
		s.Belief[path] = slackgate.Belief{FirstByte: d, Hold: d}
	}
	return s
}

// SlowedService is s, by a factor slower for calls that start at fromMS or
// later.
func SlowedService(s Service, fromMS int64, factor float64) Service {
	s.Name = fmt.Sprintf("%s, x%g from %g s", s.Name, factor, float64(fromMS)/1000)
	s.Times = max(s.Times, ByStart)
	start := s.Start
	s.Start = func(jobs []Arrival, seed uint64) func(*Call) Served {
		serve := start(jobs, seed)
		return func(c *Call) Served {
			v := serve(c)
			if c.AtMS >= fromMS {
				v.FirstMS, v.HoldMS = int64(float64(v.FirstMS)*factor), int64(float64(v.HoldMS)*factor)
			}
			return v
		}
	}
	return s
}

// HangingService is s, but that the calls hang that hangs picks by their place in
// the order in which they are made, from 0. Probes are answered within probeMS, but
// [Never] where that is 0.
func HangingService(s Service, hangs func(call int) bool, probeMS int64) Service {
	s.Name += ", hanging"
	s.Times = max(s.Times, ByStart)
	start := s.Start
	s.Start = func(jobs []Arrival, seed uint64) func(*Call) Served {
		serve, calls := start(jobs, seed), 0
		return func(c *Call) Served {
			v := serve(c)
			if hangs(calls) {
				v = Served{FirstMS: Never, HoldMS: Never, Fate: Broken}
			}
			calls++
			return v
		}
	}
	s.ProbeMS = func(slackgate.Path, int64) int64 { return cmp.Or(probeMS, Never) }
	return s
}

// fixedTokens stands for the cost of a call that does not grow with it.
const fixedTokens = 200

// TokenService takes time in proportion to a job's tokens: the prompt is read
// before the first byte, the answer written after it, and a token written costs
// as much as writeCost tokens read. The 95th percentile of the first byte over
// the given requests is the declared one. The gate, which does not look at
// sizes, believes in the distribution over all of them.
func TokenService(requests []trace.Request, writeCost float64) Service {
	read := make([]float64, len(requests))
	all := make([]float64, len(requests))
	for i, r := range requests {
		read[i] = float64(r.InputTokens) + fixedTokens
		all[i] = read[i] + writeCost*float64(r.OutputTokens)
	}
	var perToken [slackgate.NumPaths]float64
	s := Service{Name: "by tokens", Times: ByJob}
	for _, path := range slackgate.Paths {
		perToken[path] = float64(p95MS[path]) / percentile95(read)
		s.Belief[path] = slackgate.Belief{FirstByte: moments(read, perToken[path]), Hold: moments(all, perToken[path])}
	}
	s.Start = draw(func(_ *rand.Rand, path slackgate.Path, job *Arrival) (firstMS, holdMS float64) {
		firstMS = (float64(job.InputTokens) + fixedTokens) * perToken[path]
		return firstMS, firstMS + writeCost*float64(job.OutputTokens)*perToken[path]
	})
	return s
}

func percentile95(x []float64) float64 {
	s := slices.Sorted(slices.Values(x))
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
