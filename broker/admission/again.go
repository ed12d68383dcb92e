package admission

import (
	"context"
	"time"

	"leeway/broker"
	"leeway/slackgate"
)

// Move offers a waiting job of a pool that is being drained to the class's
// other pool, with the slack it has left. It reports whether that pool took
// it.
func (a *Admitter) Move(ctx context.Context, v *broker.Job, to slackgate.Path, nowMS int64) (bool, error) {
	p := &pending{
		job: &broker.Submission{
			Spec: broker.Spec{
				ID: v.ID, Class: v.Class, Producer: v.Producer, Prefer: [2]slackgate.Path{to},
				FirstByteOnly: v.FirstByteOnly, MaxOutputTokens: v.MaxOutputTokens,
			},
			DeadlineInMS: v.DeadlineAtMS - nowMS, ReceivedAt: time.Now(),
		},
		reserveMS: v.ReserveMS, move: true,
	}
	if to == slackgate.Paid { // where it may cost something
		var err error
		if p.textBytes, err = a.Store.TextBytes(ctx, v.ID); err != nil {
			return false, err
		}
	}
	return a.again(ctx, p)
}

// Rescue offers a claimed job, which its pool can no longer make, to the paid
// pool, with the slack it has left. It reports whether that pool took it: the
// claim is then void.
func (a *Admitter) Rescue(ctx context.Context, c *broker.Claim) (bool, error) {
	// What is left is counted from the claim.
	job := broker.Submission{Spec: c.Spec, DeadlineInMS: c.DeadlineAtMS - c.NowMS, ReceivedAt: c.ClaimedAt}
	job.Prefer = [2]slackgate.Path{slackgate.Paid}
	return a.again(ctx, &pending{job: &job, reserveMS: c.ReserveMS, claim: c})
}

// again offers a job that is on record already.
func (a *Admitter) again(ctx context.Context, p *pending) (bool, error) {
	got, err := a.offer(ctx, []*pending{p}, atOnce)
	if err != nil || got.Jobs[0].Path == slackgate.Reject {
		return false, err
	}
	if got.Jobs[0].Ticket {
		a.putTickets(ctx, got.Jobs[0].Path, 1)
	}
	return true, nil
}
