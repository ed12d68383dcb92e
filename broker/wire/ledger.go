package wire

import "leeway/broker/ledger"

// BudgetsAnswer is GET /v1/budgets: every budget for the on-call, a producer's
// own for the producer.
type BudgetsAnswer struct {
	NowMS int64 `json:"now_ms"`
	// Day is the day that the budgets are for, in UTC; the next begins at
	// ResetsAtMS.
	Day        string       `json:"day"`
	ResetsAtMS int64        `json:"resets_at_ms"`
	Currency   string       `json:"currency"`
	Budgets    []BudgetView `json:"budgets"`
}

// BudgetView is one budget and how far it is used.
type BudgetView struct {
	// Scope is producer or class, Name which.
	Scope string `json:"scope"`
	Name  string `json:"name"`
	// Amounts are micro-units of the answer's currency.
	BudgetMicroPerDay int64 `json:"budget_micro_per_day"`
	SpentMicro        int64 `json:"spent_micro"`
	ReservedMicro     int64 `json:"reserved_micro"`
	LeftMicro         int64 `json:"left_micro"`
}

// Scopes of a budget.
const (
	ScopeProducer = "producer"
	ScopeClass    = "class"
)

// RollupAnswer is GET /v1/ledgers/rollups.
type RollupAnswer struct {
	Ledger ledger.Kind   `json:"ledger"`
	By     ledger.Step   `json:"by"`
	FromMS int64         `json:"from_ms"`
	ToMS   int64         `json:"to_ms"`
	Rows   []*ledger.Sum `json:"rows"`
	// OldestAtMS is the first instant whose sums are still kept.
	OldestAtMS int64 `json:"reaches_back_to_ms"`
}
