// Package broker holds Leeway's own words: jobs, classes, verdicts, outcomes
// and the rows of the two ledgers. It knows nothing of Redis, asynq or HTTP;
// packages below it are named after the technology they wrap.
//
// Times are milliseconds and end in MS. Instants are on the store's clock.
// Money is integer micro-units of a currency.
package broker

import (
	"time"

	"leeway/slackgate"
)

// Job is one admitted or offered summary request.
type Job struct {
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
	// DeadlineMS is the time the last byte may take, counted from receipt.
	DeadlineMS int64 `json:"deadline_ms"`
	// ReserveMS is kept back from the deadline for the first byte.
	ReserveMS int64 `json:"reserve_ms"`
	// Prefer is the order in which the class wants the pools tried.
	Prefer [2]slackgate.Path `json:"prefer"`
	// FirstByteOnly is set when the class counts the first byte alone.
	FirstByteOnly bool `json:"first_byte_only,omitempty"`
	// Rescue lets the job be offered to paid when free can no longer make it.
	Rescue          bool              `json:"rescue,omitempty"`
	MaxOutputTokens int               `json:"max_output_tokens"`
	Metadata        map[string]string `json:"metadata,omitempty"`
	// Webhook is set when the job's end is to be told to its producer's
	// webhook; the scripts look for it.
	Webhook bool `json:"webhook,omitempty"`
	// Key makes a repeated submission the same job.
	Key IdempotencyKey `json:"-"`
	// Place is the job's line in a batch.
	Place BatchPlace `json:"-"`
	// ReceivedAt is when the submission reached this process. Only durations
	// are taken from it.
	ReceivedAt time.Time `json:"-"`
}

// IdempotencyKey names a submission, so that repeating it gives the same job
// and verdict. The zero value names nothing.
type IdempotencyKey struct {
	Value string
	// BodyHash tells the same submission from another one under the same key.
	BodyHash string
}

// Gate is what the slack gate needs to know of a job whose deadline is the
// instant deadlineAtMS.
func (j *Job) Gate(deadlineAtMS int64) slackgate.Job {
	return slackgate.Job{
		DeadlineAtMS:  deadlineAtMS,
		ReserveMS:     j.ReserveMS,
		Prefer:        j.Prefer,
		FirstByteOnly: j.FirstByteOnly,
	}
}

