package broker

import (
	"time"

	"leeway/slackgate"
)

// The states of a backend: whether it may be called.
const (
	BackendClosed   = "closed"    // may be called
	BackendOpen     = "open"      // failed, and a probe failed too; left alone until one is answered
	BackendHalfOpen = "half_open" // in doubt: one call, a probe or a job's, decides
	BackendHeld     = "held"      // asked to be left alone for a while
	BackendOut      = "out"       // taken out, by an operator or because it refused its key or whatever it was asked
)

// BackendStates lists the closed set.
var BackendStates = [...]string{BackendClosed, BackendOpen, BackendHalfOpen, BackendHeld, BackendOut}

// WhyUnsupported begins the Why of a backend that is out because it does not take
// a field of its requests; which option of the configuration to set follows.
const WhyUnsupported = "unsupported: "

// BackendState is how a backend looks from one worker.
type BackendState struct {
	Worker  string         `json:"worker,omitempty"`
	Path    slackgate.Path `json:"path"`
	Backend string         `json:"backend"`
	Model   string         `json:"model"`
	// State is one of BackendStates.
	State string `json:"state"`
	// Why says what led to the state.
	Why         string `json:"why,omitempty"`
	InFlight    int    `json:"in_flight"`
	MaxInFlight int    `json:"max_in_flight"`
	// FirstByteP95MS is the p95 in force: measured, else declared.
	FirstByteP95MS int64 `json:"first_byte_p95_ms"`
	// RetryInMS is when it may be called again; 0: now, or not by itself.
	RetryInMS int64 `json:"retry_in_ms"`
}

// TakenOut is an operator's order to leave a backend alone.
type TakenOut struct {
	Why  string `json:"why"`
	By   string `json:"by,omitempty"`
	AtMS int64  `json:"at_ms"`
}

// BackendOrders are what workers are told of a backend.
type BackendOrders struct {
	// Out is set while an operator has taken the backend out.
	Out *TakenOut
	// BackAtMS is when an operator last put it back, if that was in the last
	// seconds; else 0.
	BackAtMS int64
	// HeldFor is how long it is still to be left alone; 0: not at all.
	HeldFor time.Duration
}
