package drill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"leeway/broker/background"
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
	// callLimit bounds one submission, and one event.
	callLimit = 20 * time.Second
	// takingBack is how many jobs are taken back at once.
	takingBack = 16
)

// jobLimit is how long after its submission a job of the plan is waited for.
func (p *Plan) jobLimit() time.Duration {
	if p.RecheckOff {
		return millis(p.Class.DeadlineMS + patientMS)
	}
	return millis(p.Class.DeadlineMS + afterwardsMS)
}

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// player is one live run in progress.
type player struct {
	plan     *Plan
	target   *Target
	progress *Progress
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
func Play(ctx context.Context, p *Plan, t *Target, progress *Progress) (*Run, error) {
	if why := t.Cannots(p); len(why) > 0 {
		return nil, refuse(p, why...)
	}
	schedule, err := p.Schedule()
	if err != nil {
		return nil, err
	}
	length := millis(schedule[len(schedule)-1].AtMS) + p.jobLimit()
	ctx, cancel := context.WithTimeout(ctx, 2*length) // twice: the contrast comes first
	defer cancel()
	r := &player{plan: p, target: t, progress: progress, run: &Run{}, seqs: map[string]int64{}, byID: map[string]int{}}
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
	events := r.plan.Events
	for len(events) > 0 && events[0].AtMS <= 0 {
		r.do(ctx, &events[0])
		events = events[1:]
	}
	if err := r.direct(ctx, schedule); err != nil {
		return 0, err
	}
	pools, err := r.target.Client.Pools(ctx)
	if err != nil {
		return 0, err
	}
	for _, path := range slackgate.Paths {
		r.run.Slots[path] = pools.Pools[path.String()].Capacity
	}
	return pools.NowMS, r.play(ctx, schedule, events)
}

// play submits on schedule and waits for every end.
func (r *player) play(ctx context.Context, schedule []Arrival, events []Event) error {
	r.run.Jobs = make([]Job, len(schedule))
	r.begin = time.Now()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range events {
			if background.Sleep(ctx, time.Until(r.begin.Add(millis(events[i].AtMS)))) != nil {
				return
			}
			r.do(ctx, &events[i])
		}
	})
	openLoop(ctx, r.begin, schedule, func(i int, due time.Time) {
		if err := r.submit(ctx, &r.run.Jobs[i], &schedule[i], due); err != nil {
			giveUp(err)
		}
	})
	wg.Wait()
	return context.Cause(ctx)
}

// openLoop calls send for each arrival when it is due, whether or not the calls
// before have returned, and returns when all have. With ctx the rest is left out.
func openLoop(ctx context.Context, begin time.Time, schedule []Arrival, send func(i int, due time.Time)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for i, a := range schedule {
		due := begin.Add(millis(a.AtMS))
		if d := time.Until(due); d > 0 && background.Sleep(ctx, d) != nil {
			return
		}
		wg.Go(func() { send(i, due) })
	}
}

// ready waits for the API to say that it can admit, checks that nobody else is
// at work with what the plan breaks, and notes how everything stands before.
func (r *player) ready(ctx context.Context) error {
	const tries = 50
	for try := 1; ; try++ {
		pools, err := r.target.Client.Pools(ctx)
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
	for name, l := range r.target.Labs {
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
			f, err := r.target.flagThatIsSet(ctx, e.On)
			if err != nil {
				return err
			}
			if f != nil {
				return fmt.Errorf("%s is set already, by %s (%s): a drill does not touch it", e.On, cmp.Or(f.By, "somebody"), f.Reason)
			}
		}
	}
	report, err := r.checkLedgers(ctx)
	if err != nil {
		return err
	}
	r.troubled = map[string]bool{}
	for _, i := range report.Items {
		r.troubled[i.Name] = !i.OK
	}
	return nil
}

// do carries out an event and notes when it was done.
func (r *player) do(ctx context.Context, e *Event) {
	if e.Do != DoAddWorker { // which may wait long; the others are done or not, never cut short
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	r.mu.Lock()
	r.did = append(r.did, e)
	r.mu.Unlock()
	err := r.target.do(ctx, e)
	d := e.done()
	if !r.begin.IsZero() {
		d.AtMS = time.Since(r.begin).Milliseconds()
	}
	if err != nil {
		d.Error = err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.run.Done = append(r.run.Done, d)
}

// mend undoes whatever was done. Undoing what is undone already does no harm.
// Nobody can undo the death of a worker.
func (r *player) mend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, e := range slices.Backward(r.did) {
		if back := mending[e.Do]; back != "" && back != DoAddWorker {
			if err := r.target.do(ctx, &Event{Do: back, On: e.On}); err != nil {
				errs = append(errs, fmt.Errorf("%s could not be undone: %w", e.String(), err))
			}
		}
	}
	return errors.Join(errs...)
}

// takeBack cancels the jobs that have not ended. Those that it cannot reach end
// by their deadlines.
func (r *player) takeBack(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(takingBack)
	for i := range r.run.Jobs {
		if j := &r.run.Jobs[i]; j.ID != "" && j.Outcome == "" {
			g.Go(func() error {
				_, _ = r.target.Client.Cancel(ctx, j.ID)
				return nil
			})
		}
	}
	_ = g.Wait()
}
