package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"leeway/rehearsal/drill"
)

// rows of a comparison, in order; what neither drill has is left out.
var compareRows = []string{
	"offered", "admitted", "admitted_paid", "admitted_free", "rejected", "undecided", "usable", "usable_percent", "success", "missed",
	"late", "expired", "empty", "truncated", "failed", "wasted_s", "paid_cost_micro", "free_cost_micro",
	"told_p99_ms", "answer_p50_ms", "most_over_ms", "queue_age_free_max_ms", "send_lag_p99_ms", "of_bound_percent",
}

// spread is a metric over the runs of a drill.
type spread struct {
	mean, floor float64
	runs        int
}

// spreadOf is false if not every run has the metric. The floor is how far
// repeated runs lie from their mean, at most; of one run nobody knows.
func spreadOf(e *drill.Evidence, metric string) (spread, bool) {
	s := spread{runs: len(e.Runs)}
	for _, r := range e.Runs {
		x, ok := r.Metrics[metric]
		if !ok {
			return s, false
		}
		s.mean += x / float64(s.runs)
	}
	for _, r := range e.Runs {
		s.floor = max(s.floor, math.Abs(r.Metrics[metric]-s.mean))
	}
	return s, true
}

// effect is a difference in words. One that is not larger than the spreads of
// the repeated runs together is noise, and no figure.
func effect(a, b spread) string {
	d := b.mean - a.mean
	if a.runs < 2 || b.runs < 2 {
		if d == 0 {
			return "no difference (one run: noise unknown)"
		}
		return fmt.Sprintf("%+.4g (one run: noise unknown)", d)
	}
	floor := a.floor + b.floor
	if d == 0 && floor == 0 {
		return "no difference"
	}
	if math.Abs(d) <= floor {
		return "within noise (floor ±" + number(floor) + ")"
	}
	return fmt.Sprintf("%+.4g (floor ±%s)", d, number(floor))
}

// Compare prints two drills side by side.
func Compare(w io.Writer, nameA string, a *drill.Evidence, nameB string, b *drill.Evidence) {
	p := printer{w}
	for _, s := range []struct {
		mark, name string
		e          *drill.Evidence
	}{{"A", nameA, a}, {"B", nameB, b}} {
		p.f("%s  %s: %s against %s, %s time, %d runs, %s\n", s.mark, s.name, s.e.Plan.Name, s.e.Against, s.e.Clock, len(s.e.Runs), s.e.StartedAt.Format("2006-01-02 15:04Z"))
	}
	if a.Plan.Name != b.Plan.Name {
		p.f("These are different drills: what differs may be the drill.\n")
	}
	for _, l := range planDifferences(a.Plan, b.Plan) {
		p.f("declared otherwise: %s\n", l)
	}
	p.f("\n")
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "  \tA\tB\tdifference")
	for _, metric := range compareRows {
		x, inA := spreadOf(a, metric)
		y, inB := spreadOf(b, metric)
		switch {
		case inA && inB:
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", metric, number(x.mean), number(y.mean), effect(x, y))
		case inA:
			fmt.Fprintf(t, "  %s\t%s\t-\t\n", metric, number(x.mean))
		case inB:
			fmt.Fprintf(t, "  %s\t-\t%s\t\n", metric, number(y.mean))
		}
	}
	_ = t.Flush()
	p.f("\nmeans over the runs; a difference no larger than the spread of repeated runs is noise and has no figure\n")
}

// planDifferences lists what two plans declare otherwise.
func planDifferences(a, b *drill.Plan) (out []string) {
	of := func(p *drill.Plan) (lines []string) {
		for _, l := range declared(p) {
			lines = append(lines, strings.Join(l[:], " "))
		}
		return lines
	}
	la, lb := of(a), of(b)
	for _, l := range la {
		if !slices.Contains(lb, l) {
			out = append(out, "A: "+l)
		}
	}
	for _, l := range lb {
		if !slices.Contains(la, l) {
			out = append(out, "B: "+l)
		}
	}
	return out
}
