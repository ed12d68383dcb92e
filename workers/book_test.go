package workers

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"leeway/broker"
	"leeway/slackgate"
	"leeway/workers/attempt"
	"leeway/workers/backend"
)

// claimed is a job of 10 s of which 2 s are reserve, taken at once.
func claimed() *broker.Claim {
	return &broker.Claim{
		Spec: broker.Spec{ID: "j", Class: "summary", Producer: "p", MaxOutputTokens: 100},
		Path: slackgate.Paid, NowMS: 1000, DeadlineAtMS: 11_000, ReserveMS: 2000,
	}
}

// logged is a run of the claimed job, and what it logs.
func logged() (*jobRun, *bytes.Buffer) {
	var log bytes.Buffer
	return &jobRun{consumer: &consumer{Pool: &Pool{Options: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}}}, claim: claimed()}, &log
}

func tokens(in, out int64, known broker.Known) broker.Usage {
	return broker.Usage{InputTokens: in, OutputTokens: out, Known: known}
}

// A row is opened from the call and settled from how it ended: what was not seen
// stays charged at its largest, what a backend says of its cost goes before its
// price, and what was not called costs nothing.
func TestSpendRow(t *testing.T) {
	price := backend.Price{Currency: "USD", Version: "2", InputMicroPerMTok: 1_000_000, OutputMicroPerMTok: 2_000_000}
	opened := func(change func(*broker.SpendRow)) broker.SpendRow {
		row := broker.SpendRow{
			JobID: "j", Attempt: 3, Path: slackgate.Paid, Class: "summary", Producer: "p", Backend: "b", Model: "m",
			Currency: "USD", PriceVersion: "2", Priced: true, OpenedAtMS: 1234, MaxCostMicro: 250, MaxOutputTokens: 130,
		}
		change(&row)
		return row
	}
	said := func(micro int64) *int64 { return &micro }
	for _, tt := range []struct {
		name  string
		price backend.Price
		ended attempt.Attempt
		want  broker.SpendRow
		log   string
	}{
		{
			"a whole answer costs what it used", price,
			attempt.Attempt{Answer: backend.Answer{Usage: backend.Usage{Usage: tokens(50, 10, broker.KnownReported)}}},
			opened(func(r *broker.SpendRow) {
				r.Usage, r.CostMicro, r.Result = tokens(50, 10, broker.KnownReported), 70, "whole"
			}), "",
		},
		{
			"a cut answer costs what is estimated", price,
			attempt.Attempt{
				Answer: backend.Answer{Usage: backend.Usage{Usage: tokens(50, 4, broker.KnownEstimated), Clamped: true}},
				Reason: backend.ReasonStall,
			},
			opened(func(r *broker.SpendRow) {
				r.Usage, r.Clamped, r.CostMicro, r.Result = tokens(50, 4, broker.KnownEstimated), true, 58, "stall"
			}), "",
		},
		{
			"an unknown attempt stays charged at its largest", price,
			attempt.Attempt{
				Answer: backend.Answer{Usage: backend.Usage{Usage: tokens(50, 0, broker.KnownUnknown)}},
				Reason: backend.ReasonFirstByte,
			},
			opened(func(r *broker.SpendRow) {
				r.Usage, r.CostMicro, r.Result = tokens(50, 130, broker.KnownUnknown), 250, "first_byte"
			}), "",
		},
		{
			"an attempt that was not called costs nothing", price, attempt.NotCalled(attempt.Call{}),
			opened(func(r *broker.SpendRow) {
				r.Usage, r.Result = tokens(0, 0, broker.KnownUnbilled), "not_called"
			}), "",
		},
		{
			"a call that was turned away costs nothing", price,
			attempt.Attempt{Answer: backend.Answer{Usage: backend.Unbilled()}, Reason: backend.ReasonRateLimited},
			opened(func(r *broker.SpendRow) {
				r.Usage, r.Result = tokens(0, 0, broker.KnownUnbilled), "rate_limited"
			}), "",
		},
		{
			"the backend's own figure is booked, and the list's beside it", price,
			attempt.Attempt{Answer: backend.Answer{Usage: backend.Usage{
				Usage: tokens(50, 10, broker.KnownReported), ReportedCostMicro: said(71),
			}}},
			opened(func(r *broker.SpendRow) {
				r.Usage, r.CostMicro, r.Result = tokens(50, 10, broker.KnownReported), 71, "whole"
				r.ReportedCostMicro, r.ListCostMicro = said(71), said(70)
			}), "",
		},
		{
			"a figure far from the list's is told", price,
			attempt.Attempt{Answer: backend.Answer{Usage: backend.Usage{
				Usage: tokens(50, 10, broker.KnownReported), ReportedCostMicro: said(250),
			}}},
			opened(func(r *broker.SpendRow) {
				r.Usage, r.CostMicro, r.Result = tokens(50, 10, broker.KnownReported), 250, "whole"
				r.ReportedCostMicro, r.ListCostMicro = said(250), said(70)
			}), "reported another cost than its price makes",
		},
		{
			"a figure beyond what was kept for the call is held to that, and marked", price,
			attempt.Attempt{Answer: backend.Answer{Usage: backend.Usage{
				Usage: tokens(50, 10, broker.KnownReported), ReportedCostMicro: said(250_000),
			}}},
			opened(func(r *broker.SpendRow) {
				r.Usage, r.Clamped, r.CostMicro, r.Result = tokens(50, 10, broker.KnownReported), true, 250, "whole"
				r.ReportedCostMicro, r.ListCostMicro = said(250_000), said(70)
			}), "booked_micro=250",
		},
		{
			"a figure of nothing is not believed where the price makes more", price,
			attempt.Attempt{Answer: backend.Answer{Usage: backend.Usage{
				Usage: tokens(50, 10, broker.KnownEstimated), ReportedCostMicro: said(0),
			}}},
			opened(func(r *broker.SpendRow) {
				r.Usage, r.CostMicro, r.Result = tokens(50, 10, broker.KnownEstimated), 70, "whole"
				r.ReportedCostMicro, r.ListCostMicro = said(0), said(70)
			}), "reported another cost than its price makes",
		},
		{
			"a free backend that reports a cost is told, and its tokens cost money", backend.Price{Currency: "USD", Version: "2"},
			attempt.Attempt{Answer: backend.Answer{Usage: backend.Usage{
				Usage: tokens(50, 10, broker.KnownReported), ReportedCostMicro: said(9),
			}}},
			opened(func(r *broker.SpendRow) {
				r.Usage, r.CostMicro, r.Result = tokens(50, 10, broker.KnownReported), 9, "whole"
				r.ReportedCostMicro, r.ListCostMicro = said(9), said(0)
			}), "without a price reported a cost",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, log := logged()
			call := attempt.Call{Number: 3, Backend: "b", Model: "m", Price: tt.price, OutputLimit: 130, LargestCostMicro: 250}
			r.open = r.newRow(&call)
			if r.open.Priced == tt.price.Free() {
				t.Errorf("priced before the call: %v", r.open.Priced)
			}
			r.open.OpenedAtMS = 1234 // the store's
			tt.ended.Call = call
			row := r.settledRow(&tt.ended)
			if diff := cmp.Diff(tt.want, row); diff != "" {
				t.Errorf("the row (- want, + got):\n%s", diff)
			}
			if (log.Len() > 0) != (tt.log != "") || !strings.Contains(log.String(), tt.log) {
				t.Errorf("log %q, want %q", log, tt.log)
			}
		})
	}
}

