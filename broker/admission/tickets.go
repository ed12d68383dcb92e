package admission

import (
	"context"
	"sync"

	"leeway/broker/faultpoint"
	"leeway/slackgate"
)

// owed are the tickets of promised jobs that are yet to be written.
type owed struct {
	mu      sync.Mutex // guards what follows
	n       [slackgate.NumPaths]int64
	writing bool           // while somebody writes them
	writer  sync.WaitGroup // that somebody
}

// owe has tickets written, those of several calls together if they come faster
// than they can be.
func (a *Admitter) owe(want [slackgate.NumPaths]int64) {
	if want == [slackgate.NumPaths]int64{} {
		return
	}
	a.owed.mu.Lock()
	defer a.owed.mu.Unlock()
	for _, path := range slackgate.Paths {
		a.owed.n[path] += want[path]
	}
	if !a.owed.writing {
		a.owed.writing = true
		a.owed.writer.Go(a.writeTickets)
	}
}

func (a *Admitter) writeTickets() {
	for {
		a.owed.mu.Lock()
		want := a.owed.n
		a.owed.n = [slackgate.NumPaths]int64{}
		if want == a.owed.n {
			a.owed.writing = false
			a.owed.mu.Unlock()
			return
		}
		a.owed.mu.Unlock()
		faultpoint.Reach(faultpoint.Ticketing)
		for _, path := range slackgate.Paths {
			a.putTickets(context.Background(), path, want[path])
		}
	}
}

// putTickets writes the tickets of promised jobs.
func (a *Admitter) putTickets(ctx context.Context, path slackgate.Path, n int64) {
	if err := a.Tickets.Put(context.WithoutCancel(ctx), path, n); err != nil {
		a.Log.Warn("tickets not written", "path", path.String(), "jobs", n, "error", err)
	}
}
