package coalesce

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errGone = errors.New("gone")
	errAway = errors.New("away")
)

// request is one in a test: ordered ones are told in their order.
type request struct {
	name    string
	bytes   int
	ordered bool
	answer  string // what it was dealt
}

// rig is a caller on a store that does as it is told, in virtual time.
type rig struct {
	*Caller[*request, string]
	t    *testing.T
	ctx  context.Context
	stop func() // and wait for Run's end

	mu     sync.Mutex // guards what follows
	calls  [][]string // the names in each call that was sent
	stale  int        // how often a turn was too long in coming
	failed []int      // how many were told of each call without an answer
	pause  chan struct{}
	err    error
	boom   bool // calls panic
}

// inBubble runs f with a caller that runs.
func inBubble(t *testing.T, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t}
		r.Caller = New(Options[*request, string]{
			Send: r.send,
			Deal: func(requests []*request, answer string) {
				for _, q := range requests {
					q.answer = answer
				}
			},
			Failed: func(n int, err error) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.failed = append(r.failed, n)
			},
			FailsWaiting: true, Gone: errGone,
			Size:         func(q *request) int { return q.bytes },
			Ordered:      func(q *request) bool { return q.ordered },
			MostRequests: 16, MostBytes: 100, MostQueued: 32,
		})
		ctx, cancel := context.WithCancel(context.Background())
		r.ctx = ctx
		var wg sync.WaitGroup
		wg.Go(func() {
			defer func() {
				if p := recover(); (p != nil) != r.boom {
					t.Errorf("Run ended with %v", p)
				}
			}()
			r.Run(ctx)
		})
		r.stop = func() { cancel(); wg.Wait() }
		defer r.stop()
		f(r)
	})
}

func (r *rig) send(requests []*request, turn func() error) (string, error) {
	for errors.Is(turn(), ErrStale) {
		r.mu.Lock()
		r.stale++
		r.mu.Unlock()
	}
	if err := turn(); err != nil {
		return "", err
	}
	var names []string
	for _, q := range requests {
		names = append(names, q.name)
	}
	r.mu.Lock()
	r.calls = append(r.calls, names)
	answer, pause, err, boom := fmt.Sprint("call ", len(r.calls)), r.pause, r.err, r.boom
	r.mu.Unlock()
	if pause != nil {
		<-pause
	}
	if boom {
		panic("boom")
	}
	return answer, err
}

// paused makes the calls to come wait; what it returns lets them go.
func (r *rig) paused() (release func()) {
	pause := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pause = pause
	return func() {
		r.mu.Lock()
		if r.pause == pause {
			r.pause = nil
		}
		r.mu.Unlock()
		close(pause)
		synctest.Wait()
	}
}

// asked is a request and its way through the caller.
type asked struct {
	*request
	entry *Entry[*request]
}

// ask adds n requests and waits until nothing more comes of it.
func (r *rig) ask(name string, n int, ordered bool) []asked {
	out := make([]asked, n)
	for i := range out {
		q := &request{name: fmt.Sprint(name, i), ordered: ordered}
		out[i] = asked{q, r.Add(r.ctx, q)}
	}
	synctest.Wait()
	return out
}

// sizes are how many requests the calls had that were sent.
func (r *rig) sizes() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []int{}
	for _, names := range r.calls {
		out = append(out, len(names))
	}
	return out
}

func (r *rig) wantSizes(when string, want ...int) {
	r.t.Helper()
	if diff := cmp.Diff(want, r.sizes()); diff != "" {
		r.t.Errorf("%s: requests in each call (-want +got):\n%s", when, diff)
	}
}

// wantTold waits for all of them and compares the errors they are told.
func (r *rig) wantTold(want error, all ...[]asked) {
	r.t.Helper()
	for _, a := range slices.Concat(all...) {
		if err := a.entry.Wait(); !errors.Is(err, want) {
			r.t.Errorf("%s was told %v, want %v", a.name, err, want)
		}
	}
}

func TestRequestsThatComeTogetherShareACall(t *testing.T) {
	inBubble(t, func(r *rig) {
		release := r.paused()
		first := r.ask("first", 1, false)
		second := r.ask("second", 1, false)
		r.wantSizes("both in flight", 1, 1)
		rest := r.ask("rest", 20, false)
		r.wantSizes("no third in flight", 1, 1)
		release()
		r.wantTold(nil, first, second, rest)
		r.wantSizes("all told", 1, 1, 16, 4)
		for i, a := range rest {
			want := "call 3"
			if i >= 16 {
				want = "call 4"
			}
			if a.answer != want {
				t.Errorf("%s has the answer of %s, want that of %s", a.name, a.answer, want)
			}
		}
	})
}

