package joblog

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"testing"

	"leeway/broker"
	"leeway/slackgate"
)

// fields are those of every submission's line, in no order.
var fields = []string{
	"job_id", "class", "path", "reason", "backend", "offered_at", "deadline_ms", "queue_age_ms", "queue_wait_ms", "predicted_wait_ms",
	"first_byte_ms", "remaining_slack_ms", "first_route", "first_outcome", "fallback_outcome", "outcome", "elapsed_ms",
}

func line(t *testing.T, write func(*slog.Logger)) map[string]any {
	t.Helper()
	var buf bytes.Buffer
	write(slog.New(slog.NewJSONHandler(&buf, nil)))
	if bytes.Count(buf.Bytes(), []byte("\n")) != 1 {
		t.Fatalf("not one line: %s", buf.String())
	}
	var m map[string]any
	if err := json.Unmarshal(buf.Bytes(), &m); err != nil {
		t.Fatal(err)
	}
	if m["msg"] != "job" || m["level"] != "INFO" {
		t.Errorf("%v", m)
	}
	for _, k := range []string{"time", "level", "msg"} {
		delete(m, k)
	}
	if got := slices.Sorted(maps.Keys(m)); !slices.Equal(got, slices.Sorted(slices.Values(fields))) {
		t.Errorf("fields %v, want %v", got, fields)
	}
	return m
}

func want(t *testing.T, got, want map[string]any) {
	t.Helper()
	for k, v := range want {
		if n, ok := v.(int); ok {
			v = float64(n)
		}
		if got[k] != v {
			t.Errorf("%s is %v, want %v", k, got[k], v)
		}
	}
}

func TestRejected(t *testing.T) {
	v := &broker.Verdict{NowMS: 5000, Result: slackgate.Result{Reason: slackgate.ReasonNoSlack, SlackMS: 9000, PredictedWaitMS: 70}}
	v.QueueAgeMS[slackgate.Paid], v.QueueAgeMS[slackgate.Free] = 30, 8000
	job := &broker.Submission{Spec: broker.Spec{ID: "j", Class: "c", Text: "not for the log", Producer: "nor this"}, DeadlineInMS: 11_000}
	m := line(t, func(l *slog.Logger) { Rejected(context.Background(), l, job, v, 4990, 10) })
	want(t, m, map[string]any{
		"job_id": "j", "class": "c", "path": "reject", "reason": "reject_no_slack", "backend": "", "offered_at": 4990, "deadline_ms": 11_000,
		"queue_age_ms": 8000, "queue_wait_ms": 0, "predicted_wait_ms": 70, "first_byte_ms": -1, "remaining_slack_ms": 9000,
		"first_route": "", "first_outcome": "", "fallback_outcome": "", "outcome": "rejected", "elapsed_ms": 10,
	})
}

func TestEnded(t *testing.T) {
	v := &broker.Job{
		ID: "j", Class: "c", Path: slackgate.Free, AcceptedAtMS: 1000, DeadlineAtMS: 16_000, Outcome: broker.OutcomeUsable, Backend: "b",
		Admission:   broker.Admission{SlackMS: 13_000, QueueAgeMS: 40, PredictedWaitMS: 50},
		QueueWaitMS: 60, FirstByteMS: new(int64(0)), ElapsedMS: 4000, FirstRoute: "a", FirstOutcome: "empty", FallbackOutcome: "whole",
		Answer: "not for the log",
	}
	want(t, line(t, func(l *slog.Logger) { Ended(context.Background(), l, v) }), map[string]any{
		"job_id": "j", "class": "c", "path": "free", "reason": "free", "backend": "b", "offered_at": 1000, "deadline_ms": 15_000,
		"queue_age_ms": 40, "queue_wait_ms": 60, "predicted_wait_ms": 50, "first_byte_ms": 0, "remaining_slack_ms": 13_000,
		"first_route": "a", "first_outcome": "empty", "fallback_outcome": "whole", "outcome": "usable", "elapsed_ms": 4000,
	})
	v.FirstByteMS, v.Outcome, v.Reason = nil, broker.OutcomeFailed, "worker_lost"
	want(t, line(t, func(l *slog.Logger) { Ended(context.Background(), l, v) }), map[string]any{
		"first_byte_ms": -1, "outcome": "failed", "reason": "worker_lost",
	})
}

func TestLost(t *testing.T) {
	m := line(t, func(l *slog.Logger) {
		Lost(context.Background(), l, broker.Lost{ID: "j", Class: "c", Path: slackgate.Free})
	})
	want(t, m, map[string]any{
		"job_id": "j", "class": "c", "path": "free", "reason": "record_lost", "backend": "", "offered_at": 0, "deadline_ms": 0,
		"first_byte_ms": -1, "outcome": "failed", "elapsed_ms": 0,
	})
}
