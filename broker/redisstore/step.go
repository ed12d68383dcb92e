package redisstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"leeway/broker"
	"leeway/slackgate"
	"leeway/slackgate/latency"
)

// mostTextBytes is how many bytes of texts a call gives out before it says "later",
// so that a call of many claims ends in its time.
const mostTextBytes = 1 << 20

// Steps takes steps of slots of one pool in one call, in their order, and puts
// down in each what came of it. An error means that nobody knows what came of any.
func (s *Store) Steps(ctx context.Context, path slackgate.Path, limit int, lease time.Duration, steps ...*broker.Step) error {
	// Counted from here: a slow store shortens the time a job has, and never
	// lengthens it.
	sent := time.Now()
	claims := 0
	for _, step := range steps {
		claims += bit(step.Claim)
	}
	args := []any{path.String(), limit, lease.Milliseconds(), s.keepMS, s.books, s.closeByMS(), claims}
	for _, step := range steps {
		var err error
		if args, err = s.appendStep(args, step); err != nil {
			return err
		}
	}
	v, err := s.run(ctx, scriptStep, args...)
	if err != nil {
		return err
	}
	r := asReply(v)
	now := r.int()
	if r.err != nil {
		return r.err
	}
	whole := true
	for _, step := range steps {
		readStep(r, step, path, sent, now)
		whole = whole && !errors.Is(step.Err, broker.ErrUnavailable) && !errors.Is(step.Found.Err, broker.ErrUnavailable)
	}
	if r.err == nil && whole {
		s.saw(sent, now)
	}
	return r.err
}

// Claim is a step by itself, as are those that follow. It takes the most urgent
// waiting job of a pool under a lease, which ends soon after the job's deadline at
// the latest.
func (s *Store) Claim(ctx context.Context, path slackgate.Path, limit int, lease time.Duration) (*broker.Claim, broker.ClaimReport, error) {
	step := &broker.Step{Claim: true}
	if err := s.Steps(ctx, path, limit, lease, step); err != nil {
		return nil, broker.ClaimReport{}, err
	}
	return step.Claimed, step.Found, step.Found.Err
}

// OpenSpend writes the row of an attempt before its backend is called.
// ErrFenced: the job is no longer this claim's and no backend may be called.
func (s *Store) OpenSpend(ctx context.Context, c *broker.Claim, row *broker.SpendRow) error {
	return s.step(ctx, &broker.Step{Job: c, Open: row})
}

// probeDue is when a probe must be over.
const probeDue = time.Minute

// OpenProbe writes the spend row of a probe, which belongs to no job.
func (s *Store) OpenProbe(ctx context.Context, row *broker.SpendRow) error {
	row.DueAtMS = s.NowMS() + probeDue.Milliseconds()
	return s.step(ctx, &broker.Step{Open: row})
}

// SawFirstByte notes that a claimed job's first answer text came: from then on
// it does not count as a call without one.
func (s *Store) SawFirstByte(ctx context.Context, c *broker.Claim) error {
	return s.step(ctx, &broker.Step{Job: c, Answers: true})
}

// Finish commits a claim's outcome, its answer, its ledger rows and the
// release of its promise in one step. Repeating it is harmless. It returns the
// job as it ended, without its answer; its outcome is cancelled when a cancel came
// in time. ErrFenced: another holder has the job; only the settlements were booked.
func (s *Store) Finish(ctx context.Context, c *broker.Claim, f *broker.Finish, rows ...broker.SpendRow) (*broker.Job, error) {
	step := &broker.Step{Job: c, Finish: f, Settled: rows}
	err := s.step(ctx, step)
	return step.Ended, err
}

// Measure counts calls.
func (s *Store) Measure(ctx context.Context, samples ...latency.Sample) error {
	if len(samples) == 0 {
		return nil
	}
	return s.step(ctx, &broker.Step{Samples: samples})
}

// step takes one that claims nothing.
func (s *Store) step(ctx context.Context, step *broker.Step) error {
	var path slackgate.Path
	if step.Job != nil {
		path = step.Job.Path
	}
	if err := s.Steps(ctx, path, 0, 0, step); err != nil {
		return err
	}
	return step.Err
}

