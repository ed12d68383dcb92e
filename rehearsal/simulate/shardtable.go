package simulate

import (
	"fmt"
	"io"
	"math"

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
	code, conversation := AzureCode(), AzureConversation()
	random := wide(LognormalService(0.5))
	return []Scenario{
		{WholeTraceWorkload("azure code", code, widePerSecond), wide(TokenService(code, 3)), []Policy{Predictive}},
		{WholeTraceWorkload("azure conversation", conversation, widePerSecond), wide(TokenService(conversation, 3)), []Policy{Predictive}},
		{PoissonWorkload(widePerSecond, articleSeconds, PaidFirst), random, []Policy{Predictive}},
		{PoissonWorkload(widePerSecond/2, articleSeconds, PaidFirst), random, []Policy{Predictive}},
	}
}

// TraceShardScenarios is the same for a trace from outside.
func TraceShardScenarios(name string, trace []Request) []Scenario {
	return []Scenario{{WholeTraceWorkload(name, trace, widePerSecond), wide(TokenService(trace, 3)), []Policy{Predictive}}}
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
		whole, split := make([]verdicts, n), make([]verdicts, n)
		if err := each(n, stop, func(i int) {
			whole[i] = verdictsOf(Replay(s.Workload, s.Service, p, uint64(i)+1))
		}); err != nil {
			return err
		}
		for _, over := range overs {
			if err := each(n, stop, func(i int) {
				split[i] = verdictsOf(replay(s.Workload, s.Service, p, over, uint64(i)+1))
			}); err != nil {
				return err
			}
			r := shardRow(whole, split)
			r.Workload, r.Service, r.Policy = s.Workload.Name, s.Service.Name, p.Name
			r.Shards, r.Choices, r.ViewAgeMS = over.Shards, over.Choices, over.ViewAgeMS
			if err := emit(r); err != nil {
				return err
			}
		}
	}
	return nil
}

func shardRow(whole, split []verdicts) ShardRow {
	r := ShardRow{Seeds: len(split)}
	n, squares := float64(len(split)), 0.0
	for i := range split {
		a, b := &whole[i], &split[i]
		r.Offered += float64(b.out.Offered)
		r.Usable += float64(b.out.Usable)
		r.Refused += float64(b.out.Rejected)
		r.Late += float64(b.out.Late)
		r.Dropped += float64(b.out.Dropped)
		lost := float64(a.out.Usable - b.out.Usable)
		r.LostUsable += lost
		squares += lost * lost
		r.IdleWhileWaitingMS += float64(b.out.IdleWhileWaitingMS)
		same, chance, jobs := 0, 0.0, float64(max(1, len(a.paths)))
		for k := range a.paths {
			if a.paths[k] == b.paths[k] {
				same++
			}
		}
		for path := range a.count {
			chance += float64(a.count[path]) / jobs * float64(b.count[path]) / jobs
		}
		r.SameVerdict += float64(same) / jobs
		r.ByChance += chance
	}
	for _, sum := range []*float64{
		&r.Offered, &r.Usable, &r.Refused, &r.Late, &r.Dropped, &r.LostUsable, &squares, &r.IdleWhileWaitingMS, &r.SameVerdict, &r.ByChance,
	} {
		*sum /= n
	}
	r.Missed = r.Late + r.Dropped
	if n > 1 {
		r.LostUsableError = math.Sqrt(max(0, squares-r.LostUsable*r.LostUsable) / (n - 1))
	}
	return r
}

// shardColumns is the layout of the printed table of shards.
const shardColumns = "  %6s %7s %5s %8s %16s %8s %7s %7s %9s %11s\n"

// WriteShardHeading writes a scenario's name and the column heads.
func WriteShardHeading(w io.Writer, r *ShardRow) error {
	if _, err := fmt.Fprintf(w, "\n%s, %s, %s: %s offered\n", r.Workload, r.Service, r.Policy, number(r.Offered)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, shardColumns, "shards", "choices", "seeds", "usable", "lost", "refused", "missed", "same", "by chance", "idle slots")
	return err
}

// WriteShardRow writes one row under its heading: what is lost with twice its
// standard error, and the seconds for which slots were idle beside waiting jobs.
func WriteShardRow(w io.Writer, r *ShardRow) error {
	_, err := fmt.Fprintf(w, shardColumns, fmt.Sprint(r.Shards), fmt.Sprint(r.Choices), fmt.Sprint(r.Seeds),
		fmt.Sprintf("%.1f", r.Usable), fmt.Sprintf("%.1f +- %.1f", r.LostUsable, 2*r.LostUsableError),
		fmt.Sprintf("%.1f", r.Refused), fmt.Sprintf("%.1f", r.Missed),
		fmt.Sprintf("%.1f %%", 100*r.SameVerdict), fmt.Sprintf("%.1f %%", 100*r.ByChance),
		fmt.Sprintf("%.1fs", r.IdleWhileWaitingMS/1000))
	return err
}
