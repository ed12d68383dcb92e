package simulate

import (
	"fmt"

	"leeway/rehearsal/trace"
	"leeway/slackgate"
)

// WideWorkers are the workers of [ShardScenarios], sixteen times the article's;
// so many more jobs come.
var WideWorkers = [slackgate.NumPaths]int{slackgate.Paid: 32, slackgate.Free: 16}

const widePerSecond = 16 * articlePerSecond

// ShardScenarios is what shards are tried on: the traces that come with the
// package and random arrivals, at a load beyond what the workers can do and at
// nine tenths of it.
func ShardScenarios() []Scenario {
	code, conversation := trace.AzureCode(), trace.AzureConversation()
	random := wide(LognormalService(0.5))
	return []Scenario{
		{WholeTraceWorkload("azure code", code, widePerSecond), wide(TokenService(code, 3)), []Policy{Predictive}},
		{WholeTraceWorkload("azure conversation", conversation, widePerSecond), wide(TokenService(conversation, 3)), []Policy{Predictive}},
		{PoissonWorkload(widePerSecond, articleSeconds, PaidFirst), random, []Policy{Predictive}},
		{PoissonWorkload(widePerSecond/2, articleSeconds, PaidFirst), random, []Policy{Predictive}},
	}
}

// TraceShardScenarios is the same for a trace from outside.
func TraceShardScenarios(name string, requests []trace.Request) []Scenario {
	return []Scenario{{WholeTraceWorkload(name, requests, widePerSecond), wide(TokenService(requests, 3)), []Policy{Predictive}}}
}

func wide(s Service) Service {
	s.Workers = WideWorkers
	return s
}

// ShardRow is one line of the table of shards: means over the seeds, each held
// against the unsharded run of the same arrivals and services.
type ShardRow struct {
	Workload  string `json:"workload"`
	Service   string `json:"service"`
	Policy    string `json:"policy"`
	Shards    int    `json:"shards"`
	Choices   int    `json:"choices"`
	ViewAgeMS int64  `json:"view_age_ms"`
	// Seeds is how many runs stand behind the row: seeds 1 to Seeds.
	Seeds   int     `json:"seeds"`
	Offered float64 `json:"offered"`
	Usable  float64 `json:"usable"`
	Refused float64 `json:"refused"`
	Late    float64 `json:"late"`
	Dropped float64 `json:"dropped"`
	Missed  float64 `json:"missed"`
	// LostUsable is how many more were usable unsharded, LostUsableError the
	// standard error of that mean.
	LostUsable      float64 `json:"lost_usable"`
	LostUsableError float64 `json:"lost_usable_standard_error"`
	// SameVerdict is the share of the jobs that got the same verdict, paid, free
	// or refused, as unsharded. ByChance is what it would be if the two runs'
	// verdicts, as many of each kind as there are, had nothing to do with each
	// other.
	SameVerdict float64 `json:"same_verdict"`
	ByChance    float64 `json:"same_verdict_by_chance"`
	// IdleWhileWaitingMS is that of [Outcome].
	IdleWhileWaitingMS float64 `json:"idle_while_waiting_ms"`
}

// sharded is a run over shards beside the unsharded one of the same seed.
type sharded struct{ whole, split verdicts }

// verdicts is what a run is held against another by.
type verdicts struct {
	out   Outcome
	paths []slackgate.Path
	count [slackgate.NumPaths]int
}

func verdictsOf(o Outcome, jobs []JobRun) verdicts {
	v := verdicts{out: o, paths: make([]slackgate.Path, len(jobs))}
	for i := range jobs {
		v.paths[i] = jobs[i].Result.Path
		v.count[v.paths[i]]++
	}
	return v
}

func (s *sharded) lostUsable() int { return s.whole.out.Usable - s.split.out.Usable }

func (s *sharded) sameVerdict() float64 {
	same := 0
	for k := range s.whole.paths {
		if s.whole.paths[k] == s.split.paths[k] {
			same++
		}
	}
	return float64(same) / float64(max(1, len(s.whole.paths)))
}

