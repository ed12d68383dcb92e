package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"leeway/broker/background"
	"leeway/broker/client"
	"leeway/broker/httpapi"
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
	// jobs' ends.
	afterwardsMS = 30_000
	// askAgain is the pause before an API is asked again that gave no answer.
	askAgain = 200 * time.Millisecond
	// callMS bounds one submission, and one event.
	callMS = 20_000
)

// player is one live run in progress.
type player struct {
	plan     *Plan
	target   Target
	progress *Progress
	api      *client.Client
	begin    time.Time
	seqs     map[string]int64 // of the labs, before the run

	mu   sync.Mutex // guards run.Done
	run  *Run
	byID map[string]int
}

// Play runs a plan live against a target, open loop: jobs are sent on schedule
// whatever the answers do, and all times count from when a job was to be sent.
// When it returns, the deployment is as it was before.
func Play(ctx context.Context, p *Plan, t Target, progress *Progress) (*Run, error) {
	if why := Cannots(p, t); len(why) > 0 {
		return nil, refuse(p, why)
	}
	schedule, err := p.Schedule()
	if err != nil {
		return nil, err
	}
	length := time.Duration(schedule[len(schedule)-1].AtMS+p.Class.DeadlineMS+afterwardsMS) * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, 2*length) // twice: the contrast comes first
	defer cancel()
	r := &player{plan: p, target: t, progress: progress, api: t.Client(), run: &Run{}, seqs: map[string]int64{}, byID: map[string]int{}}
	if err := r.ready(ctx); err != nil {
		return nil, err
	}
	defer r.mend(context.WithoutCancel(ctx)) // whatever happens
	events := r.eventsBefore(ctx)
	if err := r.direct(ctx, schedule); err != nil {
		return nil, err
	}
	pools, err := r.api.Pools(ctx)
	if err != nil {
		return nil, err
	}
	for _, path := range slackgate.Paths {
		r.run.Slots[path] = pools.Pools[path.String()].Capacity
	}
	if err := r.play(ctx, schedule, events); err != nil {
		return nil, err
	}
	r.mend(context.WithoutCancel(ctx))
	return r.run, r.collect(ctx, pools.NowMS)
}

// ready waits for the API to say that it can admit, and notes where the labs'
// records stand.
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
	}
	return nil
}

func (r *player) sinceBegin() int64 { return time.Since(r.begin).Milliseconds() }

// do carries out an event and notes when it was done.
func (r *player) do(ctx context.Context, e *Event) {
	ctx, cancel := context.WithTimeout(ctx, callMS*time.Millisecond)
	defer cancel()
	err := r.target.Do(ctx, e)
	d := Done{AtMS: e.AtMS, What: e.String(), Breaks: e.Do.breaks(), Mends: e.Do.mends()}
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

// mend undoes whatever the plan may have done. Undoing twice does no harm.
func (r *player) mend(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callMS*time.Millisecond)
	defer cancel()
	undo := map[Action]Action{DoFault: DoHeal, DoFlag: DoClearFlag, DoPauseStore: DoWakeStore}
	for _, e := range r.plan.Events {
		back, ok := undo[e.Do]
		if !ok {
			continue
		}
		err := r.target.Do(ctx, &Event{Do: back, On: e.On})
		var p *httpapi.Problem
		if errors.As(err, &p) && p.Status == http.StatusNotFound {
			continue // cleared already
		}
		if err != nil {
			r.run.Checks = append(r.run.Checks, Check{Detail: fmt.Sprintf("%s could not be undone: %v", e.String(), err)})
		}
	}
}
