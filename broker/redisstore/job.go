package redisstore

import (
	"cmp"
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
)

func member(w broker.Worker) string { return w.ID + "|" + strconv.Itoa(w.Slots) }

// Beat shows that a worker lives; it is forgotten after ttl. The instant is
// the store's own.
func (s *Store) Beat(ctx context.Context, w broker.Worker, ttl time.Duration) error {
	_, err := s.run(ctx, scriptBeat, w.Path.String(), member(w), ttl.Milliseconds())
	return err
}

// Leave forgets a worker at once.
func (s *Store) Leave(ctx context.Context, w broker.Worker) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.rdb.ZRem(ctx, s.key("workers", w.Path.String()), member(w)).Err(); err != nil {
		return unavailable(err)
	}
	return nil
}

// Renew prolongs a claim's lease, as far as Claim would.
func (s *Store) Renew(ctx context.Context, c *broker.Claim, lease time.Duration) (broker.Lease, error) {
	v, err := s.run(ctx, scriptRenew, c.Path.String(), c.ID, c.Fence, lease.Milliseconds(), s.closeByMS())
	if err != nil {
		return broker.LeaseHeld, err
	}
	n, _ := v.(int64)
	return broker.Lease(n), nil
}

// settleArgs is how many arguments a script takes for each attempt to settle.
const settleArgs = 14

func (s *Store) appendSettlements(args []any, rows []broker.SpendRow) ([]any, error) {
	for i := range rows {
		row := &rows[i]
		row.SettledAtMS = s.NowMS()
		row.DueAtMS, row.MaxInputTokens, row.MaxOutputTokens = 0, 0, 0 // of an open row
		raw, err := json.Marshal(row)
		if err != nil {
			return nil, err
		}
		args = append(args, spendKey(row.JobID, row.Attempt), raw, row.Path.String(), bit(row.Priced),
			row.InputTokens, row.OutputTokens, row.CostMicro, row.Currency, string(row.Known),
			row.Class, row.Producer, row.Backend, bit(row.CostDiffers()), row.MaxCostMicro)
	}
	return args, nil
}

func spendKey(job string, attempt int) string { return job + "/" + strconv.Itoa(attempt) }

// Settle books attempts that have ended. A row that is not open any more is
// left as it stands, so a settlement may be repeated.
func (s *Store) Settle(ctx context.Context, rows ...broker.SpendRow) error {
	args, err := s.appendSettlements([]any{s.books}, rows)
	if err != nil {
		return err
	}
	_, err = s.run(ctx, scriptSettle, args...)
	return err
}

// details are the parts of an end that only readers of the record want.
type details struct {
	FirstRoute      string `json:"first_route,omitempty"`
	FirstOutcome    string `json:"first_outcome,omitempty"`
	FallbackOutcome string `json:"fallback_outcome,omitempty"`
	Detail          string `json:"detail,omitempty"`

	Model        string        `json:"model,omitempty"`
	FinishReason string        `json:"finish_reason,omitempty"`
	Usage        *broker.Usage `json:"usage,omitempty"`
}

// Handback returns a claimed job to its old place in the order and books what
// its attempts cost, in one step. One that its producer took back meanwhile ends
// as cancelled, and is returned as it ended; else nil is. ErrFenced: another
// holder has the job; only the settlements were booked.
func (s *Store) Handback(ctx context.Context, c *broker.Claim, rows ...broker.SpendRow) (ended *broker.Job, err error) {
	args, err := s.appendSettlements([]any{c.Path.String(), c.ID, c.Fence, s.keepMS, s.books}, rows)
	if err != nil {
		return nil, err
	}
	v, err := s.run(ctx, scriptHandback, args...)
	if err != nil {
		return nil, err
	}
	r := asReply(v)
	if r.int() == 0 {
		return nil, cmp.Or(r.err, broker.ErrFenced)
	}
	if !r.more() {
		return nil, r.err
	}
	return r.job(), r.err
}

