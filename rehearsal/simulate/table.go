package simulate

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"

	"leeway/rehearsal/trace"
)

// Scenario is one block of the table: a workload and a service under several
// policies.
type Scenario struct {
	Workload Workload
	Service  Service
	Policies []Policy
}

// Name is the scenario's name in the table.
func (s *Scenario) Name() string { return s.Workload.Name + " | " + s.Service.Name }

// Scenarios is the table.
func Scenarios() []Scenario {
	gates := []Policy{SeedNoRecheck, SeedRecheck, Predictive}
	learning := []Policy{SeedNoRecheck, SeedRecheck, Predictive, PredictiveLearns}
	orders := []Policy{ListOrder, Predictive}
	code, conversation := trace.AzureCode(), trace.AzureConversation()
	codeSlices := TraceWorkload("azure code", code)
	return []Scenario{
		{DeclaredWorkload(), FixedService(0), learning},
		{DeclaredWorkload(), FixedService(2800), learning},
		{DeclaredWorkload(), LognormalService(0.5), learning},
		{DeclaredWorkload(), LognormalService(0.8), learning},
		{BurstWorkload(80, 10_000), FixedService(0), gates},
		{codeSlices, FixedService(0), gates},
		{codeSlices, TokenService(code, 3), learning},
		{TraceWorkload("azure conversation", conversation), TokenService(conversation, 3), learning},
		{PoissonWorkload(8, articleSeconds, PaidFirst), FixedService(0), gates},
		{MixedWorkload(1.2, 600, 300), FixedService(0), orders},
		{MixedWorkload(0.5, 600, 600), FixedService(0), orders},
		{PoissonWorkload(0.8, articleSeconds, FreeFirst), FixedService(0), gates},
		{DeclaredWorkload(), SlowedService(LognormalService(0.5), 30_000, 3), learning},
	}
}

// TraceScenarios plays a trace from outside, with equal services and with
// services by tokens.
func TraceScenarios(name string, requests []trace.Request) []Scenario {
	w := TraceWorkload(name, requests)
	return []Scenario{
		{w, FixedService(0), []Policy{SeedNoRecheck, SeedRecheck, Predictive}},
		{w, TokenService(requests, 3), []Policy{SeedNoRecheck, SeedRecheck, Predictive, PredictiveLearns}},
	}
}

// ClassRow is one class's part of a Row.
type ClassRow struct {
	Class   string  `json:"class"`
	Offered float64 `json:"offered"`
	Usable  float64 `json:"usable"`
}

// Row is one line of the table: means over the seeds.
type Row struct {
	Workload string `json:"workload"`
	Service  string `json:"service"`
	Policy   string `json:"policy"`
	Recheck  bool   `json:"recheck"`
	// Seeds is how many runs stand behind the row: seeds 1 to Seeds. Where all
	// runs would be the same it is 1.
	Seeds        int     `json:"seeds"`
	Offered      float64 `json:"offered"`
	AdmittedPaid float64 `json:"admitted_paid"`
	AdmittedFree float64 `json:"admitted_free"`
	Rejected     float64 `json:"rejected"`
	Usable       float64 `json:"usable"`
	// UsableError is the standard error of Usable.
	UsableError float64 `json:"usable_standard_error"`
	Late        float64 `json:"late"`
	Dropped     float64 `json:"dropped"`
	Missed      float64 `json:"missed"`
	WastedMS    float64 `json:"wasted_ms"`
	PaidCalls   float64 `json:"paid_calls"`
	// MeanRejectMS is the mean time until a job without an answer was told.
	MeanRejectMS float64 `json:"mean_reject_ms"`
	// Bound, Ceiling and LeastPaidCalls are those of [Best]; null where there
	// is none.
	Bound          *float64   `json:"bound"`
	Ceiling        *float64   `json:"ceiling"`
	LeastPaidCalls *float64   `json:"least_paid_calls"`
	Classes        []ClassRow `json:"classes,omitempty"`
}

// runs is how many seeds make a difference.
func (s *Scenario) runs(seeds int) int {
	if n := s.Workload.Slices; n > 0 && s.Service.Times != Drawn {
		return min(seeds, n)
	}
	return seeds
}

// Rows plays every policy over the seeds, on all processors, and emits each row
// as it is done. It asks stop before each run and ends with its error, or with
// that of emit.
func (s *Scenario) Rows(seeds int, stop func() error, emit func(Row) error) error {
	n := s.runs(max(1, seeds))
	best := make([]Best, n)
	if err := each(n, stop, func(i int) { best[i] = BestPossible(s.Workload, s.Service, uint64(i)+1) }); err != nil {
		return err
	}
	for _, p := range s.Policies {
		outcomes := make([]Outcome, n)
		if err := each(n, stop, func(i int) { outcomes[i] = Run(s.Workload, s.Service, p, uint64(i)+1) }); err != nil {
			return err
		}
		if err := emit(s.row(p, outcomes, best)); err != nil {
			return err
		}
	}
	return nil
}

// each calls f for 0 to n-1 on all processors, and returns when all calls have.
// The processors ask stop at the same time.
func each(n int, stop func() error, f func(int)) error {
	var wg sync.WaitGroup
	workers := min(runtime.GOMAXPROCS(0), n)
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n && stop() == nil; i += workers {
				f(i)
			}
		})
	}
	wg.Wait()
	return stop()
}

