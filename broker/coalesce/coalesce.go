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
	"sync"
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
// A. All fields but FailsWaiting are required.
type Options[Q, A any] struct {
	// Send makes a call, within a time of its own. It asks turn when all is ready
	// to be sent. turn may wait; with an error nothing may be sent, but after
	// ErrStale turn may be asked again.
	Send func(requests []Q, turn func() error) (A, error)
	// Deal gives the requests what the answer holds for each. They are told
	// after that.
	Deal func(requests []Q, answer A)
	// Failed hears of a call that had no answer, and how many are told so. Two calls
	// may fail at once.
	Failed func(requests int, err error)
	// FailsWaiting has whoever waits when a call fails told so as well: with the
	// store away, what is left of one call and the whole of the next would add up.
	FailsWaiting bool
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

// Caller gathers requests into calls. Create it with [New]; [Caller.Run] bounds its
// life.
type Caller[Q, A any] struct {
	o        Options[Q, A]
	room     chan struct{} // holds a place for each request that waits to be sent
	stopped  chan struct{} // closed when Run has ended
	panicked chan error    // what a call panicked with, for Run to go on with
	calls    sync.WaitGroup

	mu        sync.Mutex // guards what follows; held for moments
	gathering *call[Q]
	queue     []*Entry[Q] // what does not fit into it
	sending   bool        // somebody is about to send it
	inFlight  []*call[Q]  // the first was sent first
	last      int         // how many requests the last call had
	stopping  bool        // when nothing is left, nothing more comes
	over      bool        // nothing more comes
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
}

// New returns a caller.
func New[Q, A any](o Options[Q, A]) *Caller[Q, A] {
	return &Caller[Q, A]{
		o: o, room: make(chan struct{}, o.MostQueued), stopped: make(chan struct{}), panicked: make(chan error, 1),
		gathering: &call[Q]{},
	}
}

// Add queues a request. With ctx over before there is room it is told
// [Options.Gone].
func (c *Caller[Q, A]) Add(ctx context.Context, request Q) *Entry[Q] {
	e := &Entry[Q]{request: request, err: c.o.Gone, told: make(chan struct{}), stopped: c.stopped}
	select {
	case c.room <- struct{}{}:
	case <-ctx.Done():
		close(e.told)
		return e
	case <-c.stopped:
		return e
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		<-c.room
		return e
	}
	c.queue = append(c.queue, e)
	c.next()
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

// Run returns when ctx is done and what was queued by then is answered. It goes on
// with the panic of a call. Nobody is told anything after it.
func (c *Caller[Q, A]) Run(ctx context.Context) {
	defer close(c.stopped)
	defer c.calls.Wait()
	var panicked error
	select {
	case <-ctx.Done():
		c.mu.Lock()
		c.stopping = true
		c.next()
		c.mu.Unlock()
		c.calls.Wait()
		select {
		case panicked = <-c.panicked:
		default:
		}
	case panicked = <-c.panicked:
	}
	if panicked != nil {
		panic(panicked)
	}
}

// next takes what is queued, as far as it fits, and has it sent if it is to be
// sent now. c.mu is held.
func (c *Caller[Q, A]) next() {
	n := 0
	for n < len(c.queue) && !c.full() {
		c.join(c.queue[n])
		n++
	}
	c.queue = slices.Delete(c.queue, 0, n)
	switch {
	case c.over || c.sending:
	case c.ready():
		c.sending = true
		c.calls.Go(c.send)
	case c.stopping && len(c.gathering.entries) == 0 && len(c.inFlight) == 0:
		c.over = true
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

// send puts the call that gathers in flight, and sees it done.
func (c *Caller[Q, A]) send() {
	// After a call the first of its requesters to be back would otherwise have
	// one to itself while the others queue up behind it.
	for i := 0; i < yields && c.fewer(); i++ {
		runtime.Gosched()
	}
	c.mu.Lock()
	one := c.gathering
	one.sentAt, one.answered = time.Now(), make(chan struct{})
	if len(c.inFlight) > 0 && c.inFlight[0].ordered && one.ordered {
		one.after = c.inFlight[0]
	}
	c.last, c.gathering, c.sending = len(one.entries), &call[Q]{}, false
	c.inFlight = append(c.inFlight, one)
	c.next()
	c.mu.Unlock()
	for range one.entries {
		<-c.room
	}
	defer func() {
		if p := recover(); p != nil {
			c.fail(one, fmt.Errorf("%v\n%s", p, debug.Stack()))
		}
	}()
	c.perform(one)
	c.finish(one)
}

// fewer reports whether fewer requests gather than the last call had, while none
// is in flight.
func (c *Caller[Q, A]) fewer() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.inFlight) == 0 && len(c.gathering.entries)+len(c.queue) < c.last
}

// fail ends all after a call has panicked.
func (c *Caller[Q, A]) fail(one *call[Q], panicked error) {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	tell(one.entries)
	select {
	case c.panicked <- panicked:
	default: // another has
	}
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

// finish takes a call that is over out of flight, and tells of one that failed.
func (c *Caller[Q, A]) finish(one *call[Q]) {
	c.mu.Lock()
	c.inFlight = slices.DeleteFunc(c.inFlight, func(other *call[Q]) bool { return other == one })
	var waited []*Entry[Q]
	if one.err != nil && c.o.FailsWaiting && !c.sending {
		waited = slices.Concat(c.gathering.entries, c.queue)
		c.gathering, c.queue = &call[Q]{}, nil
	}
	c.next()
	c.mu.Unlock()
	if one.err == nil {
		return
	}
	for range waited {
		<-c.room
	}
	entries := slices.Concat(one.entries, waited)
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
