package shard

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"leeway/broker"
	"leeway/broker/admission"
	"leeway/slackgate"
)

// Home says where the jobs of a producer and a class must go, because something
// is counted of them that only one shard can count: a budget, or what the producer
// may submit. ok is false for those that may go anywhere. Those with one name
// have one home; the empty name is the first shard's. With [broker.AnyClass] it is
// asked for an idempotency key, which may come again with another class, and with
// an empty class for a batch, whose lines may be of any class and producer.
type Home func(producer, class string) (name string, ok bool)

// Admitter takes submissions to the gates of the shards.
//
// A line of a batch goes to its batch. A job with an idempotency key goes where
// producer and key alone lead, so that no body leads them elsewhere. One with a home
// goes there. Any other goes to the better of two shards picked at random, by what
// this process last saw of them; what that one refuses is refused.
type Admitter struct {
	gates []*admission.Admitter
	home  Home
	sent  []sent // by shard
}

// sent counts what this process has sent to a shard since it saw the shard's
// state last: until it sees it again, that is all it knows of it.
type sent struct {
	seen  atomic.Int64 // admission.Load.Seen
	count atomic.Int64
}

// NewAdmitter returns an admitter over the gates of all shards, in their order.
func NewAdmitter(home Home, gates ...*admission.Admitter) *Admitter {
	return &Admitter{gates: gates, home: home, sent: make([]sent, len(gates))}
}

// homeOf is the shard that a home's name leads to.
func (a *Admitter) homeOf(name string) int {
	if name == "" {
		return 0
	}
	return hash("producer\x00"+name, len(a.gates))
}

// Place chooses the shard of a job that has none yet: from then on the job's id
// names it. It is called with everything set that says where the job belongs:
// producer, class, key and place in a batch. A line of a batch that has its home
// in another shard is bad input: nothing of it could be counted there.
func (a *Admitter) Place(job *broker.Submission) error {
	n := len(a.gates)
	if n == 1 || marked(job.ID) {
		return nil
	}
	batch, class := job.Place.Batch, job.Class
	if batch == "" && job.Key.Value != "" {
		class = broker.AnyClass
	}
	name, ok := a.home(job.Producer, class)
	if batch != "" {
		at := Of(batch, n)
		job.ID = Mark(job.ID, at, n)
		if ok && at != a.homeOf(name) {
			return broker.Fieldf("producer", "has limits that are kept in another shard than this batch: send its lines in a batch under its own key, or one by one")
		}
		return nil
	}
	var at int
	switch {
	case ok:
		at = a.homeOf(name)
	case job.Key.Value != "":
		at = hash("key\x00"+job.Producer+"\x00"+job.Key.Value, n)
	default:
		at = a.better(job)
	}
	job.ID = Mark(job.ID, at, n)
	return nil
}

// PlaceBatch names the shard of a new batch in its id. key is what makes a
// repeated submission the same batch; empty: nothing does.
func (a *Admitter) PlaceBatch(id, producer, key string) string {
	n := len(a.gates)
	if n == 1 {
		return id
	}
	name, ok := a.home(producer, "")
	switch {
	case ok:
		return Mark(id, a.homeOf(name), n)
	case key != "":
		return Mark(id, hash("batch\x00"+id, n), n)
	}
	return Mark(id, a.better(&broker.Submission{Spec: broker.Spec{Prefer: slackgate.Paths}}), n)
}

// better is the better of two shards picked at random.
func (a *Admitter) better(job *broker.Submission) int {
	n := len(a.gates)
	i := rand.IntN(n)
	j := rand.IntN(n - 1)
	if j >= i {
		j++
	}
	if compare(job.Prefer, a.look(i), a.look(j)) > 0 {
		i = j
	}
	a.sent[i].count.Add(1)
	return i
}

// look is what a process knows of a shard.
type look struct {
	admission.Load

	sent int64 // since it was read
}

func (a *Admitter) look(i int) look {
	l := look{Load: a.gates[i].Load()}
	s := &a.sent[i]
	if was := s.seen.Load(); was != l.Seen && s.seen.CompareAndSwap(was, l.Seen) {
		s.count.Store(0)
	}
	l.sent = s.count.Load()
	return l
}