// CancelAll takes jobs back in one step, so they should be few: what came of
// each stands in their order. The error is a [broker.CancelUnknownError] where
// they may have been taken back all the same.
func (s *Store) CancelAll(ctx context.Context, ids ...string) ([]broker.Cancellation, error) {
	call := uuid.NewString()
	args := []any{s.keepMS, s.books, call}
	for _, id := range ids {
		args = append(args, id)
	}
	v, err := s.run(ctx, scriptCancel, args...)
	if err != nil {
		if !broker.TroubleOf(err).NothingDone() {
			err = &broker.CancelUnknownError{Call: call, Err: err}
		}
		return nil, err
	}
	r := asReply(v)
	out := make([]broker.Cancellation, len(ids))
	for i := range ids {
		if out[i].Result = broker.CancelResult(r.string()); out[i].Result == broker.CancelWaiting {
			out[i].Ended = r.job()
		}
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
func (s *Store) Get(ctx context.Context, id string) (*broker.Job, error) {
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
	return readJob(id, rec.Val(), answer.Val())
}

// promise is what a job's admission settled, as its record has it; see
// script/common.lua.
type promise struct {
	AcceptedAtMS int64            `json:"accepted_at_ms"`
	DeadlineAtMS int64            `json:"deadline_at_ms"`
	ReserveMS    int64            `json:"reserve_ms"`
	Batch        string           `json:"batch"`
	Admission    broker.Admission `json:"admission"`

	// What programs of layout 2 called the two instants.
	AcceptedAtMS2 int64 `json:"accepted_ms"`
	DeadlineAtMS2 int64 `json:"deadline_ms"`
}

func readPromise(raw string) (p promise, err error) {
	err = json.Unmarshal([]byte(raw), &p)
	p.AcceptedAtMS = cmp.Or(p.AcceptedAtMS, p.AcceptedAtMS2)
	p.DeadlineAtMS = cmp.Or(p.DeadlineAtMS, p.DeadlineAtMS2)
	return p, err
}

// readJob reads a job's record.
func readJob(id string, m map[string]string, answer string) (*broker.Job, error) {
	var spec broker.Spec
	var more details
	j := &broker.Job{ID: id, State: broker.State(m["state"]), Answer: answer}
	p, err := readPromise(m["promise"])
	err = errors.Join(err, json.Unmarshal([]byte(m["spec"]), &spec), j.Path.UnmarshalText([]byte(m["path"])))
	if raw := m["details"]; raw != "" {
		err = errors.Join(err, json.Unmarshal([]byte(raw), &more))
	}
	if err != nil {
		return nil, fmt.Errorf("job %s: record: %w", id, err)
	}
	num := func(field string) int64 {
		n, _ := strconv.ParseInt(m[field], 10, 64) // absent: 0
		return n
	}
	j.Class, j.Producer, j.Metadata = spec.Class, spec.Producer, spec.Metadata
	j.FirstByteOnly, j.Prefer, j.MaxOutputTokens = spec.FirstByteOnly, spec.Prefer, spec.MaxOutputTokens
	j.AcceptedAtMS, j.DeadlineAtMS, j.ReserveMS, j.Admission = p.AcceptedAtMS, p.DeadlineAtMS, p.ReserveMS, p.Admission
	j.Attempts = int(num("attempts"))
	batch, line, _ := strings.Cut(p.Batch, " ")
	j.BatchID, j.CustomID = batch, broker.LineCustomID(line)
	j.QueueWaitMS = max(num("queue_wait"), 0)
	if j.State != broker.StateDone {
		j.FirstByteAtMS = num("first_byte_at")
		return j, nil
	}
	j.Outcome, j.Cause, j.Reason = broker.Outcome(m["outcome"]), broker.Cause(m["cause"]), m["reason"]
	j.Backend = m["backend"]
	j.ElapsedMS = num("ended") - j.AcceptedAtMS
	j.ResultExpiresAtMS = num("answer_until")
	j.CancelledBy = m["cancelled_by"]
	if fb := num("first_byte"); fb >= 0 {
		j.FirstByteMS = &fb
	}
	j.FirstRoute, j.FirstOutcome, j.FallbackOutcome = more.FirstRoute, more.FirstOutcome, more.FallbackOutcome
	j.Detail, j.Model, j.FinishReason, j.Usage = more.Detail, more.Model, more.FinishReason, more.Usage
	return j, nil
}
