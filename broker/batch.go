package broker

import (
	"strconv"
	"time"

	"leeway/slackgate"
)

// BatchPlace is where a job stands in a batch. The zero value is nowhere.
type BatchPlace struct {
	// Batch is the batch's id.
	Batch string
	// Line names the line: see [LineName].
	Line string
	// At orders the lines of a batch: see [LineAt].
	At int64
}

const (
	// BatchReceiving is how long a batch counts as being received without a
	// sign of whoever reads its lines.
	BatchReceiving = 2 * time.Minute
	// MaxLines bounds a page of a batch's lines, and what one call puts down.
	MaxLines = 200
)

// maxRunLines is more lines than one run of a batch can have.
const maxRunLines = 100_000_000

// LineAt is the place of a line in its batch: lines of a later run come after
// those of an earlier one.
func LineAt(run int64, line int) int64 { return run*maxRunLines + int64(line) }

// LineOf is the number that a line had in the run that first brought it.
func LineOf(at int64) int { return int(at % maxRunLines) }

// LineName names a line: by its custom_id, under which a later run finds it
// again, or by its place if it has none.
func LineName(customID string, at int64) string {
	if customID != "" {
		return "=" + customID
	}
	return "#" + strconv.FormatInt(at, 10)
}

// LineCustomID is the custom_id in a line's name, if there is one.
func LineCustomID(name string) string {
	if len(name) > 0 && name[0] == '=' {
		return name[1:]
	}
	return ""
}

// Batch is what is known of a batch as a whole.
type Batch struct {
	ID            string
	Producer      string
	CreatedAtMS   int64
	CancelledAtMS int64 // 0: it was not cancelled
	// ReceivingEndsAtMS is when its lines will have been read; 0: they have.
	// Whoever reads them moves it on, so that a crash ends it too.
	ReceivingEndsAtMS int64
	// DueAtMS is the last of its jobs' deadlines.
	DueAtMS int64
	// ExpiresAtMS is when it is forgotten.
	ExpiresAtMS int64
	// Lines is how many lines have a verdict.
	Lines int64
	// Said counts the lines by verdict: paid, free, a reason of the gate's, or
	// what was wrong with the line.
	Said map[string]int64
	// Ended counts the jobs that have ended by outcome.
	Ended map[Outcome]int64
}

// Admitted is how many lines became jobs.
func (b *Batch) Admitted() int64 {
	return b.Said[slackgate.Paid.String()] + b.Said[slackgate.Free.String()]
}

// Pending is how many jobs have not ended.
func (b *Batch) Pending() int64 {
	n := b.Admitted()
	for _, ended := range b.Ended {
		n -= ended
	}
	return max(n, 0)
}

// BatchLine is a line of a batch on record: a job, or what was said of it.
type BatchLine struct {
	Name string
	At   int64
	// Path and JobID are set for a line that became a job.
	Path  slackgate.Path
	JobID string
	// Reason and Said are what a line was told that did not; Said is a
	// document of whoever told it.
	Reason string
	Said   []byte
	// Job is the job's record; nil when it was not asked for or has lapsed.
	Job *Job
}
