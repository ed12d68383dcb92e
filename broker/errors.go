package broker

import (
	"errors"
	"fmt"
)

var (
	// ErrUnavailable means that the store did not answer in time, or answered
	// that it cannot: the gate cannot say anything now.
	ErrUnavailable = errors.New("gate unavailable")
	// ErrNotFound means that no such job is on record (any longer).
	ErrNotFound = errors.New("job not found")
	// ErrKeyConflict means that an idempotency key is bound to a submission
	// with another body.
	ErrKeyConflict = errors.New("the idempotency key is bound to another submission")
	// ErrBatchNotFound means that no such batch is on record (any longer).
	ErrBatchNotFound = errors.New("batch not found")
	// ErrBatchCancelled means that a line came for a batch that was taken back.
	ErrBatchCancelled = errors.New("the batch was cancelled")
	// ErrBatchFull means that a batch has as many lines as it may have.
	ErrBatchFull = errors.New("the batch is full")
	// ErrFenced means that the job is no longer this worker's: its lease went
	// to another, or it has ended.
	ErrFenced = errors.New("job is no longer held by this worker")
)

// FieldError is bad input: it names the field and says what would be right.
type FieldError struct {
	Field  string
	Detail string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Detail }

// Fieldf returns a FieldError with a formatted detail.
func Fieldf(field, format string, args ...any) error {
	return &FieldError{Field: field, Detail: fmt.Sprintf(format, args...)}
}
