// Package broker holds Leeway's own words: submissions, jobs, verdicts,
// outcomes, the rows of the two ledgers, and what a store of them is asked and
// answers. It knows nothing of Redis, asynq or HTTP; packages below it are named
// after the technology they wrap.
//
// # Times
//
// Times are milliseconds. A field that ends in AtMS is an instant on the store's
// clock (NowMS is one too: now); every other field that ends in MS is a
// duration. A job's deadline goes by three names, in this order:
//
//   - DeadlineInMS is what the producer asked for: the time from the receipt of
//     its submission until the last byte is due. On the wire it is deadline_ms.
//   - LeftMS is what is left of that when something is decided.
//   - DeadlineAtMS is the instant that an admission made of it, once and for all.
//     On the wire, on record and in the ledgers it is deadline_at_ms.
//
// # Money
//
// Money is integer micro-units of a currency and ends in Micro.
package broker

import (
	"time"

	"leeway/slackgate"
)

// AnyClass stands for every class; no class has this name.
const AnyClass = "*"

// Spec is what stays the same of a job from its submission to its end.
type Spec struct {
	ID       string `json:"id"`
	Class    string `json:"class"`
	Producer string `json:"producer,omitempty"`
	// Text is the input. It is stored apart from the record and deleted with
	// the outcome.
	Text string `json:"-"`
	// Instruction is the producer's own, added to the class's prompt. It is
	// stored and deleted with the text.
	Instruction string `json:"-"`
	// Relay names the API replica that wants answer text while it arrives;
	// empty: none does.
	Relay string `json:"relay,omitempty"`
	// Prefer is the order in which the class wants the pools tried.
	Prefer [2]slackgate.Path `json:"prefer"`
	// FirstByteOnly is set when the class counts the first byte alone.
	FirstByteOnly bool `json:"first_byte_only,omitempty"`
	// Rescue lets the job be offered to paid when free has become too slow for it.
	Rescue          bool              `json:"rescue,omitempty"`
	MaxOutputTokens int               `json:"max_output_tokens"`
	Metadata        map[string]string `json:"metadata,omitempty"`
	// Webhook is set when the job's end is to be told to its producer's
	// webhook; the scripts look for it.
	Webhook bool `json:"webhook,omitempty"`
}

// Gate is what the slack gate needs to know of a job, if its deadline is that
// instant and that much is kept back from it.
func (s *Spec) Gate(deadlineAtMS, reserveMS int64) slackgate.Job {
	return slackgate.Job{
		DeadlineAtMS: deadlineAtMS, ReserveMS: reserveMS, Prefer: s.Prefer, FirstByteOnly: s.FirstByteOnly,
	}
}

// Submission is what a producer asked for. Nothing changes it on its way
// through the gate.
type Submission struct {
	Spec

	// DeadlineInMS is the time the last byte may take, counted from receipt.
	DeadlineInMS int64
	// ReserveMS is what the class keeps back from the deadline for the first
	// byte. A flag may raise it: [Verdict].ReserveMS is what was fixed.
	ReserveMS int64
	// Key makes a repeated submission the same job.
	Key IdempotencyKey
	// Place is the job's line in a batch.
	Place BatchPlace
	// ReceivedAt is when the submission reached this process. Only durations
	// are taken from it.
	ReceivedAt time.Time
}

// LeftMS is what is left at now until the deadline.
func (s *Submission) LeftMS(now time.Time) int64 {
	return s.DeadlineInMS - now.Sub(s.ReceivedAt).Milliseconds()
}

// IdempotencyKey names a submission, so that repeating it gives the same job
// and verdict. The zero value names nothing.
type IdempotencyKey struct {
	Value string
	// BodyHash tells the same submission from another one under the same key.
	BodyHash string
}

// Verdict is what the gate said of one submission.
type Verdict struct {
	JobID string
	slackgate.Result
	// NowMS and DeadlineAtMS are instants on the store's clock.
	NowMS, DeadlineAtMS int64
	// ReserveMS is the reserve fixed at admission.
	ReserveMS int64
	// Quota is what the producer may submit, as it stood before this one.
	Quota slackgate.Quota
	// Repeated is set when the submission's idempotency key named a job that
	// is on record already: the verdict is that job's.
	Repeated bool
}

// LastQueueAgeMS is the queue age of the pool that took the job or, for a
// reject, the greater of the two.
func (v *Verdict) LastQueueAgeMS() int64 {
	if v.Admitted() {
		return v.QueueAgeMS[v.Path]
	}
	return max(v.QueueAgeMS[slackgate.Paid], v.QueueAgeMS[slackgate.Free])
}
