package admission

import (
	"context"

	"leeway/broker/faultpoint"
	"leeway/slackgate"
)

// release lets the submitters of one call go: those whose jobs need a ticket
// once it is written, while the next call goes on its way.
func (a *Admitter) release(batch []*pending) {
	var want [slackgate.NumPaths]int64
	var held []*pending
	for _, p := range batch {
		if p.ticket {
			want[p.verdict.Path]++
			held = append(held, p)
			continue
		}
		close(p.done)
	}
	if len(held) == 0 {
		return
	}
	a.ticketing.Go(func() {
		for _, path := range slackgate.Paths {
			a.putTickets(context.Background(), path, want[path])
		}
		faultpoint.Reach(faultpoint.Ticketed)
		for _, p := range held {
			close(p.done)
		}
	})
}

// putTickets writes the tickets of promised jobs. The promises stand whether or
// not they can be written: whoever notices missing tickets adds them.
func (a *Admitter) putTickets(ctx context.Context, path slackgate.Path, n int64) {
	if err := a.Tickets.Put(context.WithoutCancel(ctx), path, n); err != nil {
		a.Log.Warn("tickets not written", "path", path.String(), "jobs", n, "error", err)
	}
}
