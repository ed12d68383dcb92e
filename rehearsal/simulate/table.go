package simulate

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"sync"
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
	code, conversation := AzureCode(), AzureConversation()
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
	fixed := !s.Service.Random
	byTokens := s.Service.Random && s.Service.Name == tokenServiceName
	if n := s.Workload.Slices; n > 0 && (fixed || byTokens) {
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
	r := Row{
		Workload: s.Workload.Name, Service: s.Service.Name, Policy: p.Name, Recheck: p.Recheck, Seeds: len(outcomes),
	}
	for _, name := range s.Workload.Classes {
		r.Classes = append(r.Classes, ClassRow{Class: name})
	}
	n := float64(len(outcomes))
	squares := 0.0
	for i := range outcomes {
		o := &outcomes[i]
		r.Offered += float64(o.Offered)
		r.AdmittedPaid += float64(o.AdmittedPaid)
		r.AdmittedFree += float64(o.AdmittedFree)
		r.Rejected += float64(o.Rejected)
		r.Usable += float64(o.Usable)
		squares += float64(o.Usable) * float64(o.Usable)
		r.Late += float64(o.Late)
		r.Dropped += float64(o.Dropped)
		r.WastedMS += float64(o.WastedMS)
		r.PaidCalls += float64(o.PaidCalls)
		r.MeanRejectMS += o.MeanRejectMS()
		for k := range r.Classes {
			r.Classes[k].Offered += float64(o.Classes[k].Offered)
			r.Classes[k].Usable += float64(o.Classes[k].Usable)
		}
	}
	// Sums of whole numbers are exact: the means are divided once.
	for _, sum := range []*float64{
		&r.Offered, &r.AdmittedPaid, &r.AdmittedFree, &r.Rejected, &r.Usable, &squares, &r.Late, &r.Dropped,
		&r.WastedMS, &r.PaidCalls, &r.MeanRejectMS,
	} {
		*sum /= n
	}
	for k := range r.Classes {
		r.Classes[k].Offered /= n
		r.Classes[k].Usable /= n
	}
	r.Missed = r.Late + r.Dropped
	if n > 1 {
		r.UsableError = math.Sqrt(max(0, squares-r.Usable*r.Usable) / (n - 1))
	}
	r.Bound = meanOf(best, func(b *Best) int { return b.Bound })
	r.Ceiling = meanOf(best, func(b *Best) int { return b.Ceiling })
	r.LeastPaidCalls = meanOf(best, func(b *Best) int { return b.PaidCalls })
	return r
}

// meanOf is nil if any run has no such number.
func meanOf(best []Best, field func(*Best) int) *float64 {
	sum := 0.0
	for i := range best {
		v := field(&best[i])
		if v < 0 {
			return nil
		}
		sum += float64(v)
	}
	sum /= float64(len(best))
	return &sum
}

// columns is the layout of the printed table.
const columns = "  %-22s %6s %7s %9s %7s %7s %7s %9s %9s %6s %7s\n"

// WriteHeading writes a scenario's name, its best possible and the column heads.
// The best is read from any of the scenario's rows.
func WriteHeading(w io.Writer, r *Row) error {
	_, err := fmt.Fprintf(w, "\n%s, %s: %s offered; %s\n", r.Workload, r.Service, number(r.Offered), bestOf(r))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, columns, "policy", "seeds", "usable", "of best", "late", "dropped", "paid", "free", "rejected", "wasted", "told in")
	return err
}

func bestOf(r *Row) string {
	var parts []string
	if r.Bound != nil {
		parts = append(parts, "no schedule beats "+number(*r.Bound)+" usable")
	}
	if r.LeastPaidCalls != nil {
		parts = append(parts, "with at least "+number(*r.LeastPaidCalls)+" paid calls")
	}
	if r.Ceiling != nil {
		parts = append(parts, "workers that are never idle make "+number(*r.Ceiling)+" usable")
	}
	return strings.Join(parts, ", ")
}

// WriteRow writes one row under its heading. A drop is a miss as a late answer
// is; "told in" is the mean time until a job without an answer was told.
func WriteRow(w io.Writer, r *Row) error {
	share := "-"
	switch {
	case r.Bound != nil && *r.Bound > 0:
		share = fmt.Sprintf("%.1f %%", 100*r.Usable / *r.Bound)
	case r.Ceiling != nil && *r.Ceiling > 0:
		share = fmt.Sprintf("%.1f %%", 100*r.Usable / *r.Ceiling)
	}
	_, err := fmt.Fprintf(w, columns, r.Policy, fmt.Sprint(r.Seeds), number(r.Usable), share, number(r.Late), number(r.Dropped),
		number(r.PaidCalls), number(r.AdmittedFree), number(r.Rejected),
		fmt.Sprintf("%.1fs", r.WastedMS/1000), fmt.Sprintf("%.2fs", r.MeanRejectMS/1000))
	for _, c := range r.Classes {
		if err == nil {
			_, err = fmt.Fprintf(w, "    %s: %s of %s usable\n", c.Class, number(c.Usable), number(c.Offered))
		}
	}
	return err
}

// number prints a mean: whole ones without a fraction.
func number(x float64) string {
	if x == math.Trunc(x) {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.1f", x)
}

// TraceScenarios plays a trace from outside, with equal services and with
// services by tokens.
func TraceScenarios(name string, trace []Request) []Scenario {
	w := TraceWorkload(name, trace)
	return []Scenario{
		{w, FixedService(0), []Policy{SeedNoRecheck, SeedRecheck, Predictive}},
		{w, TokenService(trace, 3), []Policy{SeedNoRecheck, SeedRecheck, Predictive, PredictiveLearns}},
	}
}
