// Package store says what Leeway asks of the store of its jobs and ledgers. One
// package implements it for a technology (broker/redisstore), one puts several
// shards together (broker/shard); everybody else calls it through the interfaces
// here and cannot tell the two apart.
//
// Every call is bounded in time. An error is broker.ErrUnavailable where the
// store did not answer or cannot; others are named where they are returned.
package store

import (
	"context"
	"time"

	"leeway/broker"
	"leeway/broker/flag"
	"leeway/broker/ledger"
	"leeway/slackgate"
	"leeway/slackgate/latency"
)

// Store is a deployment's store, whatever number of shards it has: what the API,
// the webhooks and the metrics call.
type Store interface {
	// NowMS is the store's clock, carried forward on the local monotonic clock
	// since the last reply; 0 before the first. SyncClock reads it.
	NowMS() int64
	SyncClock(ctx context.Context) error
	// Writable reports whether the store takes writes.
	Writable(ctx context.Context) error
	// Durability is what the store's own settings put at risk.
	Durability(ctx context.Context) (*broker.Durability, error)

	Jobs
	Batches
	Flags
	Ledgers
	Webhooks

	// State reads the gate's state.
	State(ctx context.Context, policy [slackgate.NumPaths]broker.PoolPolicy) (*broker.GateState, error)
	// SmallestSlackMS is the slack of the most urgent waiting job; ok is false
	// when nothing waits.
	SmallestSlackMS(ctx context.Context, path slackgate.Path) (slack int64, ok bool, err error)
	// Slices reads the counts of measured calls of the slices from..to of each
	// series; an empty slice is nil.
	Slices(ctx context.Context, series []latency.Series, from, to int64) ([][]*latency.Histogram, error)
	// Backends reads what the living workers report of their backends.
	Backends(ctx context.Context) ([]broker.BackendState, error)
	// TakeOutBackend tells all workers to leave a backend alone until
	// PutBackBackend undoes it, and whatever else made them leave it alone.
	TakeOutBackend(ctx context.Context, name string, o broker.TakenOut) error
	PutBackBackend(ctx context.Context, name string) error
}

// Jobs reads jobs and takes them back.
type Jobs interface {
	// Get reads a job with its answer; broker.ErrNotFound.
	Get(ctx context.Context, id string) (*broker.Job, error)
	// Jobs reads records without their answers; nil for one that is not there.
	Jobs(ctx context.Context, ids []string) ([]*broker.Job, error)
	// RecentJobs reads the newest jobs before a cursor (empty: from the newest
	// on), newest first and without answers, of one producer or of all.
	RecentJobs(ctx context.Context, producer string, all bool, cursor string, limit int) (jobs []*broker.Job, next string, err error)
	// CancelAll takes jobs back. The error is a broker.CancelUnknownError where
	// they may have been taken back all the same.
	CancelAll(ctx context.Context, ids ...string) ([]broker.Cancellation, error)
	// Purge deletes a job's text and answer; its record and rows stay.
	Purge(ctx context.Context, id string) error

	// Ended and News deliver the ids of jobs as they end, and as they are claimed
	// or begin to answer; Relayed what workers send to a replica. Messages can be
	// lost while the store is away.
	Ended(ctx context.Context) (<-chan string, func() error)
	News(ctx context.Context) (<-chan string, func() error)
	Relayed(ctx context.Context, replica string) (<-chan string, func() error)
}

// Batches keeps batches and what was said to their lines.
type Batches interface {
	// OpenBatch begins a run of lines: under a new batch, or with again under one
	// on record. most is how many lines it may have by now.
	OpenBatch(ctx context.Context, id, producer string, again bool, most int) (run int64, err error)
	// SetLines puts down what was said to lines that became no jobs.
	SetLines(ctx context.Context, batch string, last bool, lines ...broker.BatchLine) error
	Batch(ctx context.Context, id string) (*broker.Batch, error)
	// CloseBatch refuses all further lines of a batch.
	CloseBatch(ctx context.Context, id string) error
	// Lines reads lines in their order, EndedLines in that in which jobs ended.
	Lines(ctx context.Context, id string, after int64, limit int, jobs bool) ([]broker.BatchLine, error)
	EndedLines(ctx context.Context, id string, n int64, limit int) ([]broker.BatchLine, error)
	RecentBatches(ctx context.Context, producer string, all bool, cursor string, limit int) (ids []string, next string, err error)
}