func (s *Scenario) row(p Policy, outcomes []Outcome, best []Best) Row {
	usable := func(o *Outcome) int { return o.Usable }
	r := Row{
		Workload: s.Workload.Name, Service: s.Service.Name, Policy: p.Name, Recheck: p.Recheck, Seeds: len(outcomes),
		Offered:        mean(outcomes, func(o *Outcome) int { return o.Offered }),
		AdmittedPaid:   mean(outcomes, func(o *Outcome) int { return o.AdmittedPaid }),
		AdmittedFree:   mean(outcomes, func(o *Outcome) int { return o.AdmittedFree }),
		Rejected:       mean(outcomes, func(o *Outcome) int { return o.Rejected }),
		Usable:         mean(outcomes, usable),
		UsableError:    standardError(outcomes, usable),
		Late:           mean(outcomes, func(o *Outcome) int { return o.Late }),
		Dropped:        mean(outcomes, func(o *Outcome) int { return o.Dropped }),
		WastedMS:       mean(outcomes, func(o *Outcome) int64 { return o.WastedMS }),
		PaidCalls:      mean(outcomes, func(o *Outcome) int { return o.PaidCalls }),
		MeanRejectMS:   mean(outcomes, (*Outcome).MeanRejectMS),
		Bound:          meanIfKnown(best, func(b *Best) int { return b.Bound }),
		Ceiling:        meanIfKnown(best, func(b *Best) int { return b.Ceiling }),
		LeastPaidCalls: meanIfKnown(best, func(b *Best) int { return b.PaidCalls }),
	}
	r.Missed = r.Late + r.Dropped
	for k, name := range s.Workload.Classes {
		r.Classes = append(r.Classes, ClassRow{
			Class:   name,
			Offered: mean(outcomes, func(o *Outcome) int { return o.Classes[k].Offered }),
			Usable:  mean(outcomes, func(o *Outcome) int { return o.Classes[k].Usable }),
		})
	}
	return r
}

// mean is the mean of a number over runs. Sums of whole numbers are exact: they
// are divided once.
func mean[T any, N int | int64 | float64](runs []T, of func(*T) N) float64 {
	sum := 0.0
	for i := range runs {
		sum += float64(of(&runs[i]))
	}
	return sum / float64(len(runs))
}

// standardError is that of the mean; 0 of one run.
func standardError[T any](runs []T, of func(*T) int) float64 {
	if len(runs) < 2 {
		return 0
	}
	m, squares := mean(runs, of), mean(runs, func(r *T) float64 { x := float64(of(r)); return x * x })
	return math.Sqrt(max(0, squares-m*m) / float64(len(runs)-1))
}

// meanIfKnown is nil if any run has no such number.
func meanIfKnown(best []Best, of func(*Best) int) *float64 {
	if slices.ContainsFunc(best, func(b Best) bool { return of(&b) < 0 }) {
		return nil
	}
	return new(mean(best, of))
}

// columns is the layout of the printed table.
const columns = "  %-22s %6s %7s %9s %7s %7s %7s %9s %9s %6s %7s\n"

// Heading is a scenario's name, its best possible and the column heads. The best
// is read from any of the scenario's rows.
func (r Row) Heading() string {
	return fmt.Sprintf("\n%s, %s: %s offered; %s\n", r.Workload, r.Service, number(r.Offered), r.best()) +
		fmt.Sprintf(columns, "policy", "seeds", "usable", "of best", "late", "dropped", "paid", "free", "rejected", "wasted", "told in")
}

func (r *Row) best() string {
	var parts []string
	for _, best := range []struct {
		of   *float64
		text string
	}{
		{r.Bound, "no schedule beats %s usable"},
		{r.LeastPaidCalls, "with at least %s paid calls"},
		{r.Ceiling, "workers that are never idle make %s usable"},
	} {
		if best.of != nil {
			parts = append(parts, fmt.Sprintf(best.text, number(*best.of)))
		}
	}
	return strings.Join(parts, ", ")
}

// Lines is the row under its heading. A drop is a miss as a late answer is;
// "told in" is the mean time until a job without an answer was told.
func (r Row) Lines() string {
	share := "-"
	if best := cmp.Or(r.Bound, r.Ceiling); best != nil && *best > 0 {
		share = fmt.Sprintf("%.1f %%", 100*r.Usable / *best)
	}
	text := fmt.Sprintf(columns, r.Policy, fmt.Sprint(r.Seeds), number(r.Usable), share, number(r.Late), number(r.Dropped),
		number(r.PaidCalls), number(r.AdmittedFree), number(r.Rejected),
		fmt.Sprintf("%.1fs", r.WastedMS/1000), fmt.Sprintf("%.2fs", r.MeanRejectMS/1000))
	out := strings.Builder{}
	out.WriteString(text)
	for _, c := range r.Classes {
		fmt.Fprintf(&out, "    %s: %s of %s usable\n", c.Class, number(c.Usable), number(c.Offered))
	}
	return out.String()
}

// number prints a mean: whole ones without a fraction.
func number(x float64) string {
	if x == math.Trunc(x) {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.1f", x)
}
