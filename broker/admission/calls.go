package admission

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"leeway/broker"
	"leeway/broker/redisstore"
	"leeway/slackgate"
)

// Bounds of the calls to the store that submissions share.
const (
	maxBatch      = 128
	maxBatchBytes = 8 << 20
	// maxQueue is how many submissions may wait for their turn.
	maxQueue = 64 * maxBatch
	// mostAway is how many calls may be on their way at once: the store has the
	// next one while the answers of the last are dealt with.
	mostAway = 2
	// lateAfter is how long a call may have been away for another to follow it.
	// A store that takes longer is in trouble, and whoever waits is told with
	// the call that is away, and no later.
	lateAfter = 25 * time.Millisecond
	// yields is how often submitters that have their verdict are let go first,
	// so that what they submit next shares the coming call.
	yields = 3
)

// call is one call to the store.
type call struct {
	jobs  []*pending
	bytes int       // of their texts
	lines bool      // set when lines of batches are among them
	sent  time.Time // on its way; it may have to wait for its turn
	panic error     // that it came to, for Run to go on with

	after    *call         // goes first, if there is one: lines are decided in their order
	err      error         // why the store did not decide
	answered chan struct{} // closed when err is known
}

// errStale says that a turn was so long in coming that what is to be sent must
// be worked out anew: the jobs' time has gone on.
var errStale = errors.New("the numbers are too old to be sent")

// turn waits until the call may go to the store. An error is errStale, or that
// of the call before it.
func (c *call) turn() error {
	if c.after == nil {
		return nil
	}
	began := time.Now()
	<-c.after.answered
	if c.after.err == nil && time.Since(began) > lateAfter {
		return errStale
	}
	return c.after.err
}

func (c *call) add(p *pending) {
	c.jobs = append(c.jobs, p)
	c.bytes += len(p.job.Text)
	c.lines = c.lines || p.job.Place.Batch != ""
}

func (c *call) full() bool { return len(c.jobs) >= maxBatch || c.bytes >= maxBatchBytes }

// caller sends calls. While one is away the next gathers, and follows it once it
// is as large: so the store is never without work, and does not get it in
// smaller pieces for that.
type caller struct {
	*Admitter

	next *call
	away []*call
	last int // how many jobs the last call had
	back chan *call
}

// Run decides queued submissions until ctx is done; what is queued then is
// still decided.
func (a *Admitter) Run(ctx context.Context) error {
	defer close(a.stopped)
	defer a.owed.writer.Wait()
	c := caller{Admitter: a, next: &call{}, back: make(chan *call, mostAway)}
	defer func() {
		for range c.away { // only when a call has panicked
			<-c.back
		}
	}()
	stop, stopping := ctx.Done(), false
	for {
		c.gather()
		queue := a.queue
		switch {
		case c.ready():
			c.send()
			continue
		case c.next.full():
			queue = nil
		case len(c.next.jobs) == 0 && len(c.away) == 0 && stopping:
			a.tell(context.Background())
			return nil
		}
		select {
		case p := <-queue:
			c.next.add(p)
		case done := <-c.back:
			c.returned(done)
		case <-stop:
			stop, stopping = nil, true
		}
	}
}

// gather takes what is queued, as far as it fits.
func (c *caller) gather() {
	for !c.next.full() {
		select {
		case p := <-c.queue:
			c.next.add(p)
		default:
			return
		}
	}
}

// ready reports whether the next call is to be sent now.
func (c *caller) ready() bool {
	switch {
	case len(c.next.jobs) == 0 || len(c.away) == mostAway:
		return false
	case len(c.away) == 0:
		return true
	}
	first := c.away[0]
	return (c.next.full() || len(c.next.jobs) >= len(first.jobs)) && time.Since(first.sent) < lateAfter
}

func (c *caller) send() {
	// After a call the first of its submitters to be back would otherwise have
	// one to itself while the others queue up behind it.
	for i := 0; i < yields && len(c.away) == 0 && len(c.next.jobs)+len(c.queue) < c.last; i++ {
		runtime.Gosched()
	}
	c.gather()
	one := c.next
	one.sent = time.Now()
	one.answered = make(chan struct{})
	if len(c.away) > 0 && c.away[0].lines && one.lines {
		one.after = c.away[0]
	}
	c.last, c.next = len(one.jobs), &call{}
	c.away = append(c.away, one)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				one.panic = fmt.Errorf("%v\n%s", p, debug.Stack())
				c.release(one.jobs)
			}
			c.back <- one
		}()
		c.decide(one)
	}()
}

func (c *caller) returned(done *call) {
	c.away = slices.DeleteFunc(c.away, func(one *call) bool { return one == done })
	if done.panic != nil {
		panic(done.panic)
	}
	if done.err == nil {
		return
	}
	// Whoever waits by now is told with it: with the store away, what is left of
	// one call and the whole of the next would add up.
	for range len(c.queue) {
		c.next.add(<-c.queue)
	}
	told := slices.Concat(done.jobs, c.next.jobs)
	c.next = &call{}
	for _, p := range told {
		p.err = done.err
	}
	c.forget()
	c.Log.Warn("the gate cannot decide", "jobs", len(told), "error", done.err)
	c.release(told)
}

// atOnce is the turn of what waits for nobody.
func atOnce() error { return nil }

// ask has the store decide a call's jobs; the call's err says why it did not.
func (a *Admitter) ask(one *call) (got redisstore.Admitted) {
	one.err = broker.ErrUnavailable // should it come to a panic
	defer func() {
		one.after = nil
		close(one.answered)
	}()
	// Every call to the store has its own bound; the submitters' contexts are
	// theirs alone.
	got, one.err = a.offer(context.Background(), one.jobs, one.turn)
	return got
}

// decide has the store decide a call's jobs and lets their submitters go. Where
// the store did not decide they are still to be told.
func (a *Admitter) decide(one *call) {
	got := a.ask(one)
	if one.err != nil {
		return
	}
	at, down := time.Now(), false
	for i, p := range one.jobs {
		switch adm := &got.Jobs[i]; adm.Bound {
		case redisstore.KeySame:
			p.same, p.err = adm.BoundTo, nil
		case redisstore.KeyConflict:
			p.err = broker.ErrKeyConflict
		case redisstore.BatchGone:
			p.err = broker.ErrBatchCancelled
		default:
			p.verdict, p.err, p.ticket = a.verdict(p, &got, i), nil, adm.Ticket
			a.learn(p, adm, at)
			down = down || p.verdict.Reason == slackgate.ReasonPoolDown
		}
	}
	if down {
		a.explain(one.jobs)
	}
	a.release(one.jobs)
}

// explain looks for what may be behind pools that are down: a store that takes
// no writes takes no heartbeats either, and that is then what to say.
func (a *Admitter) explain(jobs []*pending) {
	err := a.Store.Writable(context.Background())
	if err == nil {
		return
	}
	a.Log.Warn("the gate cannot decide", "jobs", len(jobs), "error", err)
	for _, p := range jobs {
		if p.err == nil && p.verdict.Reason == slackgate.ReasonPoolDown {
			p.err = err
		}
	}
}

// tell has the store hear of what was refused without asking it.
func (a *Admitter) tell(ctx context.Context) {
	if !a.anyUntold() {
		return
	}
	if _, err := a.offer(ctx, nil, atOnce); err != nil {
		a.Log.Warn("refusals not counted", "error", err)
	}
}
