package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/slackgate"
)

// Worker names one worker process and what it offers to a pool.
type Worker struct {
	ID    string
	Path  slackgate.Path
	Slots int
}

func (w Worker) member() string { return w.ID + "|" + strconv.Itoa(w.Slots) }

// Beat shows that a worker lives; it is forgotten after ttl. The instant is
// the store's own.
func (s *Store) Beat(ctx context.Context, w Worker, ttl time.Duration) error {
	_, err := s.run(ctx, scriptBeat, w.Path.String(), w.member(), ttl.Milliseconds())
	return err
}

// Leave forgets a worker at once.
func (s *Store) Leave(ctx context.Context, w Worker) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.rdb.ZRem(ctx, s.key("workers", w.Path.String()), w.member()).Err(); err != nil {
		return unavailable(err)
	}
	return nil
}

// Met is what a claim met beside the job that it took.
type Met struct {
	// Full is set when every slot of the pool is taken.
	Full bool
	// Ended are jobs without a text, which were failed; Lost those without a
	// record, which were set aside.
	Ended []string
	Lost  []broker.Lost
}

// Claim takes the most urgent waiting job of a pool under a lease, which ends
// soon after the job's deadline at the latest. It returns nil when nothing
// waits or every slot of the pool is taken; what it met tells the two apart.
func (s *Store) Claim(ctx context.Context, path slackgate.Path, limit int, lease time.Duration) (c *broker.Claim, met Met, err error) {
	// Counted from here: a slow store shortens the time a job has, and never
	// lengthens it.
	sent := time.Now()
	v, err := s.run(ctx, scriptClaim, path.String(), limit, lease.Milliseconds(), s.keepMS, s.books, s.closeByMS())
	if err != nil {
		return nil, met, err
	}
	r := asReply(v)
	now, what := r.int(), r.string()
	met = Met{Full: what == "full", Ended: r.texts()}
	for gone := range r.groups(2) {
		met.Lost = append(met.Lost, broker.Lost{Path: path, Class: gone[0], ID: gone[1]})
	}
	if r.err != nil {
		return nil, met, r.err
	}
	s.saw(now)
	if what != "job" {
		return nil, met, nil
	}
	c = &broker.Claim{Path: path, NowMS: now, ClaimedAt: sent}
	id := r.string()
	c.Fence, c.Offers, c.Attempts = r.int(), int(r.int()), int(r.int())
	c.AcceptedMS, c.DeadlineAtMS = r.int(), r.int()
	// A clock that stepped back behind the admission gives no job more time
	// than it came with.
	c.NowMS = max(now, c.AcceptedMS)
	spec, admission, text := r.string(), r.string(), r.string()
	c.FlagsVersion = r.int()
	if r.err != nil {
		return nil, met, r.err
	}
	if err := errors.Join(
		json.Unmarshal([]byte(spec), &c.Job),
		json.Unmarshal([]byte(admission), &c.Admission),
	); err != nil {
		// The job is claimed and cannot be read: the caller fails it.
		c.Job = broker.Job{ID: id}
		return c, met, fmt.Errorf("job %s: record: %w", id, err)
	}
	c.ID = id
	c.Text, c.Instruction = readText(text)
	return c, met, nil
}

// Lease is the answer to a renewal.
type Lease int64

// The answers.
const (
	LeaseLost      Lease = 0
	LeaseHeld      Lease = 1
	LeaseCancelled Lease = 2
)

// Renew prolongs a claim's lease, as far as Claim would.
func (s *Store) Renew(ctx context.Context, c *broker.Claim, lease time.Duration) (Lease, error) {
	v, err := s.run(ctx, scriptRenew, c.Path.String(), c.ID, c.Fence, lease.Milliseconds(), s.closeByMS())
	if err != nil {
		return LeaseHeld, err
	}
	n, _ := v.(int64)
	return Lease(n), nil
}

// openRow is a spend row as it waits for its settlement. The extra numbers let
// a script settle it at its largest when nobody else can.
type openRow struct {
	broker.SpendRow
	MaxInputTokens  int64 `json:"max_input_tokens"`
	MaxOutputTokens int64 `json:"max_output_tokens"`
}

// OpenSpend writes the row of an attempt before its backend is called.
// ErrFenced: the job is no longer this claim's and no backend may be called.
func (s *Store) OpenSpend(ctx context.Context, c *broker.Claim, row *broker.SpendRow, priced bool, maxIn, maxOut int64) error {
	row.DueMS = c.DeadlineAtMS
	return s.openSpend(ctx, row, strconv.FormatInt(c.Fence, 10), priced, maxIn, maxOut)
}

func (s *Store) openSpend(ctx context.Context, row *broker.SpendRow, fence string, priced bool, maxIn, maxOut int64) error {
	row.OpenedAtMS, row.Priced = s.NowMS(), priced
	raw, err := json.Marshal(openRow{SpendRow: *row, MaxInputTokens: maxIn, MaxOutputTokens: maxOut})
	if err != nil {
		return err
	}
	v, err := s.run(ctx, scriptOpen, row.JobID, fence, row.Attempt, raw, row.DueMS, row.MaxCostMicro)
	if err != nil {
		return err
	}
	if n, _ := v.(int64); n != 1 {
		return broker.ErrFenced
	}
	return nil
}

