package broker

import "leeway/slackgate"

// Job is a job on record, as its producer may see it.
type Job struct {
	ID              string            `json:"job_id"`
	State           State             `json:"state"`
	Class           string            `json:"class"`
	Producer        string            `json:"producer,omitempty"`
	Path            slackgate.Path    `json:"path"`
	AcceptedAtMS    int64             `json:"accepted_at_ms"`
	DeadlineAtMS    int64             `json:"deadline_at_ms"`
	ReserveMS       int64             `json:"reserve_ms"`
	FirstByteOnly   bool              `json:"first_byte_only,omitempty"`
	Prefer          [2]slackgate.Path `json:"-"`
	MaxOutputTokens int               `json:"-"`
	Admission       Admission         `json:"admission"`
	Metadata        map[string]string `json:"metadata,omitempty"`
	BatchID         string            `json:"batch_id,omitempty"`
	// CustomID is what the producer called the job's line in its batch.
	CustomID          string  `json:"custom_id,omitempty"`
	Outcome           Outcome `json:"outcome,omitempty"`
	Cause             Cause   `json:"cause,omitempty"`
	Reason            string  `json:"reason,omitempty"`
	Detail            string  `json:"detail,omitempty"`
	Answer            string  `json:"answer,omitempty"`
	Backend           string  `json:"backend,omitempty"` // the last that was called
	Model             string  `json:"model,omitempty"`   // which it served
	Attempts          int     `json:"attempts"`
	QueueWaitMS       int64   `json:"queue_wait_ms,omitempty"`
	FirstByteMS       *int64  `json:"first_byte_ms,omitempty"`
	ElapsedMS         int64   `json:"elapsed_ms,omitempty"`
	ResultExpiresAtMS int64   `json:"result_expires_at_ms,omitempty"`
	FirstRoute        string  `json:"first_route,omitempty"`
	FirstOutcome      string  `json:"first_outcome,omitempty"`
	FallbackOutcome   string  `json:"fallback_outcome,omitempty"`
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
	// Model is the one that generates it.
	Model string `json:"model,omitempty"`
	// At is how many bytes of the answer went before.
	At   int    `json:"at"`
	Text string `json:"text"`
}

// Admission is what the gate saw when it promised, kept with the job.
type Admission struct {
	SlackMS         int64 `json:"slack_ms"`
	NeedMS          int64 `json:"need_ms"`
	QueueAgeMS      int64 `json:"queue_age_ms"`
	PredictedWaitMS int64 `json:"predicted_wait_ms"`
}
