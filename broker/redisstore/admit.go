package redisstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/broker/flag"
	"leeway/slackgate"
)

// storedKey is where an idempotency key is kept: each producer has its own.
func storedKey(producer string, key broker.IdempotencyKey) string {
	if key.Value == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(producer + "\x00" + key.Value))
	return hex.EncodeToString(sum[:16])
}

// KeyedJob is the job that a producer's idempotency key is bound to under the
// same body; ErrNotFound: there is none.
func (s *Store) KeyedJob(ctx context.Context, producer string, key broker.IdempotencyKey) (*broker.Job, error) {
	if key.Value == "" {
		return nil, broker.ErrNotFound
	}
	asking, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	bound, err := s.rdb.Get(asking, s.key("idem", storedKey(producer, key))).Result()
	if errors.Is(err, redis.Nil) {
		return nil, broker.ErrNotFound
	}
	if err != nil {
		return nil, unavailable(err)
	}
	hash, id, _ := strings.Cut(bound, "|")
	if hash != key.BodyHash {
		return nil, broker.ErrNotFound
	}
	return s.Get(ctx, id)
}

// giveUpAfter is when the script is to believe that the caller has gone: a
// little ahead of the caller's own idea.
func (s *Store) giveUpAfter() time.Duration { return s.timeout - min(10*time.Millisecond, s.timeout/4) }

// recordExtra is how long a record outlives its job's deadline when nobody
// ends it; the sweep ends it long before.
const recordExtra = time.Hour

// Admit offers jobs to the pools, in order, in one atomic step. The caller
// fills in nothing but the numbers of the rule; what comes back is enough to
// repeat the decision with [slackgate.Decide].
func (s *Store) Admit(ctx context.Context, flags *flag.Table, policy [slackgate.NumPaths]broker.PoolPolicy, offers []broker.Offer) (broker.OfferResults, error) {
	return s.AdmitInTurn(ctx, flags, policy, offers, func() error { return nil })
}

// AdmitInTurn is Admit that asks turn when everything is ready to be sent. turn
// may wait; an error of it is returned, and nothing was sent.
func (s *Store) AdmitInTurn(ctx context.Context, flags *flag.Table, policy [slackgate.NumPaths]broker.PoolPolicy, offers []broker.Offer, turn func() error) (broker.OfferResults, error) {
	args := make([]any, 1, 16+8*len(offers))
	args = append(args, s.books, recordExtra.Milliseconds(), flags.Version, flags.ValidUntilAtMS(s.NowMS()), len(offers))
	for _, path := range slackgate.Paths {
		p := &policy[path]
		if p.Rungs == "" && p.Ladder != nil {
			p.Rungs = string(p.Ladder.AppendRungs(nil))
		}
		args = append(args, p.Limit, p.Released, p.Rungs, p.Levels, len(p.Refused))
		for producer, n := range p.Refused {
			args = append(args, producer, n)
		}
	}
	var terms []byte
	for i := range offers {
		o := &offers[i]
		spec, err := json.Marshal(&o.Job.Spec)
		if err != nil {
			return broker.OfferResults{}, err
		}
		terms, text := appendTerms(terms[:0], o, s.keepMS), ""
		if o.Claim == nil && !o.Move { // of a job on record the text is where it was
			text = storedText(o.Job)
		}
		args = append(args, o.Job.ID, o.Job.Class, o.Job.Producer, string(terms), spec, text)
		if o.Job.Key.Value != "" {
			args = append(args, storedKey(o.Job.Producer, o.Job.Key), o.Job.Key.BodyHash)
		}
		if o.Job.Place.Batch != "" {
			args = append(args, o.Job.Place.Batch, o.Job.Place.Line, o.Job.Place.At)
		}
	}
	if err := turn(); err != nil {
		return broker.OfferResults{}, err
	}
	args[0] = int64(0)
	if now := s.NowMS(); now > 0 {
		args[0] = now + s.giveUpAfter().Milliseconds()
	}
	v, err := s.run(ctx, scriptAdmit, args...)
	if err != nil {
		return broker.OfferResults{}, err
	}
	r := asReply(v)
	out := broker.OfferResults{NowMS: r.int()}
	status := r.string()
	if r.err != nil {
		return broker.OfferResults{}, r.err
	}
	s.saw(out.NowMS)
	if status != "ok" {
		out.Stale, out.FlagsChanged = status == "stale", status == "flags"
		return out, nil
	}
	var capacity [slackgate.NumPaths]int
	for _, path := range slackgate.Paths {
		capacity[path] = int(r.int())
	}
	out.Jobs = make([]broker.OfferResult, len(offers))
	for i := range out.Jobs {
		a := &out.Jobs[i]
		switch name := r.string(); name {
		case "":
		case "same", "conflict", "gone":
			a.Bound = broker.KeyState(name)
		default:
			if err := a.Path.UnmarshalText([]byte(name)); err != nil {
				return broker.OfferResults{}, err
			}
		}
		a.Ticket = r.int() == 1
		a.BoundTo = r.string()
		for _, path := range slackgate.Paths {
			a.Pools[path] = readPool(r, capacity[path], policy[path])
		}
		if a.Budgets = offers[i].Budgets; offers[i].Budgeted() {
			for b := range a.Budgets {
				a.Budgets[b].SpentMicro, a.Budgets[b].ReservedMicro = r.int(), r.int()
			}
		}
		if a.Quota = offers[i].Quota; a.Quota.Limited() {
			a.Quota.AheadUS, a.Quota.InFlight = r.int(), r.int()
		}
	}
	return out, r.err
}