// Settlement is a settled row and whether its tokens cost money.
type Settlement struct {
	broker.SpendRow
	Priced bool
}

func (s *Store) appendSettlement(args []any, row *Settlement) ([]any, error) {
	row.SettledAtMS, row.DueMS, row.SpendRow.Priced = s.NowMS(), 0, row.Priced
	raw, err := json.Marshal(row.SpendRow)
	if err != nil {
		return nil, err
	}
	return append(args, spendKey(row.JobID, row.Attempt), raw, row.Path.String(), bit(row.Priced),
		row.InputTokens, row.OutputTokens, row.CostMicro, row.Currency, string(row.Known),
		row.Class, row.Producer, row.Backend, bit(row.CostDiffers()), row.MaxCostMicro), nil
}

func spendKey(job string, attempt int) string { return job + "/" + strconv.Itoa(attempt) }

// Settle books attempts that have ended. A row that is not open any more is
// left as it stands, so a settlement may be repeated.
func (s *Store) Settle(ctx context.Context, rows ...Settlement) error {
	args := []any{s.books}
	for i := range rows {
		var err error
		if args, err = s.appendSettlement(args, &rows[i]); err != nil {
			return err
		}
	}
	_, err := s.run(ctx, scriptSettle, args...)
	return err
}

// Details are the parts of an end that only readers of the record want.
type Details struct {
	FirstRoute      string `json:"first_route,omitempty"`
	FirstOutcome    string `json:"first_outcome,omitempty"`
	FallbackOutcome string `json:"fallback_outcome,omitempty"`

	FinishReason string        `json:"finish_reason,omitempty"`
	Usage        *broker.Usage `json:"usage,omitempty"`
}

// Finish commits a claim's outcome, its answer, its ledger rows and the
// release of its promise in one step. Repeating it is harmless. It returns the
// outcome on record, which is cancelled when a cancel came in time.
// ErrFenced: another holder has the job; only the settlements were booked.
func (s *Store) Finish(ctx context.Context, c *broker.Claim, f *broker.Finish, rows ...Settlement) (broker.Outcome, error) {
	details, err := json.Marshal(Details{f.FirstRoute, f.FirstOutcome, f.FallbackOutcome, f.FinishReason, f.Usage})
	if err != nil {
		return "", err
	}
	args := []any{c.ID, c.Fence, string(f.Outcome), string(f.Cause), f.Reason, f.Backend, f.FirstByteMS,
		details, f.Answer, s.keepMS, s.books}
	for i := range rows {
		if args, err = s.appendSettlement(args, &rows[i]); err != nil {
			return "", err
		}
	}
	v, err := s.run(ctx, scriptFinish, args...)
	if err != nil {
		return "", err
	}
	r := asReply(v)
	if r.int() != 0 {
		return broker.Outcome(r.string()), r.err
	}
	if r.err != nil {
		return "", r.err
	}
	return "", broker.ErrFenced
}

// Handback returns a claimed job to its old place in the order and books what
// its attempts cost, in one step; one that its producer took back meanwhile
// ends as cancelled, and then ended is set. ErrFenced: another holder has the
// job; only the settlements were booked.
func (s *Store) Handback(ctx context.Context, c *broker.Claim, rows ...Settlement) (ended bool, err error) {
	args := []any{c.Path.String(), c.ID, c.Fence, s.keepMS, s.books}
	for i := range rows {
		if args, err = s.appendSettlement(args, &rows[i]); err != nil {
			return false, err
		}
	}
	v, err := s.run(ctx, scriptHandback, args...)
	if err != nil {
		return false, err
	}
	n, _ := v.(int64)
	if n == 0 {
		return false, broker.ErrFenced
	}
	return n == 2, nil
}

// Cancelled says what a cancel met.
type Cancelled string

// What a cancel can meet.
const (
	CancelMissing Cancelled = "missing"
	CancelDone    Cancelled = "done"      // it had ended
	CancelLate    Cancelled = "late"      // its deadline had passed: nothing changes
	CancelWaiting Cancelled = "cancelled" // it was waiting and is cancelled
	CancelRunning Cancelled = "running"   // its worker will cut it
)

// Cancel takes a job back for its producer.
func (s *Store) Cancel(ctx context.Context, id string) (Cancelled, error) {
	got, err := s.CancelAll(ctx, id)
	if err != nil {
		return "", err
	}
	return got[0], nil
}

// CancelUnknownError is what a cancel returns whose reply was lost: it may have
// been done. The jobs that it ended have Call as their [broker.View].CancelledBy.
type CancelUnknownError struct {
	Call string
	Err  error
}

func (e *CancelUnknownError) Error() string { return e.Err.Error() }

// Unwrap gives what the store or the network said.
func (e *CancelUnknownError) Unwrap() error { return e.Err }

