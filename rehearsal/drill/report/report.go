// Package report shows a drill's evidence: as plain lines, as one HTML file
// with charts, and two drills side by side.
package report

import (
	_ "embed"
	"fmt"
	html "html/template"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"text/template"

	"leeway/broker"
	"leeway/rehearsal/drill"
	"leeway/slackgate"
)

var (
	//go:embed page.txt
	plainPage string
	//go:embed page.html
	htmlPage string
)

// words are what both pages are put together from.
var words = map[string]any{
	"declared": declared, "tick": tick, "number": number, "opt": opt, "percent": percent, "before": before, "join": strings.Join,
	"reasons": reasons, "causes": causes, "spend": spendLines, "misses": missLines,
	"lateNote": func() string { return "the machine was late, and a threshold that did not hold may be about that" },
	"simulatedNote": func() string {
		return "simulated: the same gate and the same plan of attempts, no processes, no ledgers to check"
	},
}

var plain = template.Must(template.New("plain").Funcs(words).Funcs(template.FuncMap{
	"total": total, "ledgers": ledgers, "distributions": distributions, "compared": compared, "seconds": seconds,
}).Parse(plainPage))

var page = html.Must(html.New("page").Funcs(words).Funcs(html.FuncMap{
	"decisions": decisions, "waits": waits, "timeline": timeline, "add": func(a, b int) int { return a + b },
}).Parse(htmlPage))

// Header prints what a drill declares, before anything starts. Here and in
// [Text], what cannot be written has nobody to tell.
func Header(w io.Writer, e *drill.Evidence) { _ = plain.ExecuteTemplate(w, "header", e) }

// Text prints a run.
func Text(w io.Writer, e *drill.Evidence, r *drill.Run) {
	_ = plain.ExecuteTemplate(w, "run", struct {
		*drill.Run

		Virtual bool
	}{r, e.Clock == "virtual"})
}

// HTML writes the evidence as one file that needs nothing beside it.
func HTML(w io.Writer, e *drill.Evidence) error { return page.Execute(w, e) }

// declaration is one line of a plan in words.
type declaration struct{ Of, Text string }

// declared is a plan in words.
func declared(plan *drill.Plan) (out []declaration) {
	add := func(of, format string, args ...any) { out = append(out, declaration{of, fmt.Sprintf(format, args...)}) }
	c := plan.Class
	gate := plan.Policy.String()
	if plan.RecheckOff {
		gate += ", re-check OFF"
	}
	add("jobs", "deadline %d ms, reserve %d ms, %s; gate %s", c.DeadlineMS, c.ReserveMS, c.Prefer, gate)
	for _, a := range plan.Arrivals {
		var what string
		if a.PerSecond > 0 {
			what = fmt.Sprintf("%g a second for %g s", a.PerSecond, seconds(a.ForMS))
		} else {
			what = fmt.Sprintf("%d at once", a.Count)
			if a.EveryMS > 0 {
				what += fmt.Sprintf(" every %g s for %g s", seconds(a.EveryMS), seconds(a.ForMS))
			}
		}
		if a.FromMS > 0 {
			what += fmt.Sprintf(", from %g s on", seconds(a.FromMS))
		}
		if a.OutputTokens > 0 {
			what += fmt.Sprintf(", of at most %d tokens", a.OutputTokens)
		}
		add("arrivals", "%s", what)
	}
	for _, path := range slackgate.Paths {
		pool := plan.Pool(path)
		if pool.Slots == 0 {
			continue
		}
		line := fmt.Sprintf("%d slots, first byte p95 %d ms", pool.Slots, pool.P95MS)
		if pool.HoldP95MS > pool.P95MS {
			line += fmt.Sprintf(", hold p95 %d ms", pool.HoldP95MS)
		}
		for _, l := range pool.Labs {
			line = fmt.Sprintf("%s; %s %s", line, l.Name, l.FirstByte)
			if l.Tail != "0" {
				line += " tail " + l.Tail
			}
		}
		add(path.String(), "%s", line)
	}
	for i := range plan.Events {
		add("event", "at %g s: %s", seconds(plan.Events[i].AtMS), plan.Events[i].String())
	}
	if plan.Contrast != "" {
		add("contrast", "first, the same callers straight to %s", plan.Contrast)
	}
	for _, t := range plan.Thresholds {
		add("threshold", "%s", t)
	}
	return out
}

func seconds(ms int64) float64 { return float64(ms) / 1000 }

func tick(ok bool) string {
	if ok {
		return "✓"
	}
	return "✗"
}

