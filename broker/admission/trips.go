package admission

import (
	"slices"
	"sync"
	"time"
)

// callsBetween is how many calls to the store a worker makes one after the
// other from a job's last byte until it has the next job: it books the outcome,
// reads the record for the log line, counts the latency, and claims.
const callsBetween = 4

// tripsKept is how many readings of the state are remembered: those of a second
// or two.
const tripsKept = 16

// trips remembers how long the last calls to the store took. They are this
// process's, and stand for those of the workers.
type trips struct {
	mu   sync.Mutex // guards what follows
	last [tripsKept]time.Duration
	n    int
}

// took notes a call.
func (t *trips) took(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last[t.n%tripsKept] = d
	t.n++
}

// least is what each of the last calls took at least; 0 before the first. The
// least, because in a flood this process is late to hear of most answers, and
// the workers are not.
func (t *trips) least() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == 0 {
		return 0
	}
	return slices.Min(t.last[:min(t.n, tripsKept)])
}

// dispatchMS is how long a worker that comes free takes to claim the next job:
// what the settings say of an idle one, or what a busy one's calls to the store
// take, whichever is longer.
func (a *Admitter) dispatchMS(idleMS int64) int64 {
	return max(idleMS, (callsBetween * a.trips.least()).Milliseconds())
}
