package ledger

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"leeway/broker"
)

// Format is how rows are written out.
type Format string

// The formats. CSV has a header line; NDJSON is one JSON object a line.
const (
	JSON   Format = "json"
	CSV    Format = "csv"
	NDJSON Format = "ndjson"
)

// MediaType is the format's Content-Type.
func (f Format) MediaType() string {
	switch f {
	case CSV:
		return "text/csv; charset=utf-8"
	case NDJSON:
		return "application/x-ndjson"
	case JSON:
	}
	return "application/json"
}

// Writer writes rows one after the other, in CSV or NDJSON.
type Writer struct {
	csv  *csv.Writer
	json *json.Encoder
}

// NewWriter starts a document of rows: of [broker.SpendRow], [broker.MissRow]
// or [Sum]. Flush must be called.
func NewWriter(w io.Writer, f Format, header []string) (*Writer, error) {
	if f != CSV {
		return &Writer{json: json.NewEncoder(w)}, nil
	}
	out := &Writer{csv: csv.NewWriter(w)}
	return out, out.csv.Write(header)
}

// Write writes a row; record gives its cells for CSV.
func (w *Writer) Write(row any, record func() []string) error {
	if w.csv != nil {
		return w.csv.Write(record())
	}
	return w.json.Encode(row)
}

// Flush writes what is held back.
func (w *Writer) Flush() error {
	if w.csv == nil {
		return nil
	}
	w.csv.Flush()
	return w.csv.Error()
}

func num(n int64) string { return strconv.FormatInt(n, 10) }

func optional(n *int64) string {
	if n == nil {
		return ""
	}
	return num(*n)
}

// text keeps a text from outside from being taken for a formula by a
// spreadsheet.
func text(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		return "'" + s
	}
	return s
}

// SpendHeader names the cells of [SpendRecord].
var SpendHeader = []string{
	"id", "job_id", "attempt", "path", "class", "producer", "backend", "model", "currency", "price_version",
	"opened_at_ms", "max_cost_micro", "settled_at_ms", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens",
	"cost_micro", "list_cost_micro", "reported_cost_micro", "known", "clamped", "result",
}

// SpendRecord is a spend row's cells.
func SpendRecord(r *broker.SpendRow) []string {
	return []string{
		r.ID, r.JobID, strconv.Itoa(r.Attempt), r.Path.String(), text(r.Class), text(r.Producer), text(r.Backend), text(r.Model),
		r.Currency, text(r.PriceVersion), num(r.OpenedAtMS), num(r.MaxCostMicro), num(r.SettledAtMS), num(r.InputTokens),
		num(r.CachedTokens), num(r.OutputTokens), num(r.ReasoningTokens), num(r.CostMicro), optional(r.ListCostMicro),
		optional(r.ReportedCostMicro), string(r.Known), strconv.FormatBool(r.Clamped), text(r.Result),
	}
}

// MissHeader names the cells of [MissRecord].
var MissHeader = []string{
	"id", "job_id", "path", "class", "producer", "backend", "outcome", "cause", "at_ms", "deadline_at_ms", "admit_slack_ms",
	"admit_queue_age_ms", "predicted_wait_ms", "queue_wait_ms", "first_byte_ms", "late_by_ms",
}

// MissRecord is a miss row's cells.
func MissRecord(r *broker.MissRow) []string {
	return []string{
		r.ID, r.JobID, r.Path.String(), text(r.Class), text(r.Producer), text(r.Backend), string(r.Outcome), string(r.Cause),
		num(r.AtMS), num(r.DeadlineAtMS), num(r.SlackMS), num(r.QueueAgeMS), num(r.PredictedWaitMS), num(r.QueueWaitMS),
		num(r.FirstByteMS), num(r.LateByMS),
	}
}

// SumHeader names the cells of [SumRecord].
func SumHeader(k Kind) []string {
	h := []string{"at_ms", "path", "class", "producer", "backend"}
	if k == Misses {
		return append(h, "misses", "causes")
	}
	return append(h, "attempts", "input_tokens", "output_tokens", "spent_tokens", "cost_micro", "known")
}

// SumRecord is a sum's cells. Numbers by name stand in one cell, as
// "name=number" with spaces between.
func SumRecord(s *Sum) []string {
	r := []string{num(s.AtMS), s.Path, text(s.Class), text(s.Producer), text(s.Backend)}
	if s.MissSum != nil {
		return append(r, num(s.Misses), Pairs(s.Causes))
	}
	return append(r, num(s.Attempts), num(s.InputTokens), num(s.OutputTokens), num(s.SpentTokens), Pairs(s.CostMicro), Pairs(s.Known))
}

// Pairs writes numbers by name in one line, by name.
func Pairs(m map[string]int64) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+num(m[k]))
	}
	return strings.Join(out, " ")
}
