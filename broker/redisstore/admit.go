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

// Offer is one job offered to the pools, with the numbers that the gate's rule
// gave for it.
type Offer struct {
	Job *broker.Job
	// DeadlineMS is the time left until the deadline.
	DeadlineMS int64
	// SlackMS is the time left until the first byte is due.
	SlackMS int64
	// Miss books a miss on path reject instead of offering the job.
	Miss bool
	// Held is set for a claimed job that needs another pool: if one takes it,
	// it leaves this claim, keeps its deadline and goes into that pool's order.
	Held *broker.Claim
	// Move is set for a waiting job of a pool that is being drained.
	Move bool
	// CostMicro is the most that the job may cost on the paid pool. It is
	// reserved there under the budgets that are set; of each the cap alone is
	// read.
	CostMicro int64
	Budgets   [slackgate.NumBudgets]slackgate.Budget
	// Quota is what the job's producer may submit; of it the limits alone are
	// read.
	Quota slackgate.Quota
	// Bounds are what the pools must satisfy, in the order they are tried.
	Bounds [2]slackgate.Bound
}

// budgeted reports whether any budget binds the job.
func (o *Offer) budgeted() bool {
	for i := range o.Budgets {
		if o.Budgets[i].Set {
			return true
		}
	}
	return false
}

// PoolPolicy is what the script needs to know of a pool beside its own state.
type PoolPolicy struct {
	Limit  int
	Closed bool
	// FirstByteP95MS and Ladder stand in the states that come back; the
	// ladder's rungs are what the script checks. It is nil under the seed rule.
	FirstByteP95MS int64
	Ladder         *slackgate.Ladder
	// Released is GateState.Released of the state the ladder was built from.
	Released int64
	// Refused counts, by producer, submissions to the pool that were refused
	// without asking the store since it was asked last.
	Refused map[string]int64

	rungs, levels string // of Ladder and shares, as the script takes them; see SetLadder
}

// SetShares holds producers to their shares of the ladder's rungs; nil holds
// nobody back.
func (p *PoolPolicy) SetShares(s slackgate.Shares) {
	out := make([]byte, 0, rungDigits*len(s))
	for _, n := range s {
		out = appendNumber(out, n)
	}
	p.levels = string(out)
}

// SetLadder gives the policy a ladder, built from a state with that many
// released, that serves many calls of Admit and is not built anew meanwhile:
// its rungs are written down once.
func (p *PoolPolicy) SetLadder(l *slackgate.Ladder, released int64) {
	p.Ladder, p.Released, p.rungs = l, released, appendRungs(l)
}

// TakeLadder gives the policy the ladder of another.
func (p *PoolPolicy) TakeLadder(from *PoolPolicy) {
	p.Ladder, p.Released, p.rungs, p.levels = from.Ladder, from.Released, from.rungs, from.levels
}

// Admission is what the script did with one offer and the state it saw when it
// did.
type Admission struct {
	Path slackgate.Path
	// Ticket is set when the job needs a ticket: it was admitted while fewer
	// jobs waited than slots were free. What waits beyond that is claimed by
	// the slots that come free.
	Ticket bool
	// Bound is set when the job's idempotency key was bound before: the job
	// itself is not on record then, BoundTo is.
	Bound   KeyState
	BoundTo string
	Pools   [slackgate.NumPaths]slackgate.PoolState
	// Budgets are the offer's, with what was spent and reserved.
	Budgets [slackgate.NumBudgets]slackgate.Budget
	// Quota is the offer's, with how far it was used before.
	Quota slackgate.Quota
}

// KeyState says how an idempotency key that is bound already was met.
type KeyState string