// appendStep adds a step as script/step.lua takes it.
func (s *Store) appendStep(args []any, step *broker.Step) ([]any, error) {
	// begin leaves room for how many arguments follow, which end fills in.
	at := 0
	begin := func(name string) { args = append(args, name, 0); at = len(args) }
	end := func() { args[at-1] = len(args) - at }
	c := step.Job
	if step.Answers {
		begin("answers")
		args = append(args, c.ID, c.Fence, step.AnswersFor.Milliseconds())
		end()
	}
	if row := step.Open; row != nil {
		fence := "probe"
		if c != nil {
			fence, row.DueAtMS = strconv.FormatInt(c.Fence, 10), c.DeadlineAtMS
		}
		row.OpenedAtMS = s.NowMS()
		raw, err := json.Marshal(row)
		if err != nil {
			return nil, err
		}
		begin("open")
		args = append(args, row.JobID, fence, row.Attempt, raw, row.DueAtMS, row.MaxCostMicro)
		end()
	}
	if f := step.Finish; f != nil {
		more, err := json.Marshal(details{f.FirstRoute, f.FirstOutcome, f.FallbackOutcome, f.Detail, f.Model, f.FinishReason, f.Usage})
		if err != nil {
			return nil, err
		}
		begin("finish")
		args = append(args, c.ID, c.Fence, string(f.Outcome), string(f.Cause), f.Reason, f.Backend, f.FirstByteMS, more, f.Answer)
		if args, err = s.appendSettlements(args, step.Settled); err != nil {
			return nil, err
		}
		end()
	}
	if len(step.Samples) > 0 {
		begin("measure")
		for _, m := range step.Samples {
			sum := m.MS
			if m.Cut {
				sum = -1
			}
			args = append(args, m.Key(), latency.Field(m.MS, m.Cut), sum)
		}
		end()
	}
	if step.Claim {
		before := ""
		if step.Finish != nil {
			before = c.ID
		}
		begin("claim")
		args = append(args, before, bit(step.Again), mostTextBytes)
		end()
	}
	return args, nil
}

// readStep reads what came of a step from a call that was sent at an instant and
// answered at one of the store's clock.
func readStep(r *reply, step *broker.Step, path slackgate.Path, sent time.Time, nowMS int64) {
	if step.Answers {
		step.Err = r.part().err
	}
	if step.Open != nil {
		if opened := r.part(); opened.int() != 1 || opened.err != nil {
			step.Err = cmp.Or(opened.err, broker.ErrFenced)
		}
	}
	if step.Finish != nil {
		if ended := r.part(); ended.more() {
			step.Ended = ended.job()
			step.Err = ended.err
		} else {
			step.Err = cmp.Or(ended.err, broker.ErrFenced)
		}
	}
	if len(step.Samples) > 0 {
		if err := r.part().err; step.Finish == nil {
			step.Err = err
		}
	}
	if step.Claim {
		readClaim(r.part(), step, path, sent, nowMS)
	}
}

func readClaim(r *reply, step *broker.Step, path slackgate.Path, sent time.Time, nowMS int64) {
	what := r.string()
	step.Found = broker.ClaimReport{Full: what == "full", Later: what == "later", Ended: r.jobs()}
	for gone := range r.groups(2) {
		step.Found.Lost = append(step.Found.Lost, broker.Lost{Path: path, Class: gone[0], ID: gone[1]})
	}
	if step.Found.Err = r.err; r.err != nil || what != "job" {
		return
	}
	c := &broker.Claim{Path: path, ClaimedAt: sent}
	id := r.string()
	c.Fence, c.Offers, c.Attempts = r.int(), int(r.int()), int(r.int())
	c.AcceptedAtMS, c.DeadlineAtMS, c.ReserveMS = r.int(), r.int(), r.int()
	// A clock that stepped back behind the admission gives no job more time
	// than it came with.
	c.NowMS = max(nowMS, c.AcceptedAtMS)
	spec, admission, text := r.string(), r.string(), r.string()
	c.FlagsVersion = r.int()
	if step.Found.Err = r.err; r.err != nil {
		return
	}
	err := errors.Join(
		json.Unmarshal([]byte(spec), &c.Spec),
		json.Unmarshal([]byte(admission), &c.Admission),
	)
	c.ID, step.Claimed = id, c
	if err != nil {
		// The job is claimed and cannot be read: the caller fails it.
		c.Spec, c.Unreadable = broker.Spec{ID: id}, true
		step.Found.Err = fmt.Errorf("job %s: record: %w", id, err)
		return
	}
	c.Text, c.Instruction = readText(text)
}
