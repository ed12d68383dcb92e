package redisstore

import (
	"bytes"
	"cmp"
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

// admitHead is what admit.lua is told of a call, by these names.
type admitHead struct {
	Books        string `json:"books"`
	FlagsVersion int64  `json:"flags_version"`
	// FlagsUntilMS is the instant until which the flags apply; 0: no end.
	FlagsUntilMS int64 `json:"flags_until_ms"`
	// RecordExtraMS is how long a record outlives its job's deadline, KeepMS how
	// long an ended job stays.
	RecordExtraMS int64       `json:"record_extra_ms"`
	KeepMS        int64       `json:"keep_ms"`
	Pools         []admitPool `json:"pools"`
	// Terms are admitTerms. Many jobs of a call have the same.
	Terms []json.RawMessage `json:"terms"`
	Jobs  []admitJob        `json:"jobs"`
}

type admitPool struct {
	Limit int `json:"limit"`
	// Capacity is what the ladder was built for; absent: there is no ladder.
	Capacity *int `json:"capacity,omitempty"`
	// Released is the pool's counter when the ladder was built.
	Released int64 `json:"released"`
	// Refused counts, by producer, what was refused without asking here.
	Refused map[string]int64 `json:"refused,omitempty"`
}

// admitTerms are what a job is offered under.
type admitTerms struct {
	// Mode is miss (book a miss, offer nothing) or again (a job on record, claimed
	// under Fence or waiting); absent: it is new.
	Mode  string `json:"mode,omitempty"`
	Fence string `json:"fence,omitempty"`
	// From is the pool that a job on record is in, Revoke ends one that no pool takes.
	From   string `json:"from,omitempty"`
	Revoke bool   `json:"revoke,omitempty"`
	// DeadlineAtMS is an instant on the store's clock; absent: LeftMS from now.
	// LeftMS is what the numbers of Places were worked out for.
	DeadlineAtMS int64 `json:"deadline_at_ms,omitempty"`
	LeftMS       int64 `json:"left_ms"`
	ReserveMS    int64 `json:"reserve_ms"`
	// Budget and Quota are there where one binds the job.
	Budget *admitBudget `json:"budget,omitempty"`
	Quota  *admitQuota  `json:"quota,omitempty"`
	Places []admitPlace `json:"places"`
}

// admitBudget is the most that a job may cost, and what may be booked already for
// paid to take it; absent: any amount.
type admitBudget struct {
	CostMicro      int64  `json:"cost_micro"`
	MostOfProducer *int64 `json:"most_of_producer,omitempty"`
	MostOfClass    *int64 `json:"most_of_class,omitempty"`
}

// admitQuota is what a producer may submit: the time between two submissions and
// how far ahead of it they may come, and how many unfinished jobs there may be; 0:
// as it likes.
type admitQuota struct {
	IntervalUS  int64 `json:"interval_us"`
	ToleranceUS int64 `json:"tolerance_us"`
	MaxInFlight int64 `json:"max_in_flight"`
}

// admitPlace is one of slackgate's bounds. A maximum that is absent bounds nothing:
// what is not written is not read, and every call has many.
type admitPlace struct {
	Path          string `json:"path"`
	MaxInFlight   *int64 `json:"max_in_flight,omitempty"`
	MaxAgeMS      *int64 `json:"max_age_ms,omitempty"`
	MaxClassAgeMS *int64 `json:"max_class_age_ms,omitempty"`
	NeedMS        int64  `json:"need_ms,omitempty"`
	PlusAge       bool   `json:"plus_age,omitempty"`
	// First is the first rung of the ladder that binds, counted from 1, and
	// FirstMax what that rung allows this job; absent: the ladder does not bind.
	First    int   `json:"first,omitempty"`
	FirstMax int64 `json:"first_max,omitempty"`
}

// bound is a maximum as a place has it.
func bound(n int64) *int64 {
	if n == slackgate.Unbounded {
		return nil
	}
	return &n
}

type admitJob struct {
	ID       string `json:"id"`
	Class    string `json:"class"`
	Producer string `json:"producer"`
	// Terms is the number of its terms, counted from 1.
	Terms int `json:"terms"`
	// Key is where its idempotency key is kept, and Hash that of its body.
	Key  string `json:"key,omitempty"`
	Hash string `json:"hash,omitempty"`
	// Batch, Line and At are its line's batch, name and place.
	Batch string `json:"batch,omitempty"`
	Line  string `json:"line,omitempty"`
	At    int64  `json:"at,omitempty"`
}

// AdmitInTurn offers jobs to the pools, in order, in one atomic step. The caller
// fills in nothing but the numbers of the rule; what comes back is enough to
// repeat the decision with [slackgate.Decide]. It asks turn when everything is
// ready to be sent. turn may wait; an error of it is returned, and nothing was
// sent.
func (s *Store) AdmitInTurn(ctx context.Context, flags *flag.Table, policy [slackgate.NumPaths]broker.PoolPolicy, offers []broker.Offer, turn func() error) (broker.OfferResults, error) {
	if s.NowMS() == 0 {
		if err := s.SyncClock(ctx); err != nil {
			return broker.OfferResults{}, err
		}
	}
	head := admitHead{
		Books: s.books, FlagsVersion: flags.Version, FlagsUntilMS: flags.ValidUntilAtMS(s.NowMS()),
		RecordExtraMS: recordExtra.Milliseconds(), KeepMS: s.keepMS, Terms: []json.RawMessage{}, Jobs: make([]admitJob, len(offers)),
	}
	args := make([]any, 2, 2+2*len(slackgate.Paths)+2*len(offers))
	for _, path := range slackgate.Paths {
		p := &policy[path]
		if p.Rungs == "" && p.Ladder != nil {
			p.Rungs = string(p.Ladder.AppendRungs(nil))
		}
		pool := admitPool{Limit: p.Limit, Released: p.Released, Refused: p.Refused}
		if p.Ladder != nil {
			pool.Capacity = new(p.Ladder.Capacity())
		}
		head.Pools = append(head.Pools, pool)
		args = append(args, p.Rungs, p.Levels)
	}
	due := make([]int64, len(offers))
	for i := range offers {
		o := &offers[i]
		if !o.At.IsZero() {
			due[i] = s.atMS(o.At) + o.LeftMS
		}
		terms, err := json.Marshal(termsOf(o, due[i]))
		if err != nil {
			return broker.OfferResults{}, err
		}
		if n := len(head.Terms); n == 0 || !bytes.Equal(terms, head.Terms[n-1]) {
			head.Terms = append(head.Terms, terms)
		}
		head.Jobs[i] = admitJob{ID: o.Job.ID, Class: o.Job.Class, Producer: o.Job.Producer, Terms: len(head.Terms)}
		if j := &head.Jobs[i]; o.Job.Key.Value != "" {
			j.Key, j.Hash = storedKey(o.Job.Producer, o.Job.Key), o.Job.Key.BodyHash
		}
		if j, place := &head.Jobs[i], &o.Job.Place; place.Batch != "" {
			j.Batch, j.Line, j.At = place.Batch, place.Line, place.At
		}
		spec, err := json.Marshal(&o.Job.Spec)
		if err != nil {
			return broker.OfferResults{}, err
		}
		text := ""
		if o.Again == nil { // of a job on record the text is where it was
			text = storedText(o.Job)
		}
		args = append(args, spec, text)
	}
	var err error
	if args[1], err = json.Marshal(&head); err != nil {
		return broker.OfferResults{}, err
	}
	if err := turn(); err != nil {
		return broker.OfferResults{}, err
	}
	sent := time.Now()
	args[0] = s.atMS(sent) + s.giveUpAfter().Milliseconds()
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
	s.saw(sent, out.NowMS)
	if status != "ok" {
		out.Stale, out.FlagsChanged, out.WorkersChanged = status == "stale", status == "flags", status == "workers"
		return out, nil
	}
	var capacity [slackgate.NumPaths]int
	for _, path := range slackgate.Paths {
		capacity[path] = int(r.int())
	}
	out.Jobs = make([]broker.OfferResult, len(offers))
	for i := range out.Jobs {
		a := &out.Jobs[i]
		a.DeadlineAtMS = cmp.Or(due[i], out.NowMS+offers[i].LeftMS)
		switch name := r.string(); name {
		case "":
		case "same", "conflict", "gone", "late":
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
	out.Revoked = r.jobs()
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

func termsOf(o *broker.Offer, deadlineAtMS int64) admitTerms {
	t := admitTerms{DeadlineAtMS: deadlineAtMS, LeftMS: o.LeftMS, ReserveMS: o.ReserveMS, Places: make([]admitPlace, 0, len(o.Bounds))}
	switch {
	case o.Again != nil:
		t.Mode, t.From, t.Revoke = "again", o.Again.From.String(), o.Again.Revoke
		if o.Again.Fence != 0 {
			t.Fence = strconv.FormatInt(o.Again.Fence, 10)
		}
	case o.Miss:
		t.Mode = "miss"
	}
	if o.Budgeted() {
		most := func(b *slackgate.Budget) *int64 {
			if !b.Set {
				return nil
			}
			return new(b.MaxBooked(o.CostMicro))
		}
		t.Budget = &admitBudget{
			CostMicro:      min(max(o.CostMicro, 0), slackgate.MaxBudgetMicro+1),
			MostOfProducer: most(&o.Budgets[slackgate.ProducerBudget]), MostOfClass: most(&o.Budgets[slackgate.ClassBudget]),
		}
	}
	if q := &o.Quota; q.Limited() {
		t.Quota = &admitQuota{q.IntervalUS, q.ToleranceUS, q.MaxInFlight}
	}
	for i := range o.Bounds {
		b := &o.Bounds[i]
		if b.Path == slackgate.Reject {
			continue
		}
		place := admitPlace{
			Path: b.Path.String(), MaxInFlight: bound(b.MaxInFlight), MaxAgeMS: bound(b.MaxQueueAgeMS),
			MaxClassAgeMS: bound(b.MaxClassQueueAgeMS), NeedMS: b.NeedMS, PlusAge: b.NeedAddsAge,
		}
		if b.Laddered {
			place.First, place.FirstMax = b.First+1, b.FirstMax
		}
		t.Places = append(t.Places, place)
	}
	return t
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
