// Package coalesce lets requests that come at the same time share calls to a
// store.
//
// A call is first gathering: requests join it. It is then in flight until the
// store has answered, and done when each of its requests was told. One call
// gathers at a time; at most two are in flight, the second as large as the first:
// so the store has the next one while the answers of the last are dealt out, and
// does not get its work in smaller pieces for that.
package coalesce

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"time"
)

const (
	// MostInFlight is how many calls may be in flight at once.
	MostInFlight = 2
	// LateAfter is how long a call may have been in flight for another to follow
	// it. A store that takes longer is in trouble, and whoever waits is told with
	// the call that is in flight, and no later.
	LateAfter = 25 * time.Millisecond
	// yields is how often requesters that have been told are let go first, so
	// that what they ask next shares the coming call.
	yields = 3
)

// ErrStale is returned to [Options.Send] when a turn was so long in coming that
// what is to be sent must be worked out anew: time has gone on.
var ErrStale = errors.New("the numbers are too old to be sent")

// Options configure a [Caller] for requests Q, a call of which gives one answer
// A. All fields are required.
type Options[Q, A any] struct {
	// Send makes a call, within a time of its own. It asks turn when all is ready
	// to be sent. turn may wait; with an error nothing may be sent, but after
	// ErrStale turn may be asked again.
	Send func(requests []Q, turn func() error) (A, error)
	// Deal gives the requests what the answer holds for each. They are told
	// after that.
	Deal func(requests []Q, answer A)
	// Failed hears of a call that had no answer, and how many were told so.
	Failed func(requests int, err error)
	// Gone is what a request is told that Run will not come to any more.
	Gone error
	// Size is a request's share of MostBytes.
	Size func(Q) int
	// Ordered is set for requests that must be answered in the order in which
	// they come. A call with some is sent when the one before is answered, and
	// not at all if that one fails.
	Ordered func(Q) bool

	// MostRequests and MostBytes bound a call, MostQueued the requests that wait
	// to join one.
	MostRequests, MostBytes, MostQueued int
}

// Caller gathers requests into calls. Create it with [New]; [Caller.Run] must
// run, once, for requests to be told anything.
type Caller[Q, A any] struct {
	o       Options[Q, A]
	queue   chan *Entry[Q]
	stopped chan struct{} // closed when Run has ended

	// Only Run uses these.
	gathering *call[Q]
	inFlight  []*call[Q] // the first was sent first
	done      chan *call[Q]
	last      int // how many requests the last call had
}

// Entry is one request on its way.
type Entry[Q any] struct {
	request Q
	err     error         // read when told is closed, or Run has ended
	told    chan struct{} // closed when the request's call is done
	stopped <-chan struct{}
}

type call[Q any] struct {
	entries []*Entry[Q]
	bytes   int
	ordered bool // some of the requests are
	sentAt  time.Time

	after    *call[Q]      // must be answered first, if there is one
	answered chan struct{} // closed when err is known
	err      error         // why there is no answer
	panicked error         // for Run to go on with
}

// New returns a caller.
func New[Q, A any](o Options[Q, A]) *Caller[Q, A] {
	return &Caller[Q, A]{
		o: o, queue: make(chan *Entry[Q], o.MostQueued), stopped: make(chan struct{}),
		gathering: &call[Q]{}, done: make(chan *call[Q], MostInFlight),
	}
}

// Add queues a request. With ctx over before there is room it is told
// [Options.Gone].
func (c *Caller[Q, A]) Add(ctx context.Context, request Q) *Entry[Q] {
	e := &Entry[Q]{request: request, err: c.o.Gone, told: make(chan struct{}), stopped: c.stopped}
	select {
	case c.queue <- e:
	case <-ctx.Done():
		close(e.told)
	case <-c.stopped:
	}
	return e
}

// Wait returns when the request was dealt its part of an answer; an error says
// why there is none.
func (e *Entry[Q]) Wait() error {
	select {
	case <-e.told:
	case <-e.stopped: // whoever was told was told before
	}
	return e.err
}

// Running reports whether Run has not ended yet.
func (c *Caller[Q, A]) Running() bool {
	select {
	case <-c.stopped:
		return false
	default:
		return true
	}
}

