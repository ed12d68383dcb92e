package broker

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
	OutcomeRevoked   Outcome = "revoked"   // its pool lost its capacity, and no other could keep the promise
	OutcomeFailed    Outcome = "failed"    // an error, or the worker was lost
	OutcomeCancelled Outcome = "cancelled" // the producer took it back
)

// Outcomes lists the closed set.
var Outcomes = [...]Outcome{
	OutcomeUsable, OutcomeLate, OutcomeExpired, OutcomeEmpty,
	OutcomeTruncated, OutcomeRevoked, OutcomeFailed, OutcomeCancelled,
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
	CauseCapacityLost   Cause = "capacity_lost"
	CauseFailed         Cause = "failed"
	CauseWorkerLost     Cause = "worker_lost"
	CauseRecordLost     Cause = "record_lost"
	CauseNoSlack        Cause = "arrived_without_slack"
)

// Causes lists the closed set.
var Causes = [...]Cause{
	CauseExpiredInQueue, CauseLateFirstByte, CauseLateFinish, CauseCutAtDeadline,
	CauseEmpty, CauseTruncated, CauseCapacityLost, CauseFailed, CauseWorkerLost, CauseRecordLost, CauseNoSlack,
}
