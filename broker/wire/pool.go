package wire

import "leeway/broker"

// GateAnswer is GET /v1/gate: the snapshot, and what the gate would say to a job
// of the class with the class's own deadline.
type GateAnswer struct {
	Policy string `json:"policy"`
	// Recheck is on, or off in a lab that was told so.
	Recheck string              `json:"recheck"`
	NowMS   int64               `json:"now_ms"`
	Pools   map[string]PoolView `json:"pools"`
	Verdict *Verdict            `json:"verdict"`
}

// PoolView is a pool's state on the wire.
type PoolView struct {
	// State is open, draining or drained.
	State string `json:"state"`
	Limit int    `json:"limit"`
	// LimitFrom is declared, or measured.
	LimitFrom string `json:"limit_from"`
	// Knees are those of the pool's backends that were measured.
	Knees          []KneeView `json:"knees"`
	Capacity       int        `json:"capacity"`
	Waiting        int        `json:"waiting"`
	Running        int        `json:"running"`
	QueueAgeMS     int64      `json:"queue_age_ms"`
	FirstByteP95MS int64      `json:"first_byte_p95_ms"`
	// Closed is set while a flag or a drain closes the pool to every class.
	Closed bool `json:"closed"`
	// FirstByte and Hold are where the gate's beliefs come from.
	FirstByte Latency `json:"first_byte"`
	Hold      Latency `json:"hold"`
}

// KneeView is a backend's measured knee on the wire.
type KneeView struct {
	Backend    string `json:"backend"`
	Limit      int    `json:"limit"`
	MeasuredOn string `json:"measured_on"`
	ValidUntil string `json:"valid_until"`
	// OutOfDate says why the measurement is not to be believed any more: it has
	// expired, or the backend has changed. Empty: it is current.
	OutOfDate string `json:"out_of_date,omitempty"`
}

// Drain states of a pool.
const (
	PoolOpen     = "open"     // admits, unless a flag closes it
	PoolDraining = "draining" // admits nothing, and still has jobs
	PoolDrained  = "drained"  // admits nothing and has none
)

// Where a pool's limit comes from.
const (
	LimitDeclared = "declared"
	LimitMeasured = "measured"
)

// Latency is a measured latency on the wire.
type Latency struct {
	DeclaredP95MS int64  `json:"declared_p95_ms"`
	P95MS         int64  `json:"p95_ms"`
	MeanMS        int64  `json:"mean_ms"`
	Samples       int    `json:"samples"`
	WindowMS      int64  `json:"window_ms"`
	State         string `json:"state"`
}

// Pools is GET /v1/pools, and what orders to pools and backends answer.
type Pools struct {
	NowMS int64               `json:"now_ms"`
	Pools map[string]PoolView `json:"pools"`
	// Backends are as each living worker sees them.
	Backends []broker.BackendState `json:"backends"`
}

// Order is an operator's action. Reason is required.
type Order struct {
	Reason string `json:"reason"`
	By     string `json:"by,omitempty"`
	// Force drains paid although free is not drained.
	Force bool `json:"force,omitempty"`
}