// Verdict is what the gate said of one submission.
type Verdict struct {
	JobID string
	slackgate.Result
	// NowMS and DeadlineMS are instants on the store's clock.
	NowMS, DeadlineMS int64
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

// State is where a job stands.
type State string

// The states.
const (
	StateWaiting State = "waiting"
	StateRunning State = "running"
	StateDone    State = "done"
)

// Outcome is the one end of an admitted job.
type Outcome string

// The outcomes.
const (
	OutcomeUsable    Outcome = "usable"    // in time, whole, not empty
	OutcomeLate      Outcome = "late"      // first or last byte past its due time
	OutcomeExpired   Outcome = "expired"   // dropped before a backend was called
	OutcomeEmpty     Outcome = "empty"     // finished without answer text
	OutcomeTruncated Outcome = "truncated" // the backend stopped early
	OutcomeFailed    Outcome = "failed"    // an error, or the worker was lost
	OutcomeCancelled Outcome = "cancelled" // the producer took it back
)

// Outcomes lists the closed set.
var Outcomes = [...]Outcome{
	OutcomeUsable, OutcomeLate, OutcomeExpired, OutcomeEmpty,
	OutcomeTruncated, OutcomeFailed, OutcomeCancelled,
}

// Miss reports whether an outcome is a deadline miss.
func (o Outcome) Miss() bool {
	return o != OutcomeUsable && o != OutcomeCancelled
}

// Success reports whether an answer came, whether or not anybody could still
// use it. An empty one is none, whatever its status said. It is the number that
// must never be shown without the usable one beside it.
func (o Outcome) Success() bool { return o == OutcomeUsable || o == OutcomeLate }

// Cause says why a promise was missed.
type Cause string

// The causes of a miss.
const (
	CauseExpiredInQueue Cause = "expired_in_queue"
	CauseLateFirstByte  Cause = "late_first_byte"
	CauseLateFinish     Cause = "late_finish"
	CauseCutAtDeadline  Cause = "cut_at_deadline"
	CauseEmpty          Cause = "empty"
	CauseTruncated      Cause = "truncated"
	CauseFailed         Cause = "failed"
	CauseWorkerLost     Cause = "worker_lost"
	CauseRecordLost     Cause = "record_lost"
	CauseNoSlack        Cause = "arrived_without_slack"
)

// Causes lists the closed set.
var Causes = [...]Cause{
	CauseExpiredInQueue, CauseLateFirstByte, CauseLateFinish, CauseCutAtDeadline,
	CauseEmpty, CauseTruncated, CauseFailed, CauseWorkerLost, CauseRecordLost, CauseNoSlack,
}

// Known says how the tokens of an attempt are known.
type Known string

// How spend is known. An unknown attempt is never zero: it stays charged at
// its largest possible cost until somebody knows better.
const (
	KnownReported  Known = "reported"
	KnownEstimated Known = "estimated"
	KnownUnknown   Known = "unknown"
)

// SpendRow is one attempt in the spend ledger.
type SpendRow struct {
	// ID is the row's place in the ledger; empty while the row is open.
	ID       string         `json:"id,omitempty"`
	JobID    string         `json:"job_id"`
	Attempt  int            `json:"attempt"`
	Path     slackgate.Path `json:"path"`
	Class    string         `json:"class"`
	Producer string         `json:"producer,omitempty"`
	Backend  string         `json:"backend"`
	Model    string         `json:"model,omitempty"`
	Currency string         `json:"currency"`
	// PriceVersion names the price the row was computed with.
	PriceVersion string `json:"price_version"`
	OpenedAtMS   int64  `json:"opened_at_ms"`
	// DueMS is the instant by which the attempt must be over: the job's
	// deadline. Only open rows have it.
	DueMS int64 `json:"due_ms,omitempty"`
	// Priced is set when the tokens cost money.
	Priced bool `json:"priced,omitempty"`
	// MaxCostMicro is the largest possible cost, fixed before the call.
	MaxCostMicro int64 `json:"max_cost_micro"`

	// What follows is set by the settlement.

	SettledAtMS int64 `json:"settled_at_ms,omitempty"`
	Usage
	// CostMicro is what is booked: the backend's own figure where it gave one,
	// else what its price makes of the tokens.
	CostMicro int64 `json:"cost_micro"`
	// ReportedCostMicro is the cost the backend itself claimed, if any, and
	// ListCostMicro then what its price makes of the tokens.
	ReportedCostMicro *int64 `json:"reported_cost_micro,omitempty"`
	ListCostMicro     *int64 `json:"list_cost_micro,omitempty"`
	// Clamped is set when the usage was absurd and was cut to bounds.
	Clamped bool `json:"clamped,omitempty"`
	// Result is how the attempt ended: an outcome, or a failure's reason.
	Result string `json:"result,omitempty"`
}

// SpentTokens are the row's tokens if they cost money, else 0.
func (r *SpendRow) SpentTokens() int64 {
	if !r.Priced {
		return 0
	}
	return r.InputTokens + r.OutputTokens
}

// CostDiffers reports whether the backend's own figure is another than what its
// price makes of the tokens. One micro-unit is rounding.
func (r *SpendRow) CostDiffers() bool {
	if r.ReportedCostMicro == nil || r.ListCostMicro == nil {
		return false
	}
	d := *r.ReportedCostMicro - *r.ListCostMicro
	return d < -1 || d > 1
}

// MissRow is one entry of the deadline-miss ledger.
type MissRow struct {
	ID       string         `json:"id,omitempty"`
	JobID    string         `json:"job_id"`
	Path     slackgate.Path `json:"path"`
	Class    string         `json:"class"`
	Producer string         `json:"producer,omitempty"`
	// Backend is the one whose call was the last, if any was made.
	Backend string  `json:"backend,omitempty"`
	Outcome Outcome `json:"outcome"`
	Cause   Cause   `json:"cause"`
	AtMS    int64   `json:"at_ms"`
	// DeadlineMS is the instant that was missed.
	DeadlineMS int64 `json:"deadline_at_ms"`
	// What the gate saw when it promised.
	SlackMS         int64 `json:"admit_slack_ms"`
	QueueAgeMS      int64 `json:"admit_queue_age_ms"`
	PredictedWaitMS int64 `json:"predicted_wait_ms"`
	// What happened.
	QueueWaitMS int64 `json:"queue_wait_ms"`
	// FirstByteMS is -1 when no answer text came.
	FirstByteMS int64 `json:"first_byte_ms"`
	// LateByMS is how far past the missed instant the job ended; 0 when it
	// ended before it.
	LateByMS int64 `json:"late_by_ms"`
}

// Claim is a job handed to a worker under a lease.
type Claim struct {
	Job
	Path  slackgate.Path
	Fence int64
	// Offers counts how often the job was handed out before.
	Offers int
	// NowMS, AcceptedMS and DeadlineAtMS are instants on the store's clock.
	NowMS, AcceptedMS, DeadlineAtMS int64
	// Admission repeats what the gate saw.
	Admission Admission
	// ClaimedAt is the local instant the claim's reply arrived, for durations.
	ClaimedAt time.Time
	// FlagsVersion is the version of the flags at the claim.
	FlagsVersion int64
	// Attempts is how many attempts earlier holders of the job had opened.
	Attempts int
}

// SlackMS is the slack at the claim.
func (c *Claim) SlackMS() int64 { return c.DeadlineAtMS - c.NowMS - c.ReserveMS }

// QueueWaitMS is how long the job waited for the claim.
func (c *Claim) QueueWaitMS() int64 { return c.NowMS - c.AcceptedMS }

// Admission is what the gate saw when it promised, kept with the job.
type Admission struct {
	SlackMS         int64 `json:"slack_ms"`
	NeedMS          int64 `json:"need_ms"`
	QueueAgeMS      int64 `json:"queue_age_ms"`
	PredictedWaitMS int64 `json:"predicted_wait_ms"`
}

// Lost is what is known of an admitted job whose record is gone: it is set
// aside as failed, with a miss row.
type Lost struct {
	ID   string
	Path slackgate.Path
	// Class is "unknown" for a job that was running.
	Class string
}

// Finish is the end of a claimed job, committed in one atomic step.
type Finish struct {
	Outcome Outcome
	// Cause is set for a miss.
	Cause Cause
	// Reason is the closed reason behind a failure; empty otherwise.
	Reason string
	// Answer is the answer text; kept only for a usable or late answer.
	Answer string
	// Backend is the one that gave the outcome.
	Backend string
	// FirstByteMS counts from the claim's attempt start; -1: no answer text.
	FirstByteMS int64
	// FirstRoute, FirstOutcome and FallbackOutcome describe the attempts.
	FirstRoute, FirstOutcome, FallbackOutcome string
	// FinishReason is how the backend ended the answer, and Usage what that
	// one attempt used; nil: unknown.
	FinishReason string
	Usage        *Usage
}

// View is a job as its producer may see it.
type View struct {
	ID              string            `json:"job_id"`
	State           State             `json:"state"`
	Class           string            `json:"class"`
	Producer        string            `json:"producer,omitempty"`
	Path            slackgate.Path    `json:"path"`
	AcceptedMS      int64             `json:"accepted_at_ms"`
	DeadlineAtMS    int64             `json:"deadline_at_ms"`
	ReserveMS       int64             `json:"reserve_ms"`
	FirstByteOnly   bool              `json:"first_byte_only,omitempty"`
	Prefer          [2]slackgate.Path `json:"-"`
	MaxOutputTokens int               `json:"-"`
	Admission       Admission         `json:"admission"`
	Metadata        map[string]string `json:"metadata,omitempty"`
	BatchID         string            `json:"batch_id,omitempty"`
	// CustomID is what the producer called the job's line in its batch.
	CustomID        string  `json:"custom_id,omitempty"`
	Outcome         Outcome `json:"outcome,omitempty"`
	Cause           Cause   `json:"cause,omitempty"`
	Reason          string  `json:"reason,omitempty"`
	Answer          string  `json:"answer,omitempty"`
	Backend         string  `json:"backend,omitempty"`
	Attempts        int     `json:"attempts"`
	QueueWaitMS     int64   `json:"queue_wait_ms,omitempty"`
	FirstByteMS     *int64  `json:"first_byte_ms,omitempty"`
	ElapsedMS       int64   `json:"elapsed_ms,omitempty"`
	ResultExpiresMS int64   `json:"result_expires_at_ms,omitempty"`
	FirstRoute      string  `json:"first_route,omitempty"`
	FirstOutcome    string  `json:"first_outcome,omitempty"`
	FallbackOutcome string  `json:"fallback_outcome,omitempty"`
	// FirstByteAtMS is when the attempt under way gave its first answer text;
	// 0: not yet, or the job has ended.
	FirstByteAtMS int64 `json:"first_byte_at_ms,omitempty"`
	// FinishReason is how the backend ended the answer: stop or length.
	FinishReason string `json:"finish_reason,omitempty"`
	// Usage is what the attempt that gave the outcome used. What all attempts
	// cost stands in the spend ledger.
	Usage *Usage `json:"usage,omitempty"`
	// CancelledBy names the call to the store that ended the job while it
	// waited; empty: it had another end.
	CancelledBy string `json:"-"`
}

// Usage is what one attempt used, in tokens.
type Usage struct {
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	// CachedTokens are the part of InputTokens, ReasoningTokens the part of
	// OutputTokens, that the backend says so of.
	CachedTokens    int64 `json:"cached_tokens,omitempty"`
	ReasoningTokens int64 `json:"reasoning_tokens,omitempty"`
	// Known says how they are known; empty while the attempt is under way.
	Known Known `json:"known,omitempty"`
}

// Piece is answer text under way from a worker to the API replica that relays
// it to its producer.
type Piece struct {
	JobID string `json:"job_id"`
	// Fence is the claim's: another one is another generation of the answer.
	Fence int64 `json:"fence"`
	// At is how many bytes of the answer went before.
	At   int    `json:"at"`
	Text string `json:"text"`
}

// Totals are the store's running sums since it was created; ledger metrics are
// read from them, so that a killed process loses none.
type Totals map[string]int64