// Run makes calls until ctx is done; what is queued then is still sent.
func (c *Caller[Q, A]) Run(ctx context.Context) {
	defer close(c.stopped)
	defer func() {
		for range c.inFlight { // only when a call has panicked
			<-c.done
		}
	}()
	stop, stopping := ctx.Done(), false
	for {
		c.gather()
		queue := c.queue
		switch {
		case c.ready():
			c.send()
			continue
		case c.full():
			queue = nil
		case stopping && len(c.gathering.entries) == 0 && len(c.inFlight) == 0:
			return
		}
		select {
		case e := <-queue:
			c.join(e)
		case one := <-c.done:
			c.finish(one)
		case <-stop:
			stop, stopping = nil, true
		}
	}
}

// gather takes what is queued, as far as it fits.
func (c *Caller[Q, A]) gather() {
	for !c.full() {
		select {
		case e := <-c.queue:
			c.join(e)
		default:
			return
		}
	}
}

func (c *Caller[Q, A]) join(e *Entry[Q]) {
	one := c.gathering
	one.entries = append(one.entries, e)
	one.bytes += c.o.Size(e.request)
	one.ordered = one.ordered || c.o.Ordered(e.request)
}

func (c *Caller[Q, A]) full() bool {
	return len(c.gathering.entries) >= c.o.MostRequests || c.gathering.bytes >= c.o.MostBytes
}

// ready reports whether the call that gathers is to be sent now.
func (c *Caller[Q, A]) ready() bool {
	switch n := len(c.gathering.entries); {
	case n == 0 || len(c.inFlight) == MostInFlight:
		return false
	case len(c.inFlight) == 0:
		return true
	default:
		first := c.inFlight[0]
		return (c.full() || n >= len(first.entries)) && time.Since(first.sentAt) < LateAfter
	}
}

// send puts the call that gathers in flight.
func (c *Caller[Q, A]) send() {
	// After a call the first of its requesters to be back would otherwise have
	// one to itself while the others queue up behind it.
	for i := 0; i < yields && len(c.inFlight) == 0 && len(c.gathering.entries)+len(c.queue) < c.last; i++ {
		runtime.Gosched()
	}
	c.gather()
	one := c.gathering
	one.sentAt, one.answered = time.Now(), make(chan struct{})
	if len(c.inFlight) > 0 && c.inFlight[0].ordered && one.ordered {
		one.after = c.inFlight[0]
	}
	c.last, c.gathering = len(one.entries), &call[Q]{}
	c.inFlight = append(c.inFlight, one)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				one.panicked = fmt.Errorf("%v\n%s", p, debug.Stack())
				tell(one.entries)
			}
			c.done <- one
		}()
		c.perform(one)
	}()
}

// perform sends a call and tells its requests. Where there is no answer they are
// still to be told.
func (c *Caller[Q, A]) perform(one *call[Q]) {
	requests := make([]Q, len(one.entries))
	for i, e := range one.entries {
		requests[i] = e.request
	}
	answer := c.ask(one, requests)
	if one.err != nil {
		return
	}
	c.o.Deal(requests, answer)
	for _, e := range one.entries {
		e.err = nil
	}
	tell(one.entries)
}

// ask makes a call; its err says why there is no answer.
func (c *Caller[Q, A]) ask(one *call[Q], requests []Q) (answer A) {
	one.err = c.o.Gone // should it come to a panic
	defer func() {
		one.after = nil
		close(one.answered)
	}()
	answer, one.err = c.o.Send(requests, one.turn)
	return answer
}

// turn waits until the call may go to the store. An error is ErrStale, or that
// of the call before it.
func (one *call[Q]) turn() error {
	if one.after == nil {
		return nil
	}
	began := time.Now()
	<-one.after.answered
	if one.after.err == nil && time.Since(began) > LateAfter {
		return ErrStale
	}
	return one.after.err
}

// finish takes a call that is over out of flight. With one that failed whoever
// waits by now is told as well: with the store away, what is left of one call and
// the whole of the next would add up.
func (c *Caller[Q, A]) finish(one *call[Q]) {
	c.inFlight = slices.DeleteFunc(c.inFlight, func(other *call[Q]) bool { return other == one })
	switch {
	case one.panicked != nil:
		panic(one.panicked)
	case one.err == nil:
		return
	}
	for range len(c.queue) {
		c.join(<-c.queue)
	}
	entries := slices.Concat(one.entries, c.gathering.entries)
	c.gathering = &call[Q]{}
	for _, e := range entries {
		e.err = one.err
	}
	c.o.Failed(len(entries), one.err)
	tell(entries)
}

// tell lets the requesters go.
func tell[Q any](entries []*Entry[Q]) {
	for _, e := range entries {
		close(e.told)
	}
}
