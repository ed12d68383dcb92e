//go:build server

package e2e_test

import (
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/workers"
)

// TestFaults plays backend faults over the real wire. Each meets a pool with a
// healthy second backend and a pool without one.
func TestFaults(t *testing.T) {
	t.Parallel()
	s := quick()
	s.Spare = true
	s.PaidMS, s.PaidP95 = 60, 300
	s.FreeMS, s.FreeP95 = 60, 300
	s.DeadlineMS, s.ReserveMS = 3000, 500
	// A class whose jobs can wait: else one cut call closes the free pool to all, and the probes that then go to it are
	// calls that this test does not count.
	s.More = "  patient: {deadline_ms: 60000, prefer: free-only}\n"

	rows := []struct {
		fault string
		ms    int
		// With a second backend: the outcome, and how the first attempt ended.
		paired, first string
		// Alone: outcome, reason and attempts.
		alone  broker.Outcome
		reason string
		calls  int
	}{
		{"silent", 0, "usable", "first_byte", broker.OutcomeLate, "first_byte", 1},
		{"headers-only", 0, "usable", "first_byte", broker.OutcomeLate, "first_byte", 1},
		{"slow", 8000, "usable", "first_byte", broker.OutcomeLate, "first_byte", 1},
		{"cut.clean", 0, "usable", "truncated", broker.OutcomeTruncated, "truncated", 1},
		{"empty.content", 0, "usable", "empty", broker.OutcomeEmpty, "empty", 1},
		{"error-in-200.object", 0, "usable", "upstream_error", broker.OutcomeFailed, "upstream_error", 2},
		{"down.refused", 0, "usable", "connect", broker.OutcomeFailed, "connect", 1},
		{"refused.policy", 0, "failed", "refused", broker.OutcomeFailed, "refused", 1},
		{"no-done", 0, "usable", "whole", broker.OutcomeUsable, "", 1},
		{"usage-missing.none", 0, "usable", "whole", broker.OutcomeUsable, "", 1},
		{"usage-absurd.huge", 0, "usable", "whole", broker.OutcomeUsable, "", 1},
	}
	// A deployment for each, so that one fault's breaker is not the next one's.
	for _, row := range rows {
		t.Run(row.fault, func(t *testing.T) {
			t.Parallel()
			d := run(t, s)
			d.labs["lab-paid"].fault(row.fault, row.ms)
			d.labs["lab-free"].fault(row.fault, row.ms)
			paired := d.admit(client.Job{Class: "paid-only", Text: documents(t)[3]})
			alone := d.admit(client.Job{Class: "free-only", Text: documents(t)[3]})
			d.settled(20 * time.Second)

			p := paired.view
			if p.Outcome != broker.Outcome(row.paired) || p.FirstOutcome != row.first || p.FirstRoute != "lab-paid" {
				t.Errorf("with a second backend: %s after %s on %s, want %s after %s (%+v)", p.Outcome, p.FirstOutcome, p.FirstRoute, row.paired, row.first, p)
			}
			if p.Outcome == broker.OutcomeUsable {
				checkSummary(t, paired)
			}
			a := alone.view
			if a.Outcome != row.alone || a.Reason != row.reason || a.Attempts != row.calls {
				t.Errorf("alone: %s, %q after %d attempts, want %s, %q after %d", a.Outcome, a.Reason, a.Attempts, row.alone, row.reason, row.calls)
			}
			if a.Outcome != broker.OutcomeUsable && a.Answer != "" {
				t.Errorf("a %s answer was passed on: %q", a.Outcome, a.Answer)
			}
			for _, r := range d.rows() { // which makes the backends well
				if r.Class != workers.ProbeClass {
					checkSpend(t, row.fault, &r)
				}
			}
			d.labs["lab-paid"].busy(0)
			d.labs["lab-free"].busy(0)
			d.audit(rules{uncalled: func(r *broker.SpendRow) bool { return r.Result == "connect" }})
		})
	}
}

// checkSpend: how each fault's attempts must be booked.
func checkSpend(t *testing.T, fault string, r *broker.SpendRow) {
	t.Helper()
	if r.InputTokens < 0 || r.OutputTokens < 0 || r.CostMicro < 0 {
		t.Errorf("a credit was booked: %+v", r)
	}
	faulty := r.Backend != "lab-spare"
	switch {
	case !faulty:
		if r.Known != broker.KnownReported || r.CostMicro <= 0 {
			t.Errorf("the healthy backend's attempt: %+v", r)
		}
	case fault == "empty.content":
		if r.OutputTokens == 0 || r.Known != broker.KnownReported {
			t.Errorf("an empty answer is billed: %+v", r)
		}
	case fault == "silent", fault == "headers-only", fault == "slow":
		if r.Known != broker.KnownUnknown || r.InputTokens == 0 {
			t.Errorf("nobody knows what a silent backend billed: %+v", r)
		}
	case fault == "usage-missing.none":
		if r.Known != broker.KnownEstimated || r.OutputTokens == 0 {
			t.Errorf("missing usage is estimated: %+v", r)
		}
	case fault == "usage-absurd.huge":
		if !r.Clamped || r.OutputTokens > 100_000 {
			t.Errorf("absurd usage is bounded and marked: %+v", r)
		}
	case fault == "down.refused":
		if r.CostMicro != 0 || r.OutputTokens != 0 {
			t.Errorf("a call that reached nobody costs nothing: %+v", r)
		}
	}
}
