package drill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"leeway/broker/background"
	"leeway/broker/client"
	"leeway/slackgate"
)

// Progress is what a live run looks like from outside. It is safe for
// concurrent use.
type Progress struct {
	Offered, Admitted, Rejected, Undecided, Ended, Usable atomic.Int64
}

// Bounds of a live run.
const (
	// afterwardsMS is how long after the last deadline a run waits for its
	// jobs' ends: patientMS if nothing drops a job that is past its deadline.
	afterwardsMS = 30_000
	patientMS    = 300_000
	// askAgain is the pause before an API is asked again that gave no answer.
	askAgain = 200 * time.Millisecond
	// callMS bounds one submission, and one event.
	callMS = 20_000
	// takingBack is how many jobs are taken back at once.
	takingBack = 16
)

// afterwardsMS is how long after its deadline a job of the plan is waited for.
func (p *Plan) afterwardsMS() int64 {
	if p.RecheckOff {
		return patientMS
	}
	return afterwardsMS
}

// player is one live run in progress.
type player struct {
	plan     *Plan
	target   Target
	progress *Progress
	api      *client.Client
	begin    time.Time
	seqs     map[string]int64 // of the labs, before the run
	troubled map[string]bool  // what of the ledgers did not balance before

	mu   sync.Mutex // guards run.Done and did
	run  *Run
	did  []*Event // what may have to be undone
	byID map[string]int
}

// Play runs a plan live against a target, open loop: jobs are sent on schedule
// whatever the answers do, and all times count from when a job was to be sent.
// When it returns, faults, flags and a store that stood still are as they were
// before, also if ctx has ended meanwhile; the jobs of a run that ended early are
// taken back.
func Play(ctx context.Context, p *Plan, t Target, progress *Progress) (*Run, error) {
	if why := Cannots(p, t); len(why) > 0 {
		return nil, refuse(p, why)
	}
	schedule, err := p.Schedule()
	if err != nil {
		return nil, err
	}
	length := time.Duration(schedule[len(schedule)-1].AtMS+p.Class.DeadlineMS+p.afterwardsMS()) * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, 2*length) // twice: the contrast comes first
	defer cancel()
	r := &player{plan: p, target: t, progress: progress, api: t.Client(), run: &Run{}, seqs: map[string]int64{}, byID: map[string]int{}}
	if err := r.ready(ctx); err != nil {
		return nil, err
	}
	fromMS, err := r.playAll(ctx, schedule)
	mended := r.mend(context.WithoutCancel(ctx)) // whatever has happened
	if err != nil {
		r.takeBack(context.WithoutCancel(ctx))
		return nil, errors.Join(err, mended)
	}
	if mended != nil {
		r.run.Checks = append(r.run.Checks, Check{Detail: mended.Error()})
	}
	return r.run, r.collect(ctx, fromMS)
}

// playAll plays the contrast, the events and the jobs. It returns the store's
// clock before the first job.
func (r *player) playAll(ctx context.Context, schedule []Arrival) (fromMS int64, err error) {
	events := r.eventsBefore(ctx)
	if err := r.direct(ctx, schedule); err != nil {
		return 0, err
	}
	pools, err := r.api.Pools(ctx)
	if err != nil {
		return 0, err
	}
	for _, path := range slackgate.Paths {
		r.run.Slots[path] = pools.Pools[path.String()].Capacity
	}
	return pools.NowMS, r.play(ctx, schedule, events)
}

// ready waits for the API to say that it can admit, checks that nobody else is
// at work with what the plan breaks, and notes how everything stands before.
func (r *player) ready(ctx context.Context) error {
	const tries = 50
	for try := 1; ; try++ {
		pools, err := r.api.Pools(ctx)
		if err == nil {
			up := 0
			for _, v := range pools.Pools {
				up += v.Capacity
			}
			if up > 0 {
				break
			}
			err = errors.New("no pool has a live worker")
		}
		if try == tries {
			return fmt.Errorf("the deployment is not ready: %w", err)
		}
		if err := background.Sleep(ctx, askAgain); err != nil {
			return err
		}
	}
	for name, l := range r.target.Labs() {
		s, err := l.State(ctx)
		if err != nil {
			return fmt.Errorf("lab %s: %w", name, err)
		}
		r.seqs[name] = s.Attempts
		f, err := l.Fault(ctx)
		if err != nil {
			return fmt.Errorf("lab %s: %w", name, err)
		}
		if f.Name != "" {
			return fmt.Errorf("lab %s plays the fault %s already: heal it first", name, f.Name)
		}
	}
	for i := range r.plan.Events {
		if e := &r.plan.Events[i]; e.Do == DoFlag {
			f, err := flagThatIsSet(ctx, r.api, e.On, r.target.Class())
			if err != nil {
				return err
			}
			if f != nil {
				return fmt.Errorf("%s is set already, by %s (%s): a drill does not touch it", e.On, orUnknown(f.By), f.Reason)
			}
		}
	}
	return r.troubles(ctx)
}

func orUnknown(who string) string {
	if who == "" {
		return "somebody"
	}
	return who
}

func (r *player) sinceBegin() int64 { return time.Since(r.begin).Milliseconds() }

// do carries out an event and notes when it was done.
func (r *player) do(ctx context.Context, e *Event) {
	if e.Do != DoAddWorker { // which may wait long; the others are done or not, never cut short
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, callMS*time.Millisecond)
	defer cancel()
	r.mu.Lock()
	r.did = append(r.did, e)
	r.mu.Unlock()
	err := r.target.Do(ctx, e)
	d := e.done(e.AtMS)
	if !r.begin.IsZero() {
		d.AtMS = r.sinceBegin()
	}
	if err != nil {
		d.Error = err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.run.Done = append(r.run.Done, d)
}

// eventsBefore does what is due before the first job and returns the rest.
func (r *player) eventsBefore(ctx context.Context) []Event {
	rest := r.plan.Events
	for len(rest) > 0 && rest[0].AtMS <= 0 {
		r.do(ctx, &rest[0])
		rest = rest[1:]
	}
	return rest
}

// mend undoes whatever was done. Undoing what is undone already does no harm.
func (r *player) mend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callMS*time.Millisecond)
	defer cancel()
	undo := map[Action]Action{DoFault: DoHeal, DoFlag: DoClearFlag, DoPauseStore: DoWakeStore}
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, e := range slices.Backward(r.did) {
		if back, ok := undo[e.Do]; ok {
			if err := r.target.Do(ctx, &Event{Do: back, On: e.On}); err != nil {
				errs = append(errs, fmt.Errorf("%s could not be undone: %w", e.String(), err))
			}
		}
	}
	return errors.Join(errs...)
}

// takeBack cancels the jobs that have not ended. Those that it cannot reach end
// by their deadlines.
func (r *player) takeBack(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callMS*time.Millisecond)
	defer cancel()
	limit := make(chan struct{}, takingBack)
	var wg sync.WaitGroup
	for i := range r.run.Jobs {
		j := &r.run.Jobs[i]
		if j.ID == "" || j.Outcome != "" {
			continue
		}
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			_, _ = r.api.Cancel(ctx, j.ID)
		})
	}
	wg.Wait()
}
