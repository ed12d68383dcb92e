package admission

import (
	"context"
	"slices"
	"time"

	"leeway/broker"
	"leeway/broker/joblog"
	"leeway/slackgate"
)

// mostAgain bounds the jobs on record that are offered again in one step, in which
// nobody else is served.
const mostAgain = 50

// Reoffer offers waiting jobs of a pool to the class's other pool, with the slack
// they have left: the pool is being drained, or with lost it has no capacity. It
// reports how many have left the pool: what the other one took, and with lost also
// what ended as revoked because it cannot be kept there even if the pool comes back
// soon. The rest stays where it is.
func (a *Admitter) Reoffer(ctx context.Context, from slackgate.Path, jobs []*broker.Job, lost bool) (moved, revoked int, err error) {
	for some := range slices.Chunk(jobs, mostAgain) {
		batch, err := a.pendingAgain(ctx, from, some, lost)
		if err != nil {
			return moved, revoked, err
		}
		m, r, err := a.again(ctx, batch)
		if moved, revoked = moved+m, revoked+r; err != nil {
			return moved, revoked, err
		}
	}
	return moved, revoked, nil
}

// pendingAgain makes ready to offer those of the waiting jobs for which it may
// change something.
func (a *Admitter) pendingAgain(ctx context.Context, from slackgate.Path, jobs []*broker.Job, lost bool) (batch []*pending, err error) {
	budgeted := a.Settings().Budgets != nil
	for _, v := range jobs {
		prefer := otherThan(from, v.Prefer)
		if prefer[0] == slackgate.Reject && !lost {
			continue
		}
		p := &pending{
			job: &broker.Submission{
				Spec: broker.Spec{
					ID: v.ID, Class: v.Class, Producer: v.Producer, Prefer: prefer,
					FirstByteOnly: v.FirstByteOnly, MaxOutputTokens: v.MaxOutputTokens,
				},
				DeadlineInMS: v.DeadlineAtMS - a.Store.NowMS(), ReceivedAt: time.Now(),
			},
			reserveMS: v.ReserveMS, again: &broker.Again{From: from}, lost: lost,
		}
		if prefer[0] == slackgate.Paid && budgeted { // where it may cost something
			if p.textBytes, err = a.Store.TextBytes(ctx, v.ID); err != nil {
				return nil, err
			}
		}
		batch = append(batch, p)
	}
	return batch, nil
}

// ReofferClaimed offers a claimed job, which its pool can no longer make, to the
// class's other pool, with the slack it has left. It reports whether that pool
// took it: the claim is then void.
func (a *Admitter) ReofferClaimed(ctx context.Context, c *broker.Claim) (bool, error) {
	// What is left is counted from the claim.
	job := broker.Submission{Spec: c.Spec, DeadlineInMS: c.DeadlineAtMS - c.NowMS, ReceivedAt: c.ClaimedAt}
	if job.Prefer = otherThan(c.Path, c.Prefer); job.Prefer[0] == slackgate.Reject {
		return false, nil
	}
	moved, _, err := a.again(ctx, []*pending{{
		job: &job, reserveMS: c.ReserveMS, again: &broker.Again{From: c.Path, Fence: c.Fence}, textBytes: int64(len(c.Text) + len(c.Instruction)),
	}})
	return moved == 1, err
}

// otherThan is what a class prefers, without the pool that a job is in.
func otherThan(path slackgate.Path, prefer [2]slackgate.Path) (out [2]slackgate.Path) {
	if other := path.Other(); prefer[0] == other || prefer[1] == other {
		out[0] = other
	}
	return out
}

// again offers jobs that are on record already. It is the one way from pool to
// pool.
func (a *Admitter) again(ctx context.Context, batch []*pending) (moved, revoked int, err error) {
	if len(batch) == 0 {
		return 0, 0, nil
	}
	got, err := a.offer(ctx, batch, atOnce)
	if err != nil {
		return 0, 0, err
	}
	var tickets [slackgate.NumPaths]int64
	for i := range got.Jobs {
		r := &got.Jobs[i]
		if r.Path != slackgate.Reject {
			moved++
		}
		if r.Ticket {
			tickets[r.Path]++
		}
	}
	for _, path := range slackgate.Paths {
		if tickets[path] > 0 {
			a.putTickets(ctx, path, tickets[path])
		}
	}
	for _, j := range got.Revoked {
		joblog.Ended(ctx, a.Log, j)
	}
	return moved, len(got.Revoked), nil
}