// compare is negative where a job that prefers these pools fares better in x,
// positive where in y. A shard that this process has not seen lately is the worse
// one. While the pool that the job prefers has a free slot in either, that pool is
// compared; else what the pools that it may use have before them together. The
// older queue decides between equals.
func compare(prefer [2]slackgate.Path, x, y look) int {
	if x.Known != y.Known {
		if x.Known {
			return -1
		}
		return 1
	}
	jobsX, jobsY := x.sent, y.sent
	var slotsX, slotsY, ageX, ageY int64
	for _, path := range prefer {
		if path == slackgate.Reject {
			continue
		}
		p, q := &x.Pools[path], &y.Pools[path]
		jobsX, slotsX, ageX = jobsX+int64(p.InFlight()), slotsX+int64(p.Capacity), max(ageX, p.QueueAgeMS)
		jobsY, slotsY, ageY = jobsY+int64(q.InFlight()), slotsY+int64(q.Capacity), max(ageY, q.QueueAgeMS)
		if jobsX < slotsX || jobsY < slotsY {
			break
		}
	}
	if (slotsX == 0) != (slotsY == 0) { // no worker at all in one of them
		return cmp.Compare(slotsY, slotsX)
	}
	return cmp.Or(cmp.Compare(jobsX*slotsY, jobsY*slotsX), cmp.Compare(ageX, ageY))
}

func (a *Admitter) gateOf(id string) *admission.Admitter { return a.gates[Of(id, len(a.gates))] }

// Submit offers a job to the gate of its shard; see [admission.Admitter.Submit].
func (a *Admitter) Submit(ctx context.Context, job *broker.Submission) (broker.Verdict, error) {
	return a.Offer(ctx, job).Wait(ctx)
}

// Offer queues a job for the gate of its shard; see [admission.Admitter.Offer].
func (a *Admitter) Offer(ctx context.Context, job *broker.Submission) admission.Offered {
	_ = a.Place(job) // only a line of a batch can be wrong, and is placed before
	return a.gateOf(job.ID).Offer(ctx, job)
}

// Charge has what is no job count in a producer's rate, in the shard that counts
// it; see [admission.Admitter.Charge].
func (a *Admitter) Charge(ctx context.Context, producer string) admission.Offered {
	name, _ := a.home(producer, "")
	return a.gates[a.homeOf(name)].Charge(ctx, producer)
}

// ReofferClaimed offers a claimed job to the other pool of its shard; see
// [admission.Admitter.ReofferClaimed].
func (a *Admitter) ReofferClaimed(ctx context.Context, c *broker.Claim) (bool, error) {
	return a.gateOf(c.ID).ReofferClaimed(ctx, c)
}

// Known is the verdict of the job that a producer's key is bound to; see
// [admission.Admitter.Known]. Every shard is asked: it is rare, and limits may have
// been given since that lead the key elsewhere.
func (a *Admitter) Known(ctx context.Context, producer string, key broker.IdempotencyKey) (broker.Verdict, error) {
	verdicts, errs := make([]broker.Verdict, len(a.gates)), make([]error, len(a.gates))
	var wg sync.WaitGroup
	for i, gate := range a.gates {
		wg.Go(func() { verdicts[i], errs[i] = gate.Known(ctx, producer, key) })
	}
	wg.Wait()
	for i, err := range errs {
		if err == nil {
			return verdicts[i], nil
		}
	}
	return broker.Verdict{}, errors.Join(errs...)
}

// DryRun says what the gates would answer to a job now, with the state of all
// shards: the verdict is that of the shard where the job fares best. Where a shard
// cannot decide there is an error and no state; the verdict is then that of the
// others, if there are any.
func (a *Admitter) DryRun(ctx context.Context, job *broker.Submission) (broker.Verdict, *broker.GateState, error) {
	n := len(a.gates)
	if n == 1 {
		return a.gates[0].DryRun(ctx, job)
	}
	type answer struct {
		verdict broker.Verdict
		state   *broker.GateState
		err     error
	}
	all := make([]answer, n)
	var wg sync.WaitGroup
	for i, gate := range a.gates {
		wg.Go(func() {
			own := *job
			own.ID = Mark(job.ID, i, n)
			all[i].verdict, all[i].state, all[i].err = gate.DryRun(ctx, &own)
		})
	}
	wg.Wait()
	states, errs := make([]*broker.GateState, n), make([]error, n)
	best := 0
	for i := range all {
		states[i], errs[i] = all[i].state, all[i].err
		if fares(&all[i].verdict, job.Prefer) < fares(&all[best].verdict, job.Prefer) {
			best = i
		}
	}
	if err := errors.Join(errs...); err != nil {
		return all[best].verdict, nil, err
	}
	return all[best].verdict, together(states), nil
}

// fares orders verdicts, the best first: by the place of the pool in the job's
// order, then refusals, then gates that cannot say.
func fares(v *broker.Verdict, prefer [2]slackgate.Path) int {
	switch {
	case v.Admitted():
		return slices.Index(prefer[:], v.Path)
	case !v.Reason.Unavailable():
		return len(prefer)
	case v.Reason == slackgate.ReasonPoolDown:
		return len(prefer) + 1
	}
	return len(prefer) + 2
}
