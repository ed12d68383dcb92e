package app_test

import (
	"cmp"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/rehearsal/lab"
	"leeway/slackgate"
)

// Every form in which a backend may say what a call used, over the whole of
// Leeway: booked once, at its final value, never as a credit, and the books
// balance.
func TestUsageForms(t *testing.T) {
	for _, tt := range []struct {
		fault string
		known broker.Known
		// exact is set when the row must say what the lab itself counted.
		exact, clamped, differs bool
	}{
		{"ok", broker.KnownReported, true, false, false},
		{"usage-forms.empty-choices", broker.KnownReported, true, false, false},
		{"usage-forms.last", broker.KnownReported, true, false, false},
		{"usage-forms.cumulative", broker.KnownReported, true, false, false},
		{"usage-missing.none", broker.KnownEstimated, false, false, false},
		{"usage-missing.null", broker.KnownEstimated, false, false, false},
		{"usage-missing.zeros", broker.KnownEstimated, false, false, false},
		{"usage-absurd.negative", broker.KnownEstimated, false, true, false},
		{"usage-absurd.huge", broker.KnownEstimated, false, true, false},
		{"usage-absurd.strings", broker.KnownReported, true, false, false},
		{"usage-absurd.cached", broker.KnownReported, false, true, false},
		{"usage-apart.reasoning", broker.KnownReported, true, false, false},
		{"usage-apart.untold", broker.KnownReported, true, true, false},
		{"usage-apart.total", broker.KnownReported, true, false, false},
		{"paid-in-disguise", broker.KnownReported, true, true, true}, // of a backend with a price
		{"cost-absurd.high", broker.KnownReported, true, true, true},
		{"cost-absurd.zero", broker.KnownReported, true, false, true},
		{"cost-absurd.zeros", broker.KnownEstimated, false, false, true},
	} {
		t.Run(tt.fault, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg, labs := declared(slackgate.Predictive)
				w := start(t, cfg, labs)
				must(t, w.labs["paid-1"].SetFault(lab.Fault{Name: tt.fault}))
				v := w.submit(&client.Job{Text: document, Producer: "p"})
				end := w.wait(v.JobID)
				if end.Outcome != broker.OutcomeUsable {
					t.Fatalf("outcome %s (%s)", end.Outcome, end.Reason)
				}
				settled, _, err := w.client.Spend(t.Context())
				must(t, err)
				if len(settled) != 1 {
					t.Fatalf("%d rows", len(settled))
				}
				r := &settled[0]
				if r.Known != tt.known || r.Clamped != tt.clamped || r.CostDiffers() != tt.differs {
					t.Errorf("known %s, clamped %v, cost differs %v; want %s, %v, %v: %+v", r.Known, r.Clamped, r.CostDiffers(), tt.known, tt.clamped, tt.differs, r)
				}
				attempts, _ := w.labs["paid-1"].Attempts(0)
				a := attempts[0]
				if tt.exact && (r.InputTokens != int64(a.PromptTokens) || r.OutputTokens != int64(a.CompletionTokens)) {
					t.Errorf("booked %d and %d tokens, used were %d and %d", r.InputTokens, r.OutputTokens, a.PromptTokens, a.CompletionTokens)
				}
				if r.InputTokens <= 0 || r.OutputTokens <= 0 || r.CostMicro <= 0 || r.CostMicro > max(r.MaxCostMicro, *cmp.Or(r.ListCostMicro, new(r.CostMicro))) || r.InputTokens > 1e6 || r.OutputTokens > 1e6 || r.CachedTokens > r.InputTokens {
					t.Errorf("booked %+v", r)
				}
				if r.OpenedAtMS == 0 || r.SettledAtMS < r.OpenedAtMS {
					t.Errorf("opened at %d, settled at %d", r.OpenedAtMS, r.SettledAtMS)
				}
				w.balance([]*broker.Job{end}, 0)
				time.Sleep(time.Second)
				report, err := w.client.CheckLedgers(t.Context())
				must(t, err)
				if !report.Balanced {
					for _, i := range report.Items {
						t.Errorf("%s: %v", i.Name, i.Problems)
					}
				}
			})
		})
	}
}