// Flags keeps what operators have set.
type Flags interface {
	Flags(ctx context.Context) (*flag.Table, error)
	// SetFlag sets a flag for a class or for all; an empty value clears it.
	SetFlag(ctx context.Context, n flag.Name, class, value, by, reason string, hold time.Duration) error
	// Audit reads the newest changes.
	Audit(ctx context.Context, limit int) ([]flag.Change, error)
}

// Ledgers reads the two ledgers and what is summed of them.
type Ledgers interface {
	// SpendRows and MissRows read the rows that a filter wants after a cursor,
	// oldest first; OpenSpendRows the attempts that are not settled, on one page.
	SpendRows(ctx context.Context, f *ledger.Filter, cursor string, limit int) (*broker.Page[broker.SpendRow], error)
	MissRows(ctx context.Context, f *ledger.Filter, cursor string, limit int) (*broker.Page[broker.MissRow], error)
	OpenSpendRows(ctx context.Context) (*broker.Page[broker.SpendRow], error)
	// Minutes hands on the sums of minutes, from the first up to and without the
	// last, in order. OldestRollupAtMS is the first instant whose minute has its
	// sums.
	Minutes(ctx context.Context, first, last int64, each func(ledger.MinuteSums) error) error
	OldestRollupAtMS() int64
	// Totals are the running sums.
	Totals(ctx context.Context) (broker.Totals, error)
	// Overview is what can be said of the books without reading a row;
	// CheckLedgers holds every row against the rest.
	Overview(ctx context.Context) (*ledger.Overview, error)
	CheckLedgers(ctx context.Context) (*ledger.Report, error)
	// Budgets fills in what of each budget is spent today and reserved.
	Budgets(ctx context.Context, budgets map[string]*slackgate.Budget) (nowMS int64, err error)
}

// Webhooks keeps the ends of jobs that producers' webhooks are to be told of.
type Webhooks interface {
	// DueWebhooks leaves of due what has something due. It costs less than taking.
	DueWebhooks(ctx context.Context, due ...broker.WebhookDue) ([]broker.WebhookDue, error)
	// TakeWebhooks takes ends that are due. Nobody else gets them within lease.
	TakeWebhooks(ctx context.Context, lease time.Duration, due ...broker.WebhookDue) ([]broker.Untold, error)
	// SettleWebhook puts down how an attempt ended and returns what was put down;
	// next is the time until the next one after a failure.
	SettleWebhook(ctx context.Context, u *broker.Untold, result broker.WebhookResult, next time.Duration) (broker.WebhookResult, error)
	// WebhooksWaiting is how many ends each producer is yet to be told of.
	WebhooksWaiting(ctx context.Context, producers []string) (map[string]int64, error)
}

// Shard is the store of one gate: a Store in itself, and the steps in which jobs
// are admitted, run and mended. With one shard it is the whole deployment's.
type Shard interface {
	Store
	Gate
	Worker
	Mender
	Archive

	// AlignFlag sets a flag as e says, for hold (0: until it is cleared), while the
	// flags are those of that version, and reports whether they were.
	AlignFlag(ctx context.Context, version int64, e *flag.Entry, hold time.Duration) (bool, error)
	// Newest reads ids from a list of the newest, after a cursor; more is set
	// when there are others after them.
	Newest(ctx context.Context, what broker.NewestList, producer string, all bool, cursor string, limit int) (listed []broker.Listed, more bool, err error)
}

// Gate is what admission asks.
type Gate interface {
	// AdmitInTurn offers jobs to the pools, in order, in one atomic step. It asks
	// turn when everything is ready to be sent; an error of turn is returned, and
	// nothing was sent.
	AdmitInTurn(ctx context.Context, flags *flag.Table, policy [slackgate.NumPaths]broker.PoolPolicy, offers []broker.Offer, turn func() error) (broker.OfferResults, error)
	// KeyedJob is the job that a producer's idempotency key is bound to under the
	// same body; broker.ErrNotFound.
	KeyedJob(ctx context.Context, producer string, key broker.IdempotencyKey) (*broker.Job, error)
	// TextBytes is how long an unfinished job's text is, with its instruction.
	TextBytes(ctx context.Context, id string) (int64, error)
}

