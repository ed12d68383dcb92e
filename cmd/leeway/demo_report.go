package main

import (
	"context"
	"fmt"
	"sort"

	"leeway/broker"
	"leeway/slackgate"
)

// tally is what the demo counted by itself, to be held against the ledgers.
type tally struct {
	offered, admitted int
	byPath            map[slackgate.Path]int
	byReason          map[slackgate.Reason]int
	byOutcome         map[broker.Outcome]int
	attempts          int
	misses            map[slackgate.Path]int
}

func count(jobs []doneJob) *tally {
	t := &tally{
		byPath: map[slackgate.Path]int{}, byReason: map[slackgate.Reason]int{},
		byOutcome: map[broker.Outcome]int{}, misses: map[slackgate.Path]int{},
	}
	for i := range jobs {
		j := &jobs[i]
		t.offered++
		t.byPath[j.verdict.Path]++
		if j.view == nil {
			t.byReason[j.verdict.Reason]++
			if j.verdict.Reason == slackgate.ReasonDeadline {
				t.misses[slackgate.Reject]++
			}
			continue
		}
		t.admitted++
		t.byOutcome[j.view.Outcome]++
		t.attempts += j.view.Attempts
		if j.view.Outcome.Miss() {
			t.misses[j.view.Path]++
		}
	}
	return t
}

func (t *tally) success() int {
	n := 0
	for o, k := range t.byOutcome {
		if o.Success() {
			n += k
		}
	}
	return n
}

// report prints the totals and both ledgers, and checks what must hold.
func (r *demoRun) report(ctx context.Context, rule slackgate.Rule) error {
	t := count(r.jobs)
	r.printf("\ntotals\n  offered   %4d\n  admitted  %4d   paid %d, free %d\n", t.offered, t.admitted, t.byPath[slackgate.Paid], t.byPath[slackgate.Free])
	r.printf("  rejected  %4d  ", t.byPath[slackgate.Reject])
	for _, reason := range slackgate.Reasons {
		if n := t.byReason[reason]; n > 0 {
			r.printf(" %s %d", reason, n)
		}
	}
	usable := t.byOutcome[broker.OutcomeUsable]
	r.printf("\n  usable    %4d   of admitted: %s usable beside %s success (an answer came, in time or not)\n",
		usable, percent(usable, t.admitted), percent(t.success(), t.admitted))

	settled, _, err := r.api.Spend(ctx)
	if err != nil {
		return err
	}
	misses, err := r.api.Misses(ctx)
	if err != nil {
		return err
	}
	r.ledgers(settled, misses)
	return r.check(ctx, t, rule, settled, misses)
}

func percent(n, of int) string {
	if of == 0 {
		return "none"
	}
	return fmt.Sprintf("%d%%", 100*n/of)
}

// ledgers prints the two books side by side. They are never summed.
func (r *demoRun) ledgers(spend []broker.SpendRow, misses []broker.MissRow) {
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
func (r *demoRun) check(ctx context.Context, t *tally, rule slackgate.Rule, settled []broker.SpendRow, misses []broker.MissRow) error {
	r.printf("\nwhat must hold\n")
	balanced, err := checkLedgers(ctx, r.out, r.api, r.metrics)
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
	missed := 0
	for _, n := range t.misses {
		missed += n
	}
	must(len(settled) == t.attempts && len(misses) == missed,
		"the producers saw the same: %d attempts, %d misses", t.attempts, missed)
	must(len(t.byPath) == 3, "paid, free and reject were all seen")
	if rule == slackgate.Predictive {
		broken := t.misses[slackgate.Paid] + t.misses[slackgate.Free]
		must(broken == 0, "no promise was missed on a healthy lab: %d", broken)
	}
	if failed > 0 {
		return fmt.Errorf("%d checks failed", failed)
	}
	return nil
}
