package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"leeway/rehearsal/drill"
)

// rows of a comparison, in order; what neither drill has is left out.
var compareRows = []string{
	"offered", "admitted", "admitted_paid", "admitted_free", "rejected", "undecided", "usable", "usable_percent", "success", "missed",
	"late", "expired", "empty", "truncated", "revoked", "failed", "wasted_s", "paid_cost_micro", "free_cost_micro",
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
	say := func(format string, args ...any) { fmt.Fprintf(w, format, args...) }
	header := func(mark, name string, e *drill.Evidence) {
		say("%s  %s: %s against %s, %s time, %d runs, %s\n",
			mark, name, e.Plan.Name, e.Against, e.Clock, len(e.Runs), e.StartedAt.Format("2006-01-02 15:04Z"))
	}
	header("A", nameA, a)
	header("B", nameB, b)
	if a.Plan.Name != b.Plan.Name {
		say("These are different drills: what differs may be the drill.\n")
	}
	declaredA, declaredB := declared(a.Plan), declared(b.Plan)
	for _, d := range without(declaredA, declaredB) {
		say("declared otherwise: A: %s %s\n", d.Of, d.Text)
	}
	for _, d := range without(declaredB, declaredA) {
		say("declared otherwise: B: %s %s\n", d.Of, d.Text)
	}
	rows := []string{"  \tA\tB\tdifference"}
	for _, metric := range compareRows {
		x, inA := spreadOf(a, metric)
		y, inB := spreadOf(b, metric)
		cellA, cellB, difference := "-", "-", ""
		if inA {
			cellA = number(x.mean)
		}
		if inB {
			cellB = number(y.mean)
		}
		if inA && inB {
			difference = effect(x, y)
		}
		if inA || inB {
			rows = append(rows, strings.Join([]string{"  " + metric, cellA, cellB, difference}, "\t"))
		}
	}
	say("\n%s\nmeans over the runs; a difference no larger than the spread of repeated runs is noise and has no figure\n", table(0, rows...))
}

// without are the lines of one plan that another does not have.
func without(of, other []declaration) []declaration {
	return slices.DeleteFunc(slices.Clone(of), func(d declaration) bool { return slices.Contains(other, d) })
}
