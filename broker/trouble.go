package broker

import "errors"

// Trouble names why the store cannot be used. The set is closed.
type Trouble string

// The troubles.
const (
	TroubleNoAnswer     Trouble = "no_answer"     // within the time limit: it stands still, is slow or is not there
	TroubleNoConnection Trouble = "no_connection" // refused or broken
	TroubleFull         Trouble = "full"          // at its memory limit
	TroubleReadOnly     Trouble = "read_only"     // a replica, as after a failover
	TroubleNoReplicas   Trouble = "no_replicas"   // it has fewer replicas than it must have to take writes
	TroubleLoading      Trouble = "loading"       // reading its data after a start
	TroubleNoDisk       Trouble = "no_disk"       // it cannot persist, and therefore takes no writes
	TroubleNoAccess     Trouble = "no_access"     // wrong password, or a user without the right
	TroubleLayout       Trouble = "layout"        // it holds what this program cannot work on
	TroubleOther        Trouble = "error"         // another error, or a reply that makes no sense
)

// Troubles lists the closed set.
var Troubles = [...]Trouble{
	TroubleNoAnswer, TroubleNoConnection, TroubleFull, TroubleReadOnly, TroubleNoReplicas, TroubleLoading,
	TroubleNoDisk, TroubleNoAccess, TroubleLayout, TroubleOther,
}

// NothingDone reports whether the store has said that the call changed nothing.
// With the others it may have done all of it before the answer was lost, or,
// without the right to one command of many, a part.
func (t Trouble) NothingDone() bool {
	switch t {
	case TroubleFull, TroubleReadOnly, TroubleNoReplicas, TroubleLoading, TroubleNoDisk, TroubleLayout:
		return true
	case TroubleNoAnswer, TroubleNoConnection, TroubleNoAccess, TroubleOther:
	}
	return false
}

// Sentence says it in plain words, without anything that came from the store.
func (t Trouble) Sentence() string {
	switch t {
	case TroubleNoAnswer:
		return "the store does not answer in time"
	case TroubleNoConnection:
		return "the store cannot be reached"
	case TroubleFull:
		return "the store is full"
	case TroubleReadOnly:
		return "the store is read-only"
	case TroubleNoReplicas:
		return "the store has too few replicas to take writes"
	case TroubleLoading:
		return "the store is loading its data"
	case TroubleNoDisk:
		return "the store cannot write to its disk"
	case TroubleNoAccess:
		return "the store refuses this process's credentials or rights"
	case TroubleLayout:
		return "the store holds what this version cannot work on"
	case TroubleOther:
	}
	return "the store answers with an error"
}

// StoreError is ErrUnavailable with its cause.
type StoreError struct {
	Trouble Trouble
	Err     error
}

func (e *StoreError) Error() string {
	return ErrUnavailable.Error() + ": " + e.Trouble.Sentence() + ": " + e.Err.Error()
}

// Unwrap makes the error both ErrUnavailable and its cause.
func (e *StoreError) Unwrap() []error { return []error{ErrUnavailable, e.Err} }

// TroubleOf is what an ErrUnavailable is about.
func TroubleOf(err error) Trouble {
	if e, ok := errors.AsType[*StoreError](err); ok {
		return e.Trouble
	}
	return TroubleOther
}