// CancelAll takes jobs back in one step, so they should be few: what came of
// each stands in their order. The error is a [CancelUnknownError] where they may
// have been taken back all the same.
func (s *Store) CancelAll(ctx context.Context, ids ...string) ([]Cancelled, error) {
	call := uuid.NewString()
	args := []any{s.keepMS, s.books, call}
	for _, id := range ids {
		args = append(args, id)
	}
	v, err := s.run(ctx, scriptCancel, args...)
	if err != nil {
		if !broker.TroubleOf(err).NothingDone() {
			err = &CancelUnknownError{Call: call, Err: err}
		}
		return nil, err
	}
	r := asReply(v)
	out := make([]Cancelled, 0, len(ids))
	for range ids {
		out = append(out, Cancelled(r.string()))
	}
	return out, r.err
}

// Purge deletes a job's text and answer; its record and ledger rows stay.
func (s *Store) Purge(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.rdb.Unlink(ctx, s.key("text", id), s.key("answer", id)).Err(); err != nil {
		return unavailable(err)
	}
	return nil
}

// TextBytes is how long the text of an unfinished job is as it is kept, with
// its instruction; 0 when it is gone.
func (s *Store) TextBytes(ctx context.Context, id string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	n, err := s.rdb.StrLen(ctx, s.key("text", id)).Result()
	if err != nil {
		return 0, unavailable(err)
	}
	return n, nil
}

// Get reads a job.
func (s *Store) Get(ctx context.Context, id string) (*broker.View, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var rec *redis.MapStringStringCmd
	var answer *redis.StringCmd
	_, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		rec = p.HGetAll(ctx, s.key("job", id))
		answer = p.Get(ctx, s.key("answer", id))
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, unavailable(err)
	}
	if len(rec.Val()) == 0 {
		return nil, broker.ErrNotFound
	}
	return view(id, rec.Val(), answer.Val())
}

// promise is what a job's admission settled, as its record has it; see
// script/common.lua.
type promise struct {
	AcceptedMS int64            `json:"accepted_ms"`
	DeadlineMS int64            `json:"deadline_ms"`
	ReserveMS  int64            `json:"reserve_ms"`
	Batch      string           `json:"batch"`
	Admission  broker.Admission `json:"admission"`
}

// promiseOf reads it from a record. Programs of layout 1 wrote fields of their
// own instead.
func promiseOf(m map[string]string) (p promise, err error) {
	if raw, ok := m["promise"]; ok {
		return p, json.Unmarshal([]byte(raw), &p)
	}
	num := func(field string) int64 {
		n, numErr := strconv.ParseInt(m[field], 10, 64)
		err = errors.Join(err, numErr)
		return n
	}
	p.AcceptedMS, p.DeadlineMS, p.ReserveMS, p.Batch = num("accepted"), num("deadline"), num("reserve"), m["batch"]
	return p, errors.Join(err, json.Unmarshal([]byte(m["admission"]), &p.Admission))
}

func view(id string, m map[string]string, answer string) (*broker.View, error) {
	var job broker.Job
	var details Details
	v := &broker.View{ID: id, State: broker.State(m["state"]), Answer: answer}
	p, err := promiseOf(m)
	if err := errors.Join(err, json.Unmarshal([]byte(m["spec"]), &job), v.Path.UnmarshalText([]byte(m["path"]))); err != nil {
		return nil, fmt.Errorf("job %s: record: %w", id, err)
	}
	if raw := m["details"]; raw != "" {
		if err := json.Unmarshal([]byte(raw), &details); err != nil {
			return nil, fmt.Errorf("job %s: record: %w", id, err)
		}
	}
	num := func(field string) int64 {
		n, _ := strconv.ParseInt(m[field], 10, 64) // absent: 0
		return n
	}
	v.Class, v.Producer, v.Metadata = job.Class, job.Producer, job.Metadata
	v.FirstByteOnly, v.Prefer, v.MaxOutputTokens = job.FirstByteOnly, job.Prefer, job.MaxOutputTokens
	v.AcceptedMS, v.DeadlineAtMS, v.ReserveMS, v.Admission = p.AcceptedMS, p.DeadlineMS, p.ReserveMS, p.Admission
	v.Attempts = int(num("attempts"))
	batch, line, _ := strings.Cut(p.Batch, " ")
	v.BatchID, v.CustomID = batch, broker.LineCustomID(line)
	v.QueueWaitMS = max(num("queue_wait"), 0)
	if v.State == broker.StateDone {
		v.Outcome, v.Cause, v.Reason = broker.Outcome(m["outcome"]), broker.Cause(m["cause"]), m["reason"]
		v.Backend = m["backend"]
		v.ElapsedMS = num("ended") - v.AcceptedMS
		v.ResultExpiresMS = num("answer_until")
		v.CancelledBy = m["cancelled_by"]
		if fb := num("first_byte"); fb >= 0 {
			v.FirstByteMS = &fb
		}
		v.FirstRoute, v.FirstOutcome, v.FallbackOutcome = details.FirstRoute, details.FirstOutcome, details.FallbackOutcome
		v.FinishReason, v.Usage = details.FinishReason, details.Usage
	} else {
		v.FirstByteAtMS = num("first_byte_at")
	}
	return v, nil
}
