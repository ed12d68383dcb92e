package broker

import "leeway/slackgate"

// BackendState is how a backend looks from one worker.
type BackendState struct {
	Worker  string         `json:"worker,omitempty"`
	Path    slackgate.Path `json:"path"`
	Backend string         `json:"backend"`
	Model   string         `json:"model"`
	// State is closed (may be called), open, half_open, held or out.
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
