package drill

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"leeway/broker"
	"leeway/slackgate"
)

// Format is the version of [Evidence] as JSON.
const Format = 1

// maxEvidenceBytes bounds a file of evidence.
const maxEvidenceBytes = 256 << 20

// Evidence is what a drill leaves: the plan as declared and, for each run of
// it, what became of every job.
type Evidence struct {
	Format int   `json:"format"`
	Plan   *Plan `json:"plan"`
	// Against is what was drilled: embedded, simulated or an address.
	Against string `json:"against"`
	// Clock is real or virtual.
	Clock     string    `json:"clock"`
	StartedAt time.Time `json:"started_at"`
	// LeftOut says what was not done against this deployment, and why.
	LeftOut []string `json:"left_out,omitempty"`
	// Differs says what the deployment has otherwise than the plan declares.
	Differs []string `json:"differs,omitempty"`
	Runs    []*Run   `json:"runs"`
}

// Passed reports whether every threshold held in every run.
func (e *Evidence) Passed() bool {
	for _, r := range e.Runs {
		for _, v := range r.Verdicts {
			if !v.OK {
				return false
			}
		}
	}
	return len(e.Runs) > 0
}

// Run is one run of a drill. Times count from its start, in milliseconds.
type Run struct {
	Jobs []Job `json:"jobs"`
	// Done is what was done to the deployment, and when in fact.
	Done []Done `json:"done,omitempty"`
	// Spend and Misses are the two ledgers, as far as this run's jobs stand in
	// them. They are never summed.
	Spend  []SpendSum `json:"spend"`
	Misses []MissSum  `json:"misses"`
	// Calls are the backends' own records; nil where they keep none.
	Calls []Call `json:"calls,omitempty"`
	// Direct is what came of the same arrivals without Leeway.
	Direct *Direct `json:"direct,omitempty"`
	// Checks are those of the ledgers and of what was left behind.
	Checks []Check `json:"checks"`
	// Slots are the workers of each pool.
	Slots [slackgate.NumPaths]int `json:"slots"`

	// Machine is how late the machine was.
	Machine *Machine `json:"machine,omitempty"`

	Metrics  map[string]float64 `json:"metrics"`
	Dists    []Dist             `json:"distributions"`
	Verdicts []Verdict          `json:"thresholds"`
	Compared []Compared         `json:"compared,omitempty"`
}

// Job is one submission and its end.
type Job struct {
	// AtMS is when it was to be sent, LagMS how much later it was, ToldMS when
	// the verdict came: counted from AtMS, as is everything of a producer's.
	AtMS   int64   `json:"at_ms"`
	LagMS  float64 `json:"lag_ms"`
	ToldMS float64 `json:"told_ms"`

	Path   slackgate.Path   `json:"path"`
	Reason slackgate.Reason `json:"reason"`
	// What the gate saw.
	SlackMS         int64 `json:"slack_ms"`
	NeedMS          int64 `json:"need_ms"`
	PredictedWaitMS int64 `json:"predicted_wait_ms"`
	QueueAgeMS      int64 `json:"queue_age_ms"`

	// What follows is of an admitted job. A first byte of -1: none came.
	ID          string         `json:"id,omitempty"`
	Outcome     broker.Outcome `json:"outcome,omitempty"`
	Cause       broker.Cause   `json:"cause,omitempty"`
	Backend     string         `json:"backend,omitempty"`
	Attempts    int            `json:"attempts,omitempty"`
	WaitMS      int64          `json:"wait_ms,omitempty"`
	FirstByteMS int64          `json:"first_byte_ms,omitempty"`
	// ElapsedMS is from admission to the end, OverMS how far that is past the
	// deadline; negative: before it.
	ElapsedMS int64 `json:"elapsed_ms,omitempty"`
	OverMS    int64 `json:"over_ms,omitempty"`
	// AnswerMS is when the producer had the end, from AtMS.
	AnswerMS float64 `json:"answer_ms,omitempty"`
}

// Admitted reports whether the gate promised anything.
func (j *Job) Admitted() bool { return j.Path != slackgate.Reject }

// Undecided reports whether nothing could be promised: a 503, or no answer.
func (j *Job) Undecided() bool { return j.Reason.Unavailable() || j.Reason == "" && !j.Admitted() }

// ClaimedAtMS and EndedAtMS are instants of the run.
func (j *Job) ClaimedAtMS() int64 { return j.AtMS + int64(j.ToldMS) + j.WaitMS }

// EndedAtMS is when the job ended.
func (j *Job) EndedAtMS() int64 { return j.AtMS + int64(j.ToldMS) + j.ElapsedMS }