// A call in flight is followed by one as large as itself, and by none once it is
// late.
func TestCallsDoNotGetSmaller(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late %t", late), func(t *testing.T) {
			inBubble(t, func(r *rig) {
				release := r.paused()
				all := [][]asked{r.ask("a", 1, false), r.ask("b", 1, false)}
				all = append(all, r.ask("c", 7, false))
				r.wantSizes("two in flight", 1, 1)
				releaseOthers := r.paused() // those to come
				release()
				r.wantSizes("what gathered is in flight", 1, 1, 7)
				all = append(all, r.ask("d", 6, false))
				r.wantSizes("six are not seven", 1, 1, 7)
				if late {
					time.Sleep(LateAfter)
				}
				all = append(all, r.ask("e", 1, false))
				if late {
					r.wantSizes("none follows a late one", 1, 1, 7)
				} else {
					r.wantSizes("seven follow seven", 1, 1, 7, 7)
				}
				releaseOthers()
				r.wantTold(nil, all...)
				r.wantSizes("in the end", 1, 1, 7, 7)
			})
		})
	}
}

func TestBytesBoundACall(t *testing.T) {
	inBubble(t, func(r *rig) {
		release := r.paused()
		all := [][]asked{r.ask("a", 1, false), r.ask("b", 1, false)}
		for i := range 5 {
			q := &request{name: fmt.Sprint("large", i), bytes: 60}
			all = append(all, []asked{{q, r.Add(r.ctx, q)}})
		}
		release()
		r.wantTold(nil, all...)
		r.wantSizes("two of sixty are more than a hundred", 1, 1, 2, 2, 1)
	})
}

func TestOrderedRequestsGoOneCallAfterTheOther(t *testing.T) {
	inBubble(t, func(r *rig) {
		release := r.paused()
		first, second := r.ask("first", 1, true), r.ask("second", 1, true)
		r.wantSizes("the second is ready and not sent", 1)
		other := r.ask("third", 1, true)
		release()
		r.wantTold(nil, first, second, other)
		r.wantSizes("each in its turn", 1, 1, 1)
		if r.stale != 0 {
			t.Errorf("%d turns were late, none took any time", r.stale)
		}
		if diff := cmp.Diff([][]string{{"first0"}, {"second0"}, {"third0"}}, r.calls); diff != "" {
			t.Errorf("order of the calls (-want +got):\n%s", diff)
		}
	})
}

// What has no order does not wait for what has.
func TestUnorderedRequestsDoNotWaitForATurn(t *testing.T) {
	inBubble(t, func(r *rig) {
		release := r.paused()
		first, second := r.ask("ordered", 1, true), r.ask("other", 1, false)
		r.wantSizes("both in flight", 1, 1)
		release()
		r.wantTold(nil, first, second)
	})
}

func TestATurnThatWasLongInComingIsStale(t *testing.T) {
	inBubble(t, func(r *rig) {
		release := r.paused()
		first, second := r.ask("first", 1, true), r.ask("second", 1, true)
		time.Sleep(LateAfter + time.Millisecond)
		release()
		r.wantTold(nil, first, second)
		if r.stale != 1 {
			t.Errorf("told to work it out anew %d times, want once", r.stale)
		}
	})
}

// Whoever waits when a call fails is told with it, and a call that was to follow
// in order is not sent.
func TestAFailedCallTellsWhoeverWaits(t *testing.T) {
	inBubble(t, func(r *rig) {
		release := r.paused()
		r.err = errAway
		first, second := r.ask("first", 1, true), r.ask("second", 1, true)
		waiting := r.ask("waiting", 3, false)
		release()
		r.wantTold(errAway, first, second, waiting)
		r.wantSizes("one was sent", 1)
		if told := r.failed[0] + r.failed[1]; len(r.failed) != 2 || told != 5 {
			t.Errorf("failures told %v requests, want 5 in two calls", r.failed)
		}
		r.mu.Lock()
		r.err = nil
		r.mu.Unlock()
		r.wantTold(nil, r.ask("later", 1, false))
	})
}

func TestWhatIsQueuedWhenRunIsToldToStopIsStillSent(t *testing.T) {
	inBubble(t, func(r *rig) {
		release := r.paused()
		all := [][]asked{r.ask("a", 1, false), r.ask("b", 1, false), r.ask("c", 2, false)}
		stopped := make(chan struct{})
		go func() { r.stop(); close(stopped) }()
		synctest.Wait()
		if !r.Running() {
			t.Error("ended with requests that wait")
		}
		release()
		r.wantTold(nil, all...)
		<-stopped
		if r.Running() {
			t.Error("still running")
		}
	})
}

func TestNobodyWaitsForARunThatHasEnded(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		for range 64 { // more than may be queued
			r.wantTold(errGone, r.ask("late", 1, false))
		}
	})
}

func TestARequesterThatGivesUpBeforeThereIsRoomIsTold(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		c := New(Options[*request, string]{Gone: errGone}) // nobody runs it
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := c.Add(ctx, &request{}).Wait(); !errors.Is(err, errGone) {
			t.Errorf("told %v, want %v", err, errGone)
		}
	})
}

// A panic in a call ends Run with it, and leaves nobody waiting.
func TestAPanicInACallIsRuns(t *testing.T) {
	inBubble(t, func(r *rig) {
		release := r.paused()
		r.boom = true
		all := [][]asked{r.ask("a", 1, true), r.ask("b", 1, true), r.ask("c", 1, false)}
		release()
		r.wantTold(errGone, all...)
		if r.Running() {
			t.Error("still running")
		}
	})
}
