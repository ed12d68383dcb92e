package wire

// Reasons of problems that are not the gate's. They are stable: clients may
// switch on them.
const (
	ReasonInvalidField = "invalid_field"
	ReasonInvalidJSON  = "invalid_json"
	ReasonTooLarge     = "too_large"
	ReasonMediaType    = "unsupported_media_type"
	ReasonNotFound     = "not_found"
	ReasonMethod       = "method_not_allowed"
	ReasonOrder        = "out_of_order"
	ReasonKeyConflict  = "idempotency_conflict"
	ReasonUnauthorized = "unauthorized"
	ReasonForbidden    = "forbidden"
	ReasonInternal     = "internal"
	// ReasonTooManyStreams is for event streams beyond what a process serves.
	ReasonTooManyStreams = "too_many_streams"
	// ReasonBusy is for a body or a line that there is no memory for now, and for
	// a request that too many others of its producer keep from reading the store.
	ReasonBusy = "busy"
	// ReasonBatchCancelled is for a line of a batch that was taken back.
	ReasonBatchCancelled = "batch_cancelled"
	// ReasonNoModel is for a chat completion of no class.
	ReasonNoModel = "model_not_found"
	// ReasonAnswerChanged is for a stream whose answer was generated twice.
	ReasonAnswerChanged = "answer_changed"
)

// Problem is an RFC 9457 problem document.
//
//nolint:errname // it is a document first, and an error to Go clients
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Reason is stable and from a closed set.
	Reason string `json:"reason"`
	// Field names what was wrong in the input.
	Field string `json:"field,omitempty"`
	// Verdict carries the gate's numbers when it was the gate that refused.
	Verdict *Verdict `json:"verdict,omitempty"`

	// RetryAfterMS is the Retry-After header in milliseconds; 0: waiting does
	// not help.
	RetryAfterMS int64 `json:"-"`
}

func (p *Problem) Error() string { return p.Reason + ": " + p.Detail }