// before marks what is not the drill's doing.
func before(c drill.Check) string {
	if c.Before {
		return " (so before the drill)"
	}
	return ""
}

// number prints at most two digits after the point.
func number(x float64) string {
	return strconv.FormatFloat(math.Round(x*100)/100, 'f', -1, 64)
}

func opt(x *float64) string {
	if x == nil {
		return "-"
	}
	return number(*x)
}

func total(r *drill.Run, metric string) string { return fmt.Sprintf("%5s", number(r.Metrics[metric])) }

// percent is a metric's share of the admitted jobs.
func percent(r *drill.Run, metric string) string {
	if r.Metrics["admitted"] == 0 {
		return "none"
	}
	return fmt.Sprintf("%.1f %%", 100*r.Metrics[metric]/r.Metrics["admitted"])
}

// tally counts what of says of the jobs, in the order of a closed set; what is
// not in the set does not count.
func tally[K comparable](r *drill.Run, set []K, of func(*drill.Job) K) string {
	n := map[K]int{}
	for i := range r.Jobs {
		n[of(&r.Jobs[i])]++
	}
	var out []string
	for _, k := range set {
		if n[k] > 0 {
			out = append(out, fmt.Sprintf("%v %d", k, n[k]))
		}
	}
	return strings.Join(out, ", ")
}

// reasons counts what was said to jobs that the gate refused, or that it could
// promise nothing.
func reasons(r *drill.Run, undecided bool) string {
	return tally(r, slackgate.Reasons[:], func(j *drill.Job) slackgate.Reason {
		if j.Admitted() || j.Undecided() != undecided {
			return ""
		}
		return j.Reason
	})
}

func causes(r *drill.Run) string {
	return tally(r, broker.Causes[:], func(j *drill.Job) broker.Cause {
		if j.Outcome == "" || !j.Outcome.Miss() {
			return ""
		}
		return j.Cause
	})
}

func spendLines(r *drill.Run) []string {
	out := []string{fmt.Sprintf("%-5s %8s %8s %9s %8s  %s", "path", "attempts", "unknown", "in", "out", "cost, micro")}
	for _, s := range r.Spend {
		var costs []string
		for _, currency := range slices.Sorted(maps.Keys(s.CostMicro)) {
			costs = append(costs, fmt.Sprintf("%d %s", s.CostMicro[currency], currency))
		}
		if costs == nil {
			costs = []string{"0"}
		}
		out = append(out, fmt.Sprintf("%-5s %8d %8d %9d %8d  %s", s.Path, s.Attempts, s.Unknown, s.InputTokens, s.OutputTokens, strings.Join(costs, ", ")))
	}
	return out
}

func missLines(r *drill.Run) []string {
	out := []string{fmt.Sprintf("%-5s %-20s %5s", "path", "cause", "count")}
	for _, m := range r.Misses {
		out = append(out, fmt.Sprintf("%-5s %-20s %5d", m.Path, m.Cause, m.Count))
	}
	if len(r.Misses) == 0 {
		out = append(out, "none")
	}
	return out
}

// ledgers are the lines of both ledgers, side by side.
func ledgers(r *drill.Run) []struct{ Spend, Misses string } {
	spend, misses := spendLines(r), missLines(r)
	out := make([]struct{ Spend, Misses string }, max(len(spend), len(misses)))
	for i, line := range spend {
		out[i].Spend = line
	}
	for i, line := range misses {
		out[i].Misses = line
	}
	return out
}

// table aligns rows of cells that end in tabs.
func table(flags uint, rows ...string) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', flags)
	_, _ = io.WriteString(w, strings.Join(rows, "\n")+"\n") // a builder takes everything
	_ = w.Flush()
	return out.String()
}

func distributions(r *drill.Run) string {
	rows := []string{"\tn\tp50\tp90\tp95\tp99\tmax\t"}
	for _, d := range r.Dists {
		rows = append(rows, fmt.Sprintf("  %s\t%d\t%d\t%d\t%d\t%d\t%d\t", d.Name, d.N, d.P50, d.P90, d.P95, d.P99, d.Max))
	}
	return table(tabwriter.AlignRight, rows...)
}

func compared(r *drill.Run) string {
	rows := []string{"  \tusable\tlate\tdropped\trejected\twasted s\t"}
	for i := range r.Compared {
		c := &r.Compared[i]
		cells := []string{"  " + c.Name, opt(c.Usable), opt(c.Late), opt(c.Dropped), opt(c.Rejected), opt(c.WastedS), c.Note}
		rows = append(rows, strings.Join(cells, "\t"))
	}
	return table(0, rows...)
}