// The states.
const (
	KeySame     KeyState = "same"     // with the same body
	KeyConflict KeyState = "conflict" // with another body
	BatchGone   KeyState = "gone"     // not the key: the line's batch was cancelled
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
func (s *Store) KeyedJob(ctx context.Context, producer string, key broker.IdempotencyKey) (*broker.View, error) {
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

// Admitted is the reply to one call of Admit.
type Admitted struct {
	NowMS int64
	// Stale is set when Redis ran the script after the caller had stopped
	// waiting: nothing was done.
	Stale bool
	// FlagsChanged is set when the flags are no longer those that the numbers
	// were computed from: nothing was done.
	FlagsChanged bool
	Jobs         []Admission
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
func (s *Store) Admit(ctx context.Context, flags *flag.Table, policy [slackgate.NumPaths]PoolPolicy, offers []Offer) (Admitted, error) {
	return s.AdmitInTurn(ctx, flags, policy, offers, func() error { return nil })
}

// AdmitInTurn is Admit that asks turn when everything is ready to be sent. turn
// may wait; an error of it is returned, and nothing was sent.
func (s *Store) AdmitInTurn(ctx context.Context, flags *flag.Table, policy [slackgate.NumPaths]PoolPolicy, offers []Offer, turn func() error) (Admitted, error) {
	args := make([]any, 1, 16+8*len(offers))
	args = append(args, s.books, recordExtra.Milliseconds(), flags.Version, flags.ValidUntilMS(s.NowMS()), len(offers))
	for _, path := range slackgate.Paths {
		p := &policy[path]
		if p.rungs == "" && p.Ladder != nil {
			p.rungs = appendRungs(p.Ladder)
		}
		args = append(args, p.Limit, p.Released, p.rungs, p.levels, len(p.Refused))
		for producer, n := range p.Refused {
			args = append(args, producer, n)
		}
	}
	var terms []byte
	for i := range offers {
		o := &offers[i]
		spec, err := json.Marshal(o.Job)
		if err != nil {
			return Admitted{}, err
		}
		terms, text := appendTerms(terms[:0], o, s.keepMS), ""
		if o.Held == nil && !o.Move { // of a job on record the text is where it was
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
		return Admitted{}, err
	}
	args[0] = int64(0)
	if now := s.NowMS(); now > 0 {
		args[0] = now + s.giveUpAfter().Milliseconds()
	}
	v, err := s.run(ctx, scriptAdmit, args...)
	if err != nil {
		return Admitted{}, err
	}
	r := asReply(v)
	out := Admitted{NowMS: r.int()}
	status := r.string()
	if r.err != nil {
		return Admitted{}, r.err
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
	out.Jobs = make([]Admission, len(offers))
	for i := range out.Jobs {
		a := &out.Jobs[i]
		switch name := r.string(); name {
		case "":
		case "same", "conflict", "gone":
			a.Bound = KeyState(name)
		default:
			if err := a.Path.UnmarshalText([]byte(name)); err != nil {
				return Admitted{}, err
			}
		}
		a.Ticket = r.int() == 1
		a.BoundTo = r.string()
		for _, path := range slackgate.Paths {
			a.Pools[path] = readPool(r, capacity[path], policy[path])
		}
		if a.Budgets = offers[i].Budgets; offers[i].budgeted() {
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

func readPool(r *reply, capacity int, p PoolPolicy) slackgate.PoolState {
	st := slackgate.PoolState{Limit: p.Limit, Closed: p.Closed, Capacity: capacity, FirstByteP95MS: p.FirstByteP95MS}
	st.Waiting, st.Running = int(r.int()), int(r.int())
	st.QueueAgeMS, st.ClassQueueAgeMS = r.int(), r.int()
	st.Ahead = int(r.int())
	st.Break = slackgate.Break{Rung: int(r.int()), Waiting: r.int()}
	if p.levels != "" {
		st.Share = slackgate.Break{Rung: int(r.int()), Waiting: r.int()}
	}
	st.Ladder = p.Ladder
	return st
}

// rungDigits is how many characters a number of a rung takes in the script's
// argument, so that the script can read the few rungs it needs by their place.
const rungDigits = 16

// appendRungs writes down a ladder's rungs: at (-1: no end), max and wait of
// each, padded with blanks.
func appendRungs(l *slackgate.Ladder) string {
	rungs := l.Rungs()
	out := make([]byte, 0, 3*rungDigits*len(rungs))
	number := func(n int64) { out = appendNumber(out, n) }
	for _, r := range rungs {
		if r.WithinMS == slackgate.Unbounded {
			r.WithinMS = -1
		}
		number(r.WithinMS)
		number(r.Max)
		number(r.WaitMS)
	}
	return string(out)
}

// appendNumber writes a number in rungDigits characters.
func appendNumber(out []byte, n int64) []byte {
	const most = 1e15 // a number that a float holds, in rungDigits
	var digits [20]byte
	text := strconv.AppendInt(digits[:0], min(n, most), 10)
	for range rungDigits - len(text) {
		out = append(out, ' ')
	}
	return append(out, text...)
}

// appendTerms writes down what a job is offered under, as the script reads it.
func appendTerms(out []byte, o *Offer, keepMS int64) []byte {
	mode, fence := "new", int64(0)
	switch {
	case o.Held != nil:
		mode, fence = "again", o.Held.Fence
	case o.Move:
		mode = "move"
	case o.Miss:
		mode = "miss"
	}
	out = append(out, mode...)
	number := func(n int64) { out = strconv.AppendInt(append(out, ' '), n, 10) }
	mark := func(set bool) { number(int64(bit(set))) }
	for _, n := range [...]int64{fence, o.DeadlineMS, o.Job.ReserveMS, o.SlackMS, o.DeadlineMS + keepMS} {
		number(n)
	}
	mark(o.Job.Key.Value != "")
	mark(o.Job.Place.Batch != "")
	budgeted := o.budgeted()
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
