// Package report shows a drill's evidence: as plain lines, as one HTML file
// with charts, and two drills side by side.
package report

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"leeway/broker"
	"leeway/rehearsal/drill"
	"leeway/slackgate"
)

// printer writes to a person; what cannot be written has nobody to tell.
type printer struct{ w io.Writer }

func (p printer) f(format string, args ...any) { fmt.Fprintf(p.w, format, args...) }

// Header prints what a drill declares, before anything starts.
func Header(w io.Writer, e *drill.Evidence) {
	p := printer{w}
	p.f("drill %s: %s\n", e.Plan.Name, e.Plan.About)
	p.f("  against    %s, %s time\n", e.Against, e.Clock)
	for _, l := range declared(e.Plan) {
		p.f("  %-10s %s\n", l[0], l[1])
	}
	for _, l := range e.Differs {
		p.f("  differs    %s\n", l)
	}
	for _, l := range e.LeftOut {
		p.f("  left out   %s\n", l)
	}
	p.f("\n")
}

// declared is a plan in words, line by line.
func declared(plan *drill.Plan) (out [][2]string) {
	add := func(k, format string, args ...any) { out = append(out, [2]string{k, fmt.Sprintf(format, args...)}) }
	c := plan.Class
	gate := plan.Policy.String()
	if plan.RecheckOff {
		gate += ", re-check OFF"
	}
	add("jobs", "deadline %d ms, reserve %d ms, %s; gate %s", c.DeadlineMS, c.ReserveMS, c.Prefer, gate)
	for _, a := range plan.Arrivals {
		var what string
		if a.PerSecond > 0 {
			what = fmt.Sprintf("%g a second for %g s", a.PerSecond, float64(a.ForMS)/1000)
		} else {
			what = fmt.Sprintf("%d at once", a.Count)
			if a.EveryMS > 0 {
				what += fmt.Sprintf(" every %g s for %g s", float64(a.EveryMS)/1000, float64(a.ForMS)/1000)
			}
		}
		if a.FromMS > 0 {
			what += fmt.Sprintf(", from %g s on", float64(a.FromMS)/1000)
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
		var line strings.Builder
		fmt.Fprintf(&line, "%d slots, first byte p95 %d ms", pool.Slots, pool.P95MS)
		if pool.HoldP95MS > pool.P95MS {
			fmt.Fprintf(&line, ", hold p95 %d ms", pool.HoldP95MS)
		}
		for _, l := range pool.Labs {
			fmt.Fprintf(&line, "; %s %s", l.Name, l.FirstByte)
			if l.Tail != "0" {
				line.WriteString(" tail " + l.Tail)
			}
		}
		add(path.String(), "%s", line.String())
	}
	for i := range plan.Events {
		add("event", "at %g s: %s", float64(plan.Events[i].AtMS)/1000, plan.Events[i].String())
	}
	if plan.Contrast != "" {
		add("contrast", "first, the same callers straight to %s", plan.Contrast)
	}
	for _, t := range plan.Thresholds {
		add("threshold", "%s", t)
	}
	return out
}

// Text prints a run.
func Text(w io.Writer, e *drill.Evidence, r *drill.Run) {
	p := printer{w}
	p.f("thresholds\n")
	for _, l := range verdicts(r) {
		p.f("  %s\n", l)
	}
	if late := r.Machine.Late(); len(late) > 0 {
		p.f("  %s: %s\n", lateNote, strings.Join(late, "; "))
	}
	p.totals(r)
	if r.Direct != nil {
		d := r.Direct
		p.f("\nwithout Leeway, straight to %s\n  %d callers: %d HTTP 200, %d in time; p50 %d ms, the last after %d ms\n",
			d.Backend, d.Callers, d.OK, d.InTime, d.P50MS, d.LastMS)
	}
	p.f("\nspend ledger and deadline-miss ledger, side by side and never summed\n")
	spend, misses := spendLines(r), missLines(r)
	for i := range max(len(spend), len(misses)) {
		p.f("  %-56s | %s\n", at(spend, i), at(misses, i))
	}
	p.distributions(r)
	p.compared(r)
	p.done(r)
	p.f("\nafterwards\n")
	for _, c := range r.Checks {
		p.f("  %s %s%s\n", tick(c.OK), c.Detail, before(c))
	}
	if e.Clock == "virtual" {
		p.f("  %s\n", simulatedNote)
	}
}

// lateNote introduces how late the machine was.
const lateNote = "the machine was late, and a threshold that did not hold may be about that"

// simulatedNote says what a simulated drill is not.
const simulatedNote = "simulated: the same gate and the same plan of attempts, no processes, no ledgers to check"

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

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

func verdicts(r *drill.Run) (out []string) {
	for _, v := range r.Verdicts {
		got := "no such number in this run"
		if v.Value != nil {
			got = "is " + number(*v.Value)
		}
		out = append(out, fmt.Sprintf("%s %-36s %s", tick(v.OK), v.Threshold, got))
	}
	return out
}

// number prints at most two digits after the point.
func number(x float64) string {
	return strconv.FormatFloat(math.Round(x*100)/100, 'f', -1, 64)
}

func percent(n, of float64) string {
	if of == 0 {
		return "none"
	}
	return fmt.Sprintf("%.1f %%", 100*n/of)
}

func (p printer) totals(r *drill.Run) {
	m := r.Metrics
	p.f("\ntotals\n")
	p.f("  offered   %5s\n", number(m["offered"]))
	p.f("  admitted  %5s   paid %s, free %s\n", number(m["admitted"]), number(m["admitted_paid"]), number(m["admitted_free"]))
	p.f("  rejected  %5s   %s\n", number(m["rejected"]), reasons(r, false))
	if m["undecided"] > 0 {
		p.f("  undecided %5s   %s\n", number(m["undecided"]), reasons(r, true))
	}
	p.f("  usable    %5s   of admitted: %s usable beside %s success (an answer came, in time or not)\n",
		number(m["usable"]), percent(m["usable"], m["admitted"]), percent(m["success"], m["admitted"]))
	p.f("  missed    %5s   %s\n", number(m["missed"]), causes(r))
	p.f("  wasted    %5s s of backend time on calls that nobody could use\n", number(m["wasted_s"]))
}

// reasons counts what was said to jobs that the gate refused, or that it could
// promise nothing.
func reasons(r *drill.Run, undecided bool) string {
	n := map[slackgate.Reason]int{}
	for i := range r.Jobs {
		if j := &r.Jobs[i]; !j.Admitted() && j.Undecided() == undecided {
			n[j.Reason]++
		}
	}
	var out []string
	for _, reason := range slackgate.Reasons {
		if n[reason] > 0 {
			out = append(out, fmt.Sprintf("%s %d", reason, n[reason]))
		}
	}
	return strings.Join(out, ", ")
}

func causes(r *drill.Run) string {
	n := map[broker.Cause]int{}
	for i := range r.Jobs {
		if j := &r.Jobs[i]; j.Outcome != "" && j.Outcome.Miss() {
			n[j.Cause]++
		}
	}
	var out []string
	for _, c := range broker.Causes {
		if n[c] > 0 {
			out = append(out, fmt.Sprintf("%s %d", c, n[c]))
		}
	}
	return strings.Join(out, ", ")
}

func spendLines(r *drill.Run) []string {
	out := []string{fmt.Sprintf("%-5s %8s %8s %9s %8s  %s", "path", "attempts", "unknown", "in", "out", "cost, micro")}
	for _, s := range r.Spend {
		cost := "0"
		if len(s.CostMicro) > 0 {
			var parts []string
			for _, c := range slices.Sorted(maps.Keys(s.CostMicro)) {
				parts = append(parts, fmt.Sprintf("%d %s", s.CostMicro[c], c))
			}
			cost = strings.Join(parts, ", ")
		}
		out = append(out, fmt.Sprintf("%-5s %8d %8d %9d %8d  %s", s.Path, s.Attempts, s.Unknown, s.InputTokens, s.OutputTokens, cost))
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

func (p printer) distributions(r *drill.Run) {
	p.f("\ndistributions, ms\n")
	w := tabwriter.NewWriter(p.w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tn\tp50\tp90\tp95\tp99\tmax\t")
	for _, d := range r.Dists {
		fmt.Fprintf(w, "  %s\t%d\t%d\t%d\t%d\t%d\t%d\t\n", d.Name, d.N, d.P50, d.P90, d.P95, d.P99, d.Max)
	}
	_ = w.Flush()
}

func (p printer) compared(r *drill.Run) {
	if len(r.Compared) == 0 {
		return
	}
	p.f("\non this run's own arrivals and service times\n")
	w := tabwriter.NewWriter(p.w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "  \tusable\tlate\tdropped\trejected\twasted s\t")
	for i := range r.Compared {
		c := &r.Compared[i]
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.Name, opt(c.Usable), opt(c.Late), opt(c.Dropped), opt(c.Rejected), opt(c.WastedS), c.Note)
	}
	_ = w.Flush()
}

func opt(x *float64) string {
	if x == nil {
		return "-"
	}
	return number(*x)
}

func (p printer) done(r *drill.Run) {
	if len(r.Done) == 0 {
		return
	}
	p.f("\nwhat was done, and when\n")
	for _, d := range r.Done {
		line := fmt.Sprintf("%7.2f s  %s", float64(d.AtMS)/1000, d.What)
		if d.Error != "" {
			line += ": FAILED: " + d.Error
		}
		p.f("  %s\n", line)
	}
}
