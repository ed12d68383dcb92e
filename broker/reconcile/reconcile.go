// Package reconcile mends what crashes and lost messages leave behind: jobs
// past due that nobody ended, claims whose worker is gone, and waiting jobs
// without a ticket. Any number of processes may run it at once; each step is
// atomic in the store.
package reconcile

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"leeway/broker"
	"leeway/broker/joblog"
	"leeway/broker/store"
	"leeway/broker/ticket"
	"leeway/slackgate"
)

// Interval is how often a process looks.
const Interval = 500 * time.Millisecond

// Mending is a kind of what is mended. The set is closed.
type Mending string

// The kinds.
const (
	Expired    Mending = "expired"     // a job past due in the queue was ended
	Reoffered  Mending = "reoffered"   // a lapsed claim went back into the order
	WorkerLost Mending = "worker_lost" // a lapsed claim could not be made any more, or was cancelled
	RecordLost Mending = "record_lost" // a job whose record is gone was set aside
	Ticket     Mending = "ticket"      // a ticket was missing
	Place      Mending = "place"       // an unfinished job was in no order
	Stray      Mending = "stray"       // a key or a reservation of no job
	Phantom    Mending = "phantom"     // a ticket that asynq would hold for ever
)

// Mendings lists the closed set.
var Mendings = [...]Mending{Expired, Reoffered, WorkerLost, RecordLost, Ticket, Place, Stray, Phantom}

// Reconciler mends. All fields are required, but for Strays.
type Reconciler struct {
	Store   store.Shard
	Tickets *ticket.Queue
	Policy  func() [slackgate.NumPaths]broker.PoolPolicy
	Log     *slog.Logger
	// Draining reports whether a pool is being drained.
	Draining func(path slackgate.Path) bool
	// Reoffer offers waiting jobs to another pool; see admission.Admitter.
	Reoffer func(ctx context.Context, from slackgate.Path, jobs []*broker.Job, lost bool) (moved, revoked int, err error)

	// Strays is set where something from outside may delete keys, so that it is
	// looked for what that leaves behind.
	Strays bool

	// Mended hears of what was mended, n of a kind at once.
	Mended func(what Mending, n int64)

	phantoms time.Time               // when phantoms were last looked for
	passed   [slackgate.NumPaths]int // how many waiting jobs the last look at a pool has left behind it
}

// Run mends every Interval until ctx is done. Redis being away is not a
// failure of the loop: it goes on when Redis does.
func (r *Reconciler) Run(ctx context.Context) error {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	away := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := r.Once(ctx)
		if err != nil && ctx.Err() == nil && !away {
			r.Log.Warn("reconciler cannot reach the store", "error", err)
		}
		away = err != nil
	}
}

// Once mends what there is to mend. Calls of one Reconciler must not overlap;
// any number of Reconcilers may.
func (r *Reconciler) Once(ctx context.Context) error {
	swept, err := r.Store.Sweep(ctx)
	if err != nil {
		return err
	}
	for _, l := range swept.Lost {
		joblog.Lost(ctx, r.Log, l)
	}
	lost := int64(len(swept.Lost))
	for what, n := range map[Mending]int64{
		Expired: swept.Expired, Reoffered: swept.Reoffered, WorkerLost: swept.Failed - lost, RecordLost: lost,
	} {
		r.Mended(what, n)
	}
	for _, j := range swept.Ended {
		joblog.Ended(ctx, r.Log, j)
	}
	if swept.Reoffered+swept.Failed > 0 {
		r.Log.Warn("claims without a living worker", "reoffered", swept.Reoffered, "failed", swept.Failed)
	}
	if r.Strays {
		if err := r.mendStrays(ctx); err != nil {
			return err
		}
	}
	st, err := r.Store.State(ctx, r.Policy())
	if err != nil {
		return err
	}
	for _, path := range slackgate.Paths {
		n, err := r.Tickets.TopUp(ctx, path, &st.Pools[path])
		if err != nil {
			return err
		}
		r.Mended(Ticket, n)
		if n > 0 {
			r.Log.Debug("tickets topped up", "path", path.String(), "added", n)
		}
	}
	for _, path := range slackgate.Paths {
		lost := st.Pools[path].Capacity == 0 && !swept.JustBack
		if st.Pools[path].Waiting == 0 || !lost && !r.Draining(path) {
			r.passed[path] = 0
			continue
		}
		if err := r.reoffer(ctx, path, lost); err != nil {
			return err
		}
	}
	return nil
}

// phantomsEvery is how often a process looks for phantoms.
const phantomsEvery = time.Minute

// mendStrays mends what only something from outside leaves behind: keys that
// were deleted or evicted.
func (r *Reconciler) mendStrays(ctx context.Context) error {
	strays, err := r.Store.MendStrays(ctx)
	if err != nil {
		return err
	}
	r.Mended(Place, strays.Placed)
	r.Mended(Stray, strays.Removed)
	if strays != (broker.Strays{}) {
		r.Log.Warn("keys that belong together were not: has something deleted or evicted them?",
			"placed", strays.Placed, "removed", strays.Removed)
	}
	if time.Since(r.phantoms) < phantomsEvery {
		return nil
	}
	r.phantoms = time.Now()
	for _, path := range slackgate.Paths {
		n, err := r.Tickets.RemovePhantoms(ctx, path)
		if err != nil {
			return err
		}
		r.Mended(Phantom, n)
		if n > 0 {
			r.Log.Warn("tickets that asynq would hold for ever were removed", "path", path.String(), "removed", n)
		}
	}
	return nil
}

// Bounds of one look at a pool whose jobs are offered again.
const (
	reofferPage = 100
	// reofferStays is how many jobs may stay where they are before the look ends;
	// the next one goes on behind them.
	reofferStays = 200
)

// reoffer offers the waiting jobs of a pool that is being drained, or has lost its
// capacity, to the gate once more, where their class allows both pools. Look after
// look it comes past all of them, however many can not move.
func (r *Reconciler) reoffer(ctx context.Context, from slackgate.Path, lost bool) error {
	allMoved, allRevoked, stays := 0, 0, 0
	for began := time.Now(); stays < reofferStays && time.Since(began) < Interval; { // the sweep must not wait for a slow store
		ids, err := r.Store.WaitingIDs(ctx, from, r.passed[from], reofferPage)
		if err != nil {
			return err
		}
		jobs, err := r.Store.Jobs(ctx, ids)
		if err != nil {
			return err
		}
		// What is gone is set aside by the claim.
		jobs = slices.DeleteFunc(jobs, func(j *broker.Job) bool { return j == nil })
		moved, revoked, err := r.Reoffer(ctx, from, jobs, lost)
		if err != nil {
			return err
		}
		allMoved, allRevoked = allMoved+moved, allRevoked+revoked
		left := len(ids) - moved - revoked
		stays += left
		r.passed[from] += left
		if len(ids) < reofferPage { // these were the last: from the most urgent on again
			r.passed[from] = 0
			break
		}
	}
	if allMoved+allRevoked > 0 {
		r.Log.Info("waiting jobs offered again", "from", from.String(), "capacity_lost", lost, "moved", allMoved, "revoked", allRevoked)
	}
	return nil
}
