// Package wire holds the documents that travel over the admission API, and the
// names of its headers, for the API and its clients alike.
package wire

// HeaderIdempotencyKey names the header that makes a repeated submission the
// same job.
const HeaderIdempotencyKey = "Idempotency-Key"

// HeaderBatchID names a batch in the response that gives its verdicts.
const HeaderBatchID = "X-Leeway-Batch-Id"

// HeaderDeadline is a chat completion's deadline in milliseconds from receipt.
const HeaderDeadline = "X-Deadline-Ms"

// The headers that carry the verdict on a chat completion, and who answered it.
const (
	HeaderPath          = "X-Leeway-Path"
	HeaderReason        = "X-Leeway-Reason"
	HeaderSlack         = "X-Leeway-Slack-Ms"
	HeaderPredictedWait = "X-Leeway-Predicted-Wait-Ms"
	HeaderJobID         = "X-Leeway-Job-Id"
	HeaderClass         = "X-Leeway-Class"
	HeaderBackend       = "X-Leeway-Backend"
	HeaderAttempts      = "X-Leeway-Attempts"
)

// Bounds of what is sent and asked for.
const (
	// MaxProducerBytes bounds a producer's name, a custom_id, and what a list is
	// filtered by.
	MaxProducerBytes = 64
	// MaxRows bounds a page of a ledger, MaxListed any other page.
	MaxRows   = 1000
	MaxListed = 200
)
