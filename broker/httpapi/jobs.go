package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/faultpoint"
	"leeway/broker/wire"
)

// submit offers a job to the gate.
func (s *Server) submit(c echo.Context) error {
	receivedAt := time.Now()
	body, release, err := s.readBody(c, s.Config().LineBytes(callerOf(c).name))
	if err != nil {
		return err
	}
	defer release()
	ctx := c.Request().Context()
	sub, job, err := s.parse(ctx, callerOf(c), body, receivedAt)
	key, wrongKey := idempotencyKey(c.Request().Header)
	if err != nil {
		if v, ok := s.known(ctx, sub, keyed(key, body)); ok {
			return admitted(c, http.StatusOK, &v)
		}
		return s.charged(c, producerOf(callerOf(c), sub), err)
	}
	if wrongKey != nil {
		return s.charged(c, sub.Producer, wrongKey)
	}
	job.Key = keyed(key, body)
	faultpoint.Reach(faultpoint.Received)
	v, err := s.Admitter.Submit(ctx, job)
	limitHeaders(c.Response().Header(), &v)
	faultpoint.Reach(faultpoint.Replying)
	switch {
	case !v.Admitted():
		return notAdmitted(&v, err)
	case v.Repeated:
		return admitted(c, http.StatusOK, &v)
	}
	return admitted(c, http.StatusAccepted, &v)
}

func admitted(c echo.Context, status int, v *broker.Verdict) error {
	c.Response().Header().Set("Location", "/v1/jobs/"+v.JobID)
	return c.JSON(status, wire.NewVerdict(v))
}

// parse reads a submission and turns it into a job.
func (s *Server) parse(ctx context.Context, who caller, body []byte, receivedAt time.Time) (*submission, *broker.Submission, error) {
	sub, err := decodeStrict[submission](body)
	if err != nil {
		return nil, nil, err
	}
	if !absent(sub.DeadlineAt) && s.Store.NowMS() == 0 {
		if err := s.Store.SyncClock(ctx); err != nil {
			return nil, nil, err
		}
	}
	if who.role == roleProducer {
		sub.Producer = who.name // the key's owner, whatever the body says
	}
	job, err := sub.job(s.Config(), s.clockAt(receivedAt), receivedAt)
	return sub, job, err
}

// clockAt is the store's clock at a local instant.
func (s *Server) clockAt(at time.Time) int64 {
	return s.Store.NowMS() - time.Since(at).Milliseconds()
}

// known is the verdict of a submission that became a job before and cannot be
// read as one again: its deadline_at has passed, say.
func (s *Server) known(ctx context.Context, sub *submission, key broker.IdempotencyKey) (broker.Verdict, bool) {
	if sub == nil || key.Value == "" {
		return broker.Verdict{}, false
	}
	v, err := s.Admitter.Known(ctx, sub.Producer, key)
	return v, err == nil // else what was wrong with the submission is the answer
}

// jobOf reads a job, if it is the caller's.
func (s *Server) jobOf(c echo.Context) (*broker.Job, error) {
	view, err := s.Store.Get(c.Request().Context(), c.Param("id"))
	if err != nil {
		return nil, err
	}
	if !isTheirs(c, view.Producer) {
		return nil, broker.ErrNotFound
	}
	return view, nil
}

// getJob answers with a job; with ?wait= when it has ended, or that time is over.
func (s *Server) getJob(c echo.Context) error {
	wait, err := s.waitFor(c.QueryParam("wait"))
	if err != nil {
		return err
	}
	release, err := s.holdWait(c, wait)
	if err != nil {
		return err
	}
	defer release()
	ended, done := s.ends.listen(c.Param("id"), 1)
	defer done()
	var view *broker.Job
	err = s.poll(c, wait, recheck, ended, func(last bool) (bool, error) {
		now, err := s.jobOf(c)
		if errors.Is(err, broker.ErrUnavailable) && !last {
			return false, nil // whoever has time to wait need not hear of it
		}
		view = now
		return err == nil && view.State == broker.StateDone, err
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, view)
}

// What ?only= of a DELETE may say.
const (
	onlyCancel = "cancel" // take back, and leave the answer of a job that has ended
	onlyDelete = "delete" // delete what has ended, and leave the others alone
)

// cancelJob takes back a job that has not ended; of one that has, it deletes text
// and answer. The record and the ledger rows stay. ?only= restricts it to one
// of the two.
func (s *Server) cancelJob(c echo.Context) error {
	id, ctx := c.Param("id"), c.Request().Context()
	q := newQuery(c, "only")
	only := oneOf(q, "only", onlyCancel, onlyDelete)
	if q.err != nil {
		return q.err
	}
	if only == onlyDelete || callerOf(c).role == roleProducer {
		view, err := s.jobOf(c)
		if err != nil {
			return err
		}
		if only == onlyDelete && view.State != broker.StateDone {
			return problem(http.StatusConflict, wire.ReasonOrder, "the job has not ended: cancel it first")
		}
	}
	met, err := s.cancel(ctx, id)
	if err != nil {
		return err
	}
	status, result := http.StatusOK, string(met[0].Result)
	switch met[0].Result {
	case broker.CancelMissing:
		return broker.ErrNotFound
	case broker.CancelDone:
		if only == onlyCancel {
			return problem(http.StatusConflict, wire.ReasonOrder, "the job has ended: there is nothing to cancel")
		}
		if err := s.Store.Purge(ctx, id); err != nil {
			return err
		}
		result = "deleted"
	case broker.CancelRunning:
		status = http.StatusAccepted
	case broker.CancelWaiting, broker.CancelLate:
	}
	return c.JSON(status, map[string]string{"job_id": id, "result": result})
}

// listReads bounds how many pages are looked at for one that a filter leaves
// empty.
const listReads = 10

// listJobs lists the jobs admitted last. With a filter a page may hold fewer
// than asked for and still have a next one.
func (s *Server) listJobs(c echo.Context) error {
	q := newQuery(c, "producer", "class", "state", "outcome", "cursor", "limit")
	producer, all := s.whose(c, q)
	class := q.text("class")
	state := oneOf(q, "state", broker.StateWaiting, broker.StateRunning, broker.StateDone)
	outcome := oneOf(q, "outcome", broker.Outcomes[:]...)
	limit := q.limit()
	if q.err != nil {
		return q.err
	}
	ctx, out := c.Request().Context(), wire.JobList{Jobs: []*broker.Job{}, Next: q.Get("cursor")}
	for range listReads {
		jobs, next, err := s.Store.RecentJobs(ctx, producer, all, out.Next, limit)
		if err != nil {
			return err
		}
		for _, v := range jobs {
			if (class == "" || v.Class == class) && (state == "" || v.State == state) && (outcome == "" || v.Outcome == outcome) {
				out.Jobs = append(out.Jobs, v)
			}
		}
		if out.Next = next; next == "" || len(out.Jobs) > 0 {
			break
		}
	}
	return c.JSON(http.StatusOK, out)
}

// whose reads ?producer=: a producer sees what is its own, on-call what is asked
// for, or everything.
func (s *Server) whose(c echo.Context, q *query) (producer string, all bool) {
	asked := q.text("producer")
	if who := callerOf(c); who.role == roleProducer {
		if asked != "" && asked != who.name {
			q.failf("producer", "is not your key's")
		}
		return who.name, false
	}
	return asked, asked == ""
}
