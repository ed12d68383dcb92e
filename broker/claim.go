package broker

import (
	"time"

	"leeway/slackgate"
	"leeway/slackgate/latency"
)

// Worker names one worker process and what it offers to a pool.
type Worker struct {
	ID    string
	Path  slackgate.Path
	Slots int
}

// Claim is a job handed to a worker under a lease.
type Claim struct {
	Spec

	Path slackgate.Path
	// Fence tells this claim from earlier and later ones of the same job.
	Fence int64
	// Offers counts how often the job was handed out before.
	Offers int
	// NowMS, AcceptedAtMS and DeadlineAtMS are instants on the store's clock;
	// NowMS is that of the claim.
	NowMS, AcceptedAtMS, DeadlineAtMS int64
	// ReserveMS is the reserve fixed at admission.
	ReserveMS int64
	// Admission repeats what the gate saw.
	Admission Admission
	// ClaimedAt is the local instant the claim was asked for, for durations.
	ClaimedAt time.Time
	// FlagsVersion is the version of the flags at the claim.
	FlagsVersion int64
	// Attempts is how many attempts earlier holders of the job had opened.
	Attempts int
	// Unreadable is set for a job of which nothing but the ID can be read.
	Unreadable bool
}

// SlackMS is the slack at the claim.
func (c *Claim) SlackMS() int64 { return c.DeadlineAtMS - c.NowMS - c.ReserveMS }

// QueueWaitMS is how long the job waited for the claim.
func (c *Claim) QueueWaitMS() int64 { return c.NowMS - c.AcceptedAtMS }

// Step is what a slot asks of the store between two calls of a backend. Steps
// share calls, and each succeeds or fails for itself. What is set of a step is
// taken in the order of the fields: a slot ends its job and claims the next.
type Step struct {
	// Job is the claim that Answers, Open and Finish speak of; nil for the Open row
	// of a probe.
	Job *Claim
	// Answers notes that the job's first answer text came, AnswersFor ago.
	Answers    bool
	AnswersFor time.Duration
	// Open is written before a backend is called.
	Open *SpendRow
	// Finish ends the job, with the rows of its attempts that have ended.
	Finish  *Finish
	Settled []SpendRow
	// Samples count calls.
	Samples []latency.Sample
	// Claim takes the most urgent waiting job of the pool. Again is set where the
	// reply to a step with the same Finish was lost: the job that it claimed is given
	// again.
	Claim, Again bool

	// Err is why a row was not opened or a job not ended: ErrFenced if it has
	// another holder or another end. Of a step without either it is why the rest was
	// not noted.
	Err error
	// Ended is the job as Finish ended it, without its answer.
	Ended *Job
	// Claimed is the job that was claimed; nil if nothing waits or every slot of
	// the pool is taken. Found tells the two apart.
	Claimed *Claim
	Found   ClaimReport
}

// ClaimReport is what a claim found beside the job that it took.
type ClaimReport struct {
	// Err is why nothing was claimed; or, with a claimed job, why that is
	// unreadable.
	Err error
	// Full is set when every slot of the pool is taken, Later when there may be a
	// job, which another call has to claim.
	Full, Later bool
	// Ended are jobs without a text, which were failed; Lost those without a
	// record, which were set aside.
	Ended []*Job
	Lost  []Lost
}

// Lost is what is known of an admitted job whose record is gone: it is set
// aside as failed, with a miss row.
type Lost struct {
	ID   string
	Path slackgate.Path
	// Class is "unknown" for a job that was running.
	Class string
}

// Lease is the answer to a renewal.
type Lease int64

// The answers.
const (
	LeaseLost      Lease = 0
	LeaseHeld      Lease = 1
	LeaseCancelled Lease = 2
)

// Finish is the end of a claimed job, committed in one atomic step.
type Finish struct {
	Outcome Outcome
	// Cause is set for a miss.
	Cause Cause
	// Reason is the closed reason behind a failure; empty otherwise.
	Reason string
	// Detail is what the provider said when it turned the text itself down; of
	// the length of an error's detail.
	Detail string
	// Answer is the answer text; kept only for a usable or late answer.
	Answer string
	// Backend is the one that gave the outcome, and Model what it served.
	Backend, Model string
	// FirstByteMS counts from the claim's attempt start; -1: no answer text.
	FirstByteMS int64
	// FirstRoute, FirstOutcome and FallbackOutcome describe the attempts.
	FirstRoute, FirstOutcome, FallbackOutcome string
	// FinishReason is how the backend ended the answer, and Usage what that
	// one attempt used; nil: unknown.
	FinishReason string
	Usage        *Usage
}

// CancelResult says what a cancel met.
type CancelResult string

// What a cancel can meet.
const (
	CancelMissing CancelResult = "missing"
	CancelDone    CancelResult = "done"      // it had ended
	CancelLate    CancelResult = "late"      // its deadline had passed: nothing changes
	CancelWaiting CancelResult = "cancelled" // it was waiting and is cancelled
	CancelRunning CancelResult = "running"   // its worker will cut it
)

// Cancellation is what came of one cancel.
type Cancellation struct {
	Result CancelResult
	// Ended is the job as it ended; nil unless it was waiting.
	Ended *Job
}

// CancelUnknownError is what a cancel returns whose reply was lost: it may have
// been done. The jobs that it ended have Call as their [Job].CancelledBy.
type CancelUnknownError struct {
	Call string
	Err  error
}

func (e *CancelUnknownError) Error() string { return e.Err.Error() }

// Unwrap gives what the store or the network said.
func (e *CancelUnknownError) Unwrap() error { return e.Err }

// Swept is what one sweep mended.
type Swept struct {
	// JustBack is set while the store has only just been found to have stood
	// still: its living workers have yet to be heard of.
	JustBack                   bool
	Expired, Reoffered, Failed int64
	// Lost are those of the failed whose record is gone.
	Lost []Lost
	// Ended are the jobs that the sweep ended.
	Ended []*Job
}

// Strays is what one look for keys of no job has mended.
type Strays struct {
	// Placed counts unfinished jobs that were in no order and are again.
	Placed int64
	// Removed counts keys and reservations of no job.
	Removed int64
}