// Worker is what a pool's workers ask. broker.ErrFenced: the job has another
// holder, or has ended.
type Worker interface {
	// Beat shows that a worker lives, for ttl; Leave forgets it at once.
	Beat(ctx context.Context, w broker.Worker, ttl time.Duration) error
	Leave(ctx context.Context, w broker.Worker) error
	// Steps takes steps of slots of one pool in one call, and puts down in each what
	// came of it. An error means that nobody knows what came of any.
	Steps(ctx context.Context, path slackgate.Path, limit int, lease time.Duration, steps ...*broker.Step) error
	// Claim takes the most urgent waiting job of a pool under a lease; nil when
	// nothing waits or every slot is taken. Renew prolongs the lease.
	Claim(ctx context.Context, path slackgate.Path, limit int, lease time.Duration) (*broker.Claim, broker.ClaimReport, error)
	Renew(ctx context.Context, c *broker.Claim, lease time.Duration) (broker.Lease, error)
	// Cancels delivers the ids of running jobs whose producer took them back.
	Cancels(ctx context.Context) (<-chan string, func() error)
	// OpenSpend writes an attempt's row before its backend is called, OpenProbe
	// that of a probe, which belongs to no job. Settle books what has ended; a row
	// that is not open any more is left as it stands.
	OpenSpend(ctx context.Context, c *broker.Claim, row *broker.SpendRow) error
	OpenProbe(ctx context.Context, row *broker.SpendRow) error
	Settle(ctx context.Context, rows ...broker.SpendRow) error
	// SawFirstByte notes that a job's first answer text came; Relay sends text to
	// the API replica that asked for it.
	SawFirstByte(ctx context.Context, c *broker.Claim) error
	Relay(ctx context.Context, replica string, p *broker.Piece) error
	// Finish commits a claim's outcome with its rows, and returns the job as it
	// ended. Handback returns a claimed job to its place; one that was taken back
	// meanwhile ends, and is returned.
	Finish(ctx context.Context, c *broker.Claim, f *broker.Finish, rows ...broker.SpendRow) (*broker.Job, error)
	Handback(ctx context.Context, c *broker.Claim, rows ...broker.SpendRow) (ended *broker.Job, err error)
	// Measure counts calls.
	Measure(ctx context.Context, samples ...latency.Sample) error
	// ReportBackends shows how the backends look from a worker. BackendOrders
	// reads what workers are told of backends; HoldBackend tells the others to
	// leave one alone for a while.
	ReportBackends(ctx context.Context, worker string, states []broker.BackendState, ttl time.Duration) error
	BackendOrders(ctx context.Context, names []string) ([]broker.BackendOrders, error)
	HoldBackend(ctx context.Context, name, why string, hold time.Duration) error
	// TurnToProbe reports whether this process may probe a pool now; no other one
	// may for the next everyMS.
	TurnToProbe(ctx context.Context, pool string, everyMS int64) (bool, error)
}

// Mender is what the reconciler asks.
type Mender interface {
	// Sweep ends waiting jobs past due, and puts back into their order or fails
	// jobs whose lease has lapsed.
	Sweep(ctx context.Context) (*broker.Swept, error)
	// MendStrays mends what a deleted or evicted key leaves behind.
	MendStrays(ctx context.Context) (broker.Strays, error)
	// WaitingIDs lists waiting jobs of a pool, the most urgent first, after skip of
	// them.
	WaitingIDs(ctx context.Context, path slackgate.Path, skip, limit int) ([]string, error)
}

// Archive is what the copy of the ledgers into another store asks.
type Archive interface {
	// ExpectArchive says that there is an archive: from then on rows are dropped
	// only by Trim. It must be said again within a week.
	ExpectArchive(ctx context.Context) error
	// Archived notes that the archive has a ledger's first booked rows.
	Archived(ctx context.Context, k ledger.Kind, booked int64) error
	// Trim drops archived rows, up to and with the one named, that are older than
	// keepFor or more than the store's bound.
	Trim(ctx context.Context, k ledger.Kind, archived string, keepFor time.Duration) (dropped int64, more bool, err error)
	// Books reads what the books are held against.
	Books(ctx context.Context) (*ledger.Books, error)
}