// Done is an event that was carried out.
type Done struct {
	AtMS int64  `json:"at_ms"`
	What string `json:"what"`
	// Breaks and Mends mark the phase in which something is broken.
	Breaks bool   `json:"breaks,omitempty"`
	Mends  bool   `json:"mends,omitempty"`
	Error  string `json:"error,omitempty"`
}

// SpendSum is a path's part of the spend ledger.
type SpendSum struct {
	Path         slackgate.Path `json:"path"`
	Attempts     int64          `json:"attempts"`
	Unknown      int64          `json:"unknown"`
	InputTokens  int64          `json:"input_tokens"`
	OutputTokens int64          `json:"output_tokens"`
	// CostMicro is by currency.
	CostMicro map[string]int64 `json:"cost_micro"`
}

// MissSum is a path's part of the deadline-miss ledger.
type MissSum struct {
	Path  slackgate.Path `json:"path"`
	Cause broker.Cause   `json:"cause"`
	Count int64          `json:"count"`
}

// Call is one call as a lab backend saw it.
type Call struct {
	Backend string `json:"backend"`
	// Job is its place in Jobs; -1: not of this drill.
	Job       int    `json:"job"`
	AtMS      int64  `json:"at_ms"`
	FirstMS   int64  `json:"first_ms"`
	ElapsedMS int64  `json:"elapsed_ms"`
	Ended     string `json:"ended"`
	Fault     string `json:"fault,omitempty"`
}

// Direct is what callers got who went straight to a backend.
type Direct struct {
	Backend string `json:"backend"`
	// OK counts HTTP 200 with a whole body, InTime those of them within the
	// deadline.
	Callers int   `json:"callers"`
	OK      int   `json:"ok"`
	InTime  int   `json:"in_time"`
	P50MS   int64 `json:"p50_ms"`
	LastMS  int64 `json:"last_ms"`
}

// Check is one thing that must be so when the drill is over.
type Check struct {
	OK bool `json:"ok"`
	// Before: it was not so before the drill either.
	Before bool   `json:"before,omitempty"`
	Detail string `json:"detail"`
}

// Verdict is a threshold held against a run.
type Verdict struct {
	Threshold Threshold `json:"threshold"`
	// Value is the metric's; nil: the run has no such metric, which fails.
	Value *float64 `json:"value"`
	OK    bool     `json:"ok"`
}

// Compared is what another policy would have made of the same arrivals and
// service times. A number that does not exist is nil.
type Compared struct {
	Name     string   `json:"name"`
	Usable   *float64 `json:"usable"`
	Late     *float64 `json:"late"`
	Dropped  *float64 `json:"dropped"`
	Rejected *float64 `json:"rejected"`
	WastedS  *float64 `json:"wasted_s"`
	// Note says what the row is.
	Note string `json:"note,omitempty"`
}

// Write writes the evidence as JSON.
func (e *Evidence) Write(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(e)
}

// ReadEvidence reads a file that Write wrote.
func ReadEvidence(file string) (*Evidence, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	e, err := decodeEvidence(io.LimitReader(f, maxEvidenceBytes))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return e, nil
}

func decodeEvidence(r io.Reader) (*Evidence, error) {
	var e Evidence
	if err := json.NewDecoder(r).Decode(&e); err != nil {
		return nil, fmt.Errorf("not a drill's evidence: %w", err)
	}
	switch {
	case e.Format != Format:
		return nil, fmt.Errorf("evidence of format %d: want %d", e.Format, Format)
	case e.Plan == nil || len(e.Runs) == 0:
		return nil, fmt.Errorf("evidence without a plan or a run")
	}
	for _, r := range e.Runs {
		if r == nil {
			return nil, fmt.Errorf("evidence with an empty run")
		}
	}
	return &e, nil
}

// broken is the time in which something was broken by the drill: from the first
// event that breaks to the last that mends, or to the end.
func (r *Run) broken() (fromMS, toMS int64, ok bool) {
	mended := false
	for _, d := range r.Done {
		if d.Breaks && !ok {
			fromMS, ok = d.AtMS, true
		}
		if d.Mends && (!mended || d.AtMS > toMS) {
			toMS, mended = d.AtMS, true
		}
	}
	if !mended {
		toMS = r.LengthMS() + 1
	}
	return fromMS, toMS, ok
}

// LengthMS is when the run's last job had ended.
func (r *Run) LengthMS() (end int64) {
	for i := range r.Jobs {
		end = max(end, r.Jobs[i].AtMS+int64(r.Jobs[i].ToldMS), r.Jobs[i].EndedAtMS())
	}
	return end
}