// What is booked as a job's end follows from its attempts.
func TestConclude(t *testing.T) {
	failed := attempt.Attempt{
		Call:   attempt.Call{Backend: "a"},
		Answer: backend.Answer{Usage: backend.Usage{Usage: tokens(5, 0, broker.KnownUnknown)}},
		Reason: backend.ReasonFirstByte,
	}
	whole := attempt.Attempt{
		Call:   attempt.Call{Backend: "b"},
		Answer: backend.Answer{Usage: backend.Usage{Usage: tokens(5, 7, broker.KnownReported)}},
	}
	text := func(first time.Duration) backend.Answer {
		return backend.Answer{Text: "An answer.", HasText: true, FirstByte: first, Finish: backend.FinishStop}
	}
	used := tokens(5, 7, broker.KnownReported)
	for _, tt := range []struct {
		name      string
		res       attempt.Result
		cancelled bool
		want      broker.Finish
	}{
		{
			"a usable answer names its backend and what it used",
			attempt.Result{Outcome: broker.OutcomeUsable, Answer: text(time.Second), Backend: "b", Attempts: []attempt.Attempt{whole}}, false,
			broker.Finish{
				Outcome: broker.OutcomeUsable, Answer: "An answer.", Backend: "b", FirstByteMS: 1000,
				FirstRoute: "b", FirstOutcome: "whole", FinishReason: "stop", Usage: &used,
			},
		},
		{
			"after a failover both attempts are named",
			attempt.Result{Outcome: broker.OutcomeUsable, Answer: text(time.Second), Backend: "b", Attempts: []attempt.Attempt{failed, whole}}, false,
			broker.Finish{
				Outcome: broker.OutcomeUsable, Answer: "An answer.", Backend: "b", FirstByteMS: 1000,
				FirstRoute: "a", FirstOutcome: "first_byte", FallbackOutcome: "whole", FinishReason: "stop", Usage: &used,
			},
		},
		{
			"usage that nobody knows is left out",
			attempt.Result{Outcome: broker.OutcomeLate, Reason: backend.ReasonFirstByte, Backend: "a", Attempts: []attempt.Attempt{failed}}, false,
			broker.Finish{
				Outcome: broker.OutcomeLate, Cause: broker.CauseCutAtDeadline, Reason: "first_byte", Backend: "a", FirstByteMS: -1,
				FirstRoute: "a", FirstOutcome: "first_byte",
			},
		},
		{
			"a first byte in the slack's last millisecond makes the end late",
			attempt.Result{Outcome: broker.OutcomeLate, Answer: text(8 * time.Second)}, false,
			broker.Finish{Outcome: broker.OutcomeLate, Cause: broker.CauseLateFinish, FirstByteMS: 8000},
		},
		{
			"a millisecond later the first byte was late",
			attempt.Result{Outcome: broker.OutcomeLate, Answer: text(8*time.Second + time.Millisecond)}, false,
			broker.Finish{Outcome: broker.OutcomeLate, Cause: broker.CauseLateFirstByte, FirstByteMS: 8001},
		},
		{
			"an answer that the deadline ended was cut there",
			attempt.Result{Outcome: broker.OutcomeLate, Answer: text(time.Second), Reason: backend.ReasonDeadline}, false,
			broker.Finish{Outcome: broker.OutcomeLate, Cause: broker.CauseCutAtDeadline, Reason: "deadline", FirstByteMS: 1000},
		},
		{
			"a job for which no backend was called expired in the queue",
			attempt.Result{Outcome: broker.OutcomeExpired}, false,
			broker.Finish{Outcome: broker.OutcomeExpired, Cause: broker.CauseExpiredInQueue, FirstByteMS: -1},
		},
		{
			"an empty answer", attempt.Result{Outcome: broker.OutcomeEmpty, Reason: backend.ReasonEmpty}, false,
			broker.Finish{Outcome: broker.OutcomeEmpty, Cause: broker.CauseEmpty, Reason: "empty", FirstByteMS: -1},
		},
		{
			"a truncated answer", attempt.Result{Outcome: broker.OutcomeTruncated, Reason: backend.ReasonStall}, false,
			broker.Finish{Outcome: broker.OutcomeTruncated, Cause: broker.CauseTruncated, Reason: "stall", FirstByteMS: -1},
		},
		{
			"a failure", attempt.Result{Outcome: broker.OutcomeFailed, Reason: backend.ReasonAuth}, false,
			broker.Finish{Outcome: broker.OutcomeFailed, Cause: broker.CauseFailed, Reason: "auth", FirstByteMS: -1},
		},
		{
			"a cancel by the producer is no miss", attempt.Result{Outcome: broker.OutcomeCancelled, Reason: backend.ReasonCancelled}, true,
			broker.Finish{Outcome: broker.OutcomeCancelled, Reason: "cancelled", FirstByteMS: -1},
		},
		{
			"a cut that no producer asked for is a failure", attempt.Result{Outcome: broker.OutcomeCancelled, Reason: backend.ReasonCancelled}, false,
			broker.Finish{Outcome: broker.OutcomeFailed, Cause: broker.CauseFailed, Reason: "cancelled", FirstByteMS: -1},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, _ := logged()
			if diff := cmp.Diff(&tt.want, r.conclude(&tt.res, tt.cancelled)); diff != "" {
				t.Errorf("the end (- want, + got):\n%s", diff)
			}
		})
	}
}
