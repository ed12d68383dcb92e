package broker

// WebhookResult is how an attempt at telling a webhook ended.
type WebhookResult string

// The results.
const (
	WebhookDelivered WebhookResult = "delivered"
	WebhookFailed    WebhookResult = "failed"   // it will be tried again
	WebhookGivenUp   WebhookResult = "given_up" // it will not
	// WebhookDropped is an end that was never put down: too many were.
	WebhookDropped WebhookResult = "dropped"
)

// WebhookResults lists the closed set.
var WebhookResults = [...]WebhookResult{WebhookDelivered, WebhookFailed, WebhookGivenUp, WebhookDropped}

// WebhookDue asks for up to Most ends that a producer's webhook is due to be
// told of.
type WebhookDue struct {
	Producer string
	Most     int
}

// Untold is the end of a job that its producer's webhook is to be told of.
type Untold struct {
	Producer, JobID string
	// Attempt counts from 1.
	Attempt int64
	// Job is the job's record as it ended, without the answer; nil when it
	// cannot be read, and Err then says why.
	Job *Job
	Err error
}
