package demo

import (
	"context"
	"fmt"
	"sort"

	"leeway/broker"
	"leeway/slackgate"
)

// tally is what the demo counted by itself, to be held against the ledgers.
type tally struct {
	admitted, success, attempts int
	broken                      int // promises: misses among the admitted
	byPath                      map[slackgate.Path]int
	byReason                    map[slackgate.Reason]int
	byOutcome                   map[broker.Outcome]int
}

func count(jobs []doneJob) *tally {
	t := &tally{byPath: map[slackgate.Path]int{}, byReason: map[slackgate.Reason]int{}, byOutcome: map[broker.Outcome]int{}}
	for i := range jobs {
		v, end := jobs[i].verdict, jobs[i].view
		t.byPath[v.Path]++
		if end == nil {
			t.byReason[v.Reason]++
			continue
		}
		t.admitted++
		t.byOutcome[end.Outcome]++
		t.attempts += end.Attempts
		if end.Outcome.Success() {
			t.success++
		}
		if end.Outcome.Miss() {
			t.broken++
		}
	}
	return t
}

// report prints the totals and both ledgers, and checks what must hold.
func (r *run) report(ctx context.Context) error {
	t := count(r.jobs)
	r.printf("\ntotals\n  offered   %4d\n  admitted  %4d   paid %d, free %d\n", len(r.jobs), t.admitted, t.byPath[slackgate.Paid], t.byPath[slackgate.Free])
	r.printf("  rejected  %4d  ", t.byPath[slackgate.Reject])
	for _, reason := range slackgate.Reasons {
		if n := t.byReason[reason]; n > 0 {
			r.printf(" %s %d", reason, n)
		}
	}
	usable := t.byOutcome[broker.OutcomeUsable]
	r.printf("\n  usable    %4d   of admitted: %s usable beside %s success (an answer came, in time or not)\n",
		usable, percent(usable, t.admitted), percent(t.success, t.admitted))

	settled, _, err := r.api.Spend(ctx)
	if err != nil {
		return err
	}
	misses, err := r.api.Misses(ctx)
	if err != nil {
		return err
	}
	r.ledgers(settled, misses)
	return r.check(ctx, t, len(settled), len(misses))
}

func percent(n, of int) string {
	if of == 0 {
		return "none"
	}
	return fmt.Sprintf("%d%%", 100*n/of)
}

// ledgers prints the two books side by side. They are never summed.
func (r *run) ledgers(spend []broker.SpendRow, misses []broker.MissRow) {
	type sums struct{ attempts, in, out, cost int64 }
	byPath := map[slackgate.Path]*sums{slackgate.Paid: {}, slackgate.Free: {}}
	for i := range spend {
		s := byPath[spend[i].Path]
		s.attempts++
		s.in += spend[i].InputTokens
		s.out += spend[i].OutputTokens
		s.cost += spend[i].CostMicro
	}
	left := []string{fmt.Sprintf("%-5s %8s %9s %9s %12s", "path", "attempts", "in", "out", "micro-USD")}
	for _, p := range slackgate.Paths {
		s := byPath[p]
		left = append(left, fmt.Sprintf("%-5s %8d %9d %9d %12d", p, s.attempts, s.in, s.out, s.cost))
	}
	causes := map[string]int{}
	for i := range misses {
		causes[fmt.Sprintf("%-7s %-22s", misses[i].Path, misses[i].Cause)]++
	}
	right := []string{fmt.Sprintf("%-7s %-22s %5s", "path", "cause", "count")}
	for k, n := range causes {
		right = append(right, fmt.Sprintf("%s %5d", k, n))
	}
	sort.Strings(right[1:])
	if len(misses) == 0 {
		right = append(right, "none")
	}
	r.printf("\n%-48s | %s\n", "spend ledger", "deadline-miss ledger")
	for i := range max(len(left), len(right)) {
		l, m := "", ""
		if i < len(left) {
			l = left[i]
		}
		if i < len(right) {
			m = right[i]
		}
		r.printf("%-48s | %s\n", l, m)
	}
}

// check holds the run against what must be true of it: the ledgers' own
// balance, and what the demo saw itself.
func (r *run) check(ctx context.Context, t *tally, attempts, misses int) error {
	r.printf("\nwhat must hold\n")
	balanced, err := r.Check(ctx, r.Out, r.api, r.metrics)
	if err != nil {
		return err
	}
	failed := 0
	if !balanced {
		failed++
	}
	must := func(ok bool, format string, args ...any) {
		mark := "✓"
		if !ok {
			mark = "✗"
			failed++
		}
		r.printf("  %s %s\n", mark, fmt.Sprintf(format, args...))
	}
	missed := t.broken + t.byReason[slackgate.ReasonDeadline]
	must(attempts == t.attempts && misses == missed, "the producers saw the same: %d attempts, %d misses", t.attempts, missed)
	must(len(t.byPath) == 3, "paid, free and reject were all seen")
	if r.Policy == slackgate.Predictive {
		must(t.broken == 0, "no promise was missed on a healthy lab: %d", t.broken)
	}
	if failed > 0 {
		return fmt.Errorf("%d checks failed", failed)
	}
	return nil
}