func readPool(r *reply, capacity int, p broker.PoolPolicy) slackgate.PoolState {
	st := slackgate.PoolState{Limit: p.Limit, Closed: p.Closed, Capacity: capacity, FirstByteP95MS: p.FirstByteP95MS}
	st.Waiting, st.Running = int(r.int()), int(r.int())
	st.QueueAgeMS, st.ClassQueueAgeMS = r.int(), r.int()
	st.Ahead = int(r.int())
	st.Break = slackgate.Break{Rung: int(r.int()), Waiting: r.int()}
	if p.Levels != "" {
		st.Share = slackgate.Break{Rung: int(r.int()), Waiting: r.int()}
	}
	st.Ladder = p.Ladder
	return st
}

// appendTerms writes down what a job is offered under, as the script reads it.
func appendTerms(out []byte, o *broker.Offer, keepMS int64) []byte {
	mode, fence := "new", int64(0)
	switch {
	case o.Claim != nil:
		mode, fence = "again", o.Claim.Fence
	case o.Move:
		mode = "move"
	case o.Miss:
		mode = "miss"
	}
	out = append(out, mode...)
	number := func(n int64) { out = strconv.AppendInt(append(out, ' '), n, 10) }
	mark := func(set bool) { number(int64(bit(set))) }
	for _, n := range [...]int64{fence, o.LeftMS, o.ReserveMS, o.SlackMS(), o.LeftMS + keepMS} {
		number(n)
	}
	mark(o.Job.Key.Value != "")
	mark(o.Job.Place.Batch != "")
	budgeted := o.Budgeted()
	if mark(budgeted); budgeted {
		number(min(max(o.CostMicro, 0), slackgate.MaxBudgetMicro+1))
		for i := range o.Budgets {
			if b := &o.Budgets[i]; b.Set {
				number(b.MaxBooked(o.CostMicro))
			} else {
				out = append(out, " -"...)
			}
		}
	}
	q := &o.Quota
	if mark(q.Limited()); q.Limited() {
		number(q.IntervalUS)
		number(q.ToleranceUS)
		number(q.MaxInFlight)
	}
	for i := range o.Bounds {
		b := &o.Bounds[i]
		path := "-"
		if b.Path != slackgate.Reject {
			path = b.Path.String()
		}
		out = append(append(out, ' '), path...)
		for _, n := range [...]int64{b.MaxInFlight, b.MaxQueueAgeMS, b.MaxClassQueueAgeMS, b.NeedMS} {
			number(n)
		}
		mark(b.NeedAddsAge)
		mark(b.Laddered)
		number(int64(b.First + 1))
		number(b.FirstMax)
	}
	return out
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
