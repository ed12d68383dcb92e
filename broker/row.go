package broker

import "leeway/slackgate"

// Known says how the tokens of an attempt are known.
type Known string

// How spend is known. An unknown attempt is never zero: it stays charged at
// its largest possible cost until somebody knows better. An unbilled one was not
// made, or was turned away, and cost nothing.
const (
	KnownReported  Known = "reported"
	KnownEstimated Known = "estimated"
	KnownUnknown   Known = "unknown"
	KnownUnbilled  Known = "unbilled"
)

// Knowns are all of them.
var Knowns = [...]Known{KnownReported, KnownEstimated, KnownUnknown, KnownUnbilled}

// SpendRow is one attempt in the spend ledger.
type SpendRow struct {
	// ID is the row's place in the ledger; empty while the row is open.
	ID       string         `json:"id,omitempty"`
	JobID    string         `json:"job_id"`
	Attempt  int            `json:"attempt"`
	Path     slackgate.Path `json:"path"`
	Class    string         `json:"class"`
	Producer string         `json:"producer,omitempty"`
	Backend  string         `json:"backend"`
	Model    string         `json:"model,omitempty"`
	Currency string         `json:"currency"`
	// PriceVersion names the price the row was computed with.
	PriceVersion string `json:"price_version"`
	OpenedAtMS   int64  `json:"opened_at_ms"`
	// DueAtMS is the instant by which the attempt must be over: the job's
	// deadline. Only open rows have it.
	DueAtMS int64 `json:"due_ms,omitempty"`
	// MaxInputTokens and MaxOutputTokens let a script settle the row at its
	// largest when nobody else can. Only open rows have them.
	MaxInputTokens  int64 `json:"max_input_tokens,omitempty"`
	MaxOutputTokens int64 `json:"max_output_tokens,omitempty"`
	// Priced is set when the tokens cost money.
	Priced bool `json:"priced,omitempty"`
	// MaxCostMicro is the largest possible cost, fixed before the call.
	MaxCostMicro int64 `json:"max_cost_micro"`

	// What follows is set by the settlement.

	SettledAtMS int64 `json:"settled_at_ms,omitempty"`
	Usage
	// CostMicro is what is booked: the backend's own figure where it gave one,
	// up to MaxCostMicro or what its price makes of the tokens, else the latter.
	CostMicro int64 `json:"cost_micro"`
	// ReportedCostMicro is the cost the backend itself claimed, if any, and
	// ListCostMicro then what its price makes of the tokens.
	ReportedCostMicro *int64 `json:"reported_cost_micro,omitempty"`
	ListCostMicro     *int64 `json:"list_cost_micro,omitempty"`
	// Clamped is set when the usage was absurd or contradicted itself and was
	// cut to bounds, or the reported cost was.
	Clamped bool `json:"clamped,omitempty"`
	// Result is how the attempt ended: an outcome, or a failure's reason.
	Result string `json:"result,omitempty"`
}

// SpentTokens are the row's tokens if they cost money, else 0.
func (r *SpendRow) SpentTokens() int64 {
	if !r.Priced {
		return 0
	}
	return r.InputTokens + r.OutputTokens
}

// CostDiffers reports whether the backend's own figure is another than what its
// price makes of the tokens. One micro-unit is rounding.
func (r *SpendRow) CostDiffers() bool {
	if r.ReportedCostMicro == nil || r.ListCostMicro == nil {
		return false
	}
	d := *r.ReportedCostMicro - *r.ListCostMicro
	return d < -1 || d > 1
}

// MissRow is one entry of the deadline-miss ledger.
type MissRow struct {
	ID       string         `json:"id,omitempty"`
	JobID    string         `json:"job_id"`
	Path     slackgate.Path `json:"path"`
	Class    string         `json:"class"`
	Producer string         `json:"producer,omitempty"`
	// Backend is the one whose call was the last, if any was made.
	Backend string  `json:"backend,omitempty"`
	Outcome Outcome `json:"outcome"`
	Cause   Cause   `json:"cause"`
	AtMS    int64   `json:"at_ms"`
	// DeadlineAtMS is the instant that was missed.
	DeadlineAtMS int64 `json:"deadline_at_ms"`
	// What the gate saw when it promised.
	SlackMS         int64 `json:"admit_slack_ms"`
	QueueAgeMS      int64 `json:"admit_queue_age_ms"`
	PredictedWaitMS int64 `json:"predicted_wait_ms"`
	// What happened.
	QueueWaitMS int64 `json:"queue_wait_ms"`
	// FirstByteMS is -1 when no answer text came.
	FirstByteMS int64 `json:"first_byte_ms"`
	// LateByMS is how far past the missed instant the job ended; 0 when it
	// ended before it.
	LateByMS int64 `json:"late_by_ms"`
}

// Totals are the store's running sums since it was created; ledger metrics are
// read from them, so that a killed process loses none.
type Totals map[string]int64

// Add adds the sums of another store.
func (t Totals) Add(more Totals) {
	for name, n := range more {
		t[name] += n
	}
}
