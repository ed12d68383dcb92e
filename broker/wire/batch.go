package wire

import "leeway/broker"

// BatchStatus is where a batch stands.
type BatchStatus string

// The states.
const (
	BatchReceiving  BatchStatus = "receiving"   // its lines are still being read
	BatchInProgress BatchStatus = "in_progress" // jobs of it have not ended
	BatchDone       BatchStatus = "done"        // every line has its verdict, every job its outcome
	BatchCancelled  BatchStatus = "cancelled"   // the same, after it was taken back
)

// Batch is a batch and how far it is.
type Batch struct {
	BatchID       string      `json:"batch_id"`
	Status        BatchStatus `json:"status"`
	Producer      string      `json:"producer,omitempty"`
	CreatedAtMS   int64       `json:"created_at_ms"`
	CancelledAtMS int64       `json:"cancelled_at_ms,omitempty"`
	// ExpiresAtMS is when it is forgotten.
	ExpiresAtMS int64 `json:"expires_at_ms"`
	// Lines is how many have a verdict: Admitted, Refused by the gate (429 and
	// 503), or Invalid: wrong in itself, or too late for its batch.
	Lines    int64 `json:"lines"`
	Admitted int64 `json:"admitted"`
	Refused  int64 `json:"refused"`
	Invalid  int64 `json:"invalid"`
	// Pending is how many admitted jobs have not ended.
	Pending int64 `json:"pending"`
	// Lost is how many of them never will: their records are gone.
	Lost int64 `json:"lost,omitempty"`
	// Verdicts counts the lines by path or reason, Outcomes the ended jobs.
	Verdicts map[string]int64         `json:"verdicts"`
	Outcomes map[broker.Outcome]int64 `json:"outcomes"`
}

// BatchList is a page of batches, newest first.
type BatchList struct {
	Batches []*Batch `json:"batches"`
	Next    string   `json:"next_cursor,omitempty"`
}

// BatchLine is the verdict on one line of a batch. Status is what the line
// alone would have been answered with.
type BatchLine struct {
	Line     int    `json:"line"`
	CustomID string `json:"custom_id,omitempty"`
	Status   int    `json:"status"`
	*Verdict
	Error *Problem `json:"error,omitempty"`
	// RetryAfterMS is when the same line might be admitted; absent when waiting
	// cannot help.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
}

// LinePage is a page of a batch's lines.
type LinePage struct {
	Lines []*LineView `json:"lines"`
	// Next is the cursor of the next page; empty at the end of what there is by
	// now.
	Next string `json:"next_cursor,omitempty"`
}

// LineView is a line with its verdict and, if it became a job, that job.
type LineView struct {
	BatchLine
	Job *broker.Job `json:"job,omitempty"`
}

// ResultLine is a line whose job has ended, with its answer.
type ResultLine struct {
	Line     int    `json:"line"`
	CustomID string `json:"custom_id,omitempty"`
	// Job is the job with its answer; left out when its record has lapsed.
	Job *broker.Job `json:"job,omitempty"`
	// NextCursor is where to go on after this line.
	NextCursor int64 `json:"next_cursor"`
}

// BatchCancelResult counts what a batch's jobs met: the results that cancelling
// one job can have.
type BatchCancelResult struct {
	BatchID string           `json:"batch_id"`
	Results map[string]int64 `json:"results"`
}