func (s *sharded) byChance() (chance float64) {
	jobs := float64(max(1, len(s.whole.paths)))
	for path := range s.whole.count {
		chance += float64(s.whole.count[path]) / jobs * float64(s.split.count[path]) / jobs
	}
	return chance
}

// ShardRows plays every policy over the seeds under each of the shardings, on
// all processors, and emits each row as it is done. It asks stop before each
// run and ends with its error, with that of emit, or with that of a sharding
// that cannot be.
func (s *Scenario) ShardRows(seeds int, overs []Sharding, stop func() error, emit func(ShardRow) error) error {
	for _, over := range overs {
		if err := over.Check(&s.Service); err != nil {
			return err
		}
	}
	n := max(1, seeds)
	for _, p := range s.Policies {
		runs := make([]sharded, n)
		if err := each(n, stop, func(i int) {
			runs[i].whole = verdictsOf(Replay(s.Workload, s.Service, p, uint64(i)+1))
		}); err != nil {
			return err
		}
		for _, over := range overs {
			if err := each(n, stop, func(i int) {
				runs[i].split = verdictsOf(replay(s.Workload, s.Service, p, over, uint64(i)+1))
			}); err != nil {
				return err
			}
			if err := emit(s.shardRow(p, over, runs)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Scenario) shardRow(p Policy, over Sharding, runs []sharded) ShardRow {
	r := ShardRow{
		Workload: s.Workload.Name, Service: s.Service.Name, Policy: p.Name,
		Shards: over.Shards, Choices: over.Choices, ViewAgeMS: over.ViewAgeMS, Seeds: len(runs),
		Offered:            mean(runs, func(s *sharded) int { return s.split.out.Offered }),
		Usable:             mean(runs, func(s *sharded) int { return s.split.out.Usable }),
		Refused:            mean(runs, func(s *sharded) int { return s.split.out.Rejected }),
		Late:               mean(runs, func(s *sharded) int { return s.split.out.Late }),
		Dropped:            mean(runs, func(s *sharded) int { return s.split.out.Dropped }),
		LostUsable:         mean(runs, (*sharded).lostUsable),
		LostUsableError:    standardError(runs, (*sharded).lostUsable),
		SameVerdict:        mean(runs, (*sharded).sameVerdict),
		ByChance:           mean(runs, (*sharded).byChance),
		IdleWhileWaitingMS: mean(runs, func(s *sharded) int64 { return s.split.out.IdleWhileWaitingMS }),
	}
	r.Missed = r.Late + r.Dropped
	return r
}

// shardColumns is the layout of the printed table of shards.
const shardColumns = "  %6s %7s %5s %8s %16s %8s %7s %7s %9s %11s\n"

// Heading is a scenario's name and the column heads.
func (r ShardRow) Heading() string {
	return fmt.Sprintf("\n%s, %s, %s: %s offered\n", r.Workload, r.Service, r.Policy, number(r.Offered)) +
		fmt.Sprintf(shardColumns, "shards", "choices", "seeds", "usable", "lost", "refused", "missed", "same", "by chance", "idle slots")
}

// Lines is the row under its heading: what is lost with twice its standard
// error, and the seconds for which slots were idle beside waiting jobs.
func (r ShardRow) Lines() string {
	return fmt.Sprintf(shardColumns, fmt.Sprint(r.Shards), fmt.Sprint(r.Choices), fmt.Sprint(r.Seeds),
		fmt.Sprintf("%.1f", r.Usable), fmt.Sprintf("%.1f +- %.1f", r.LostUsable, 2*r.LostUsableError),
		fmt.Sprintf("%.1f", r.Refused), fmt.Sprintf("%.1f", r.Missed),
		fmt.Sprintf("%.1f %%", 100*r.SameVerdict), fmt.Sprintf("%.1f %%", 100*r.ByChance),
		fmt.Sprintf("%.1fs", r.IdleWhileWaitingMS/1000))
}
