// Package joblog writes the one JSON line that every submission gets: at once
// for a reject, with the outcome for an admitted job.
package joblog

import (
	"context"
	"log/slog"

	"leeway/broker"
)

// Rejected logs a submission that was not admitted.
func Rejected(ctx context.Context, log *slog.Logger, job *broker.Submission, v *broker.Verdict, offeredAtMS int64, elapsedMS int64) {
	log.LogAttrs(ctx, slog.LevelInfo, "job",
		slog.String("job_id", job.ID),
		slog.String("class", job.Class),
		slog.String("path", v.Path.String()),
		slog.String("reason", string(v.Reason)),
		slog.String("backend", ""),
		slog.Int64("offered_at", offeredAtMS),
		slog.Int64("deadline_ms", job.DeadlineInMS),
		slog.Int64("queue_age_ms", v.LastQueueAgeMS()),
		slog.Int64("queue_wait_ms", 0),
		slog.Int64("predicted_wait_ms", v.PredictedWaitMS),
		slog.Int64("first_byte_ms", -1),
		slog.Int64("remaining_slack_ms", v.SlackMS),
		slog.String("first_route", ""),
		slog.String("first_outcome", ""),
		slog.String("fallback_outcome", ""),
		slog.String("outcome", "rejected"),
		slog.Int64("elapsed_ms", elapsedMS),
	)
}

// Lost logs an admitted job whose record is gone: its line says what is still
// known, and zeros for the rest.
func Lost(ctx context.Context, log *slog.Logger, l broker.Lost) {
	Ended(ctx, log, &broker.Job{
		ID: l.ID, Class: l.Class, Path: l.Path, Outcome: broker.OutcomeFailed, Cause: broker.CauseRecordLost, Reason: string(broker.CauseRecordLost),
	})
}

// Ended logs an admitted job with its outcome.
func Ended(ctx context.Context, log *slog.Logger, v *broker.Job) {
	firstByte := int64(-1)
	if v.FirstByteMS != nil {
		firstByte = *v.FirstByteMS
	}
	reason := v.Path.String()
	if v.Reason != "" {
		reason = v.Reason
	}
	log.LogAttrs(ctx, slog.LevelInfo, "job",
		slog.String("job_id", v.ID),
		slog.String("class", v.Class),
		slog.String("path", v.Path.String()),
		slog.String("reason", reason),
		slog.String("backend", v.Backend),
		slog.Int64("offered_at", v.AcceptedAtMS),
		slog.Int64("deadline_ms", v.DeadlineAtMS-v.AcceptedAtMS),
		slog.Int64("queue_age_ms", v.Admission.QueueAgeMS),
		slog.Int64("queue_wait_ms", v.QueueWaitMS),
		slog.Int64("predicted_wait_ms", v.Admission.PredictedWaitMS),
		slog.Int64("first_byte_ms", firstByte),
		slog.Int64("remaining_slack_ms", v.Admission.SlackMS),
		slog.String("first_route", v.FirstRoute),
		slog.String("first_outcome", v.FirstOutcome),
		slog.String("fallback_outcome", v.FallbackOutcome),
		slog.String("outcome", string(v.Outcome)),
		slog.Int64("elapsed_ms", v.ElapsedMS),
	)
}
