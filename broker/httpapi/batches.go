package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/joblog"
	"leeway/broker/redisstore"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// lostAfter is how long after the last deadline jobs that have not ended are
// taken for lost: their records are gone, and nobody ends them any more.
const lostAfter = 10 * time.Minute

// gateSays reports whether a line was refused in good order, so that it may be
// offered again.
func gateSays(reason string) bool {
	return reason == wire.ReasonBusy || slices.Contains(slackgate.Reasons[:], slackgate.Reason(reason))
}

func (s *Server) progress(b *broker.Batch) *wire.Batch {
	out := &wire.Batch{
		BatchID: b.ID, Producer: b.Producer, CreatedAtMS: b.CreatedMS, CancelledAtMS: b.CancelledMS, ExpiresAtMS: b.ExpiresMS,
		Lines: b.Lines, Admitted: b.Admitted(), Pending: b.Pending(), Verdicts: b.Said, Outcomes: b.Ended,
	}
	for reason, n := range b.Said {
		switch {
		case reason == "paid" || reason == "free":
		case gateSays(reason):
			out.Refused += n
		default:
			out.Invalid += n
		}
	}
	if out.Pending > 0 && s.Store.NowMS() > b.DueMS+lostAfter.Milliseconds() {
		out.Lost, out.Pending = out.Pending, 0
	}
	switch {
	case b.ReceivingUntilMS > s.Store.NowMS() && b.CancelledMS == 0:
		out.Status = wire.BatchReceiving
	case out.Pending > 0:
		out.Status = wire.BatchInProgress
	case b.CancelledMS > 0:
		out.Status = wire.BatchCancelled
	default:
		out.Status = wire.BatchDone
	}
	return out
}

// batchOf reads the batch that a request names, if it is the caller's.
func (s *Server) batchOf(c echo.Context) (*broker.Batch, error) {
	b, err := s.Store.Batch(c.Request().Context(), c.Param("id"))
	if err != nil {
		return nil, err
	}
	if who := callerOf(c); who.role == roleProducer && b.Producer != who.name {
		return nil, broker.ErrBatchNotFound
	}
	return b, nil
}

// getBatch answers how far a batch is; with ?wait= when it is done, or that time
// is over.
func (s *Server) getBatch(c echo.Context) error {
	q := newQuery(c, "wait")
	if q.err != nil {
		return q.err
	}
	wait, err := s.waitFor(c.QueryParam("wait"))
	if err != nil {
		return err
	}
	over := time.NewTimer(wait)
	defer over.Stop()
	look := time.NewTicker(recheck)
	defer look.Stop()
	for last := wait == 0; ; {
		b, err := s.batchOf(c)
		if err != nil {
			return err
		}
		p := s.progress(b)
		if last || p.Status == wire.BatchDone || p.Status == wire.BatchCancelled {
			return c.JSON(http.StatusOK, p)
		}
		select {
		case <-look.C:
		case <-over.C:
			last = true
		case <-c.Request().Context().Done():
			return nil
		}
	}
}

// Bounds of lists and pages.
const (
	listedByDefault = 50
)

func (s *Server) listBatches(c echo.Context) error {
	q := newQuery(c, "producer", "cursor", "limit")
	producer, all := s.whose(c, q)
	limit := int(q.int("limit", listedByDefault, 1, wire.MaxListed))
	if q.err != nil {
		return q.err
	}
	ctx := c.Request().Context()
	ids, next, err := s.Store.RecentBatches(ctx, producer, all, q.v.Get("cursor"), limit)
	if err != nil {
		return err
	}
	out := wire.BatchList{Batches: []*wire.Batch{}, Next: next}
	for _, id := range ids {
		b, err := s.Store.Batch(ctx, id)
		switch {
		case err == nil:
			out.Batches = append(out.Batches, s.progress(b))
		case asProblem(err).Status != http.StatusNotFound:
			return err
		}
	}
	return c.JSON(http.StatusOK, out)
}

// whose reads ?producer=: a producer sees what is its own, on-call what is asked
// for, or everything.
func (s *Server) whose(c echo.Context, q *query) (producer string, all bool) {
	if who := callerOf(c); who.role == roleProducer {
		if p := q.text("producer"); p != "" && p != who.name {
			q.failf("producer", "is not your key's")
		}
		return who.name, false
	}
	return q.text("producer"), !q.has("producer")
}

// listJobs lists the jobs admitted last. With a filter a page may hold fewer
// than asked for and still have a next one.
func (s *Server) listJobs(c echo.Context) error {
	q := newQuery(c, "producer", "class", "state", "outcome", "cursor", "limit")
	producer, all := s.whose(c, q)
	class := q.text("class")
	state := oneOf(q, "state", broker.StateWaiting, broker.StateRunning, broker.StateDone)
	outcome := oneOf(q, "outcome", broker.Outcomes[:]...)
	limit := int(q.int("limit", listedByDefault, 1, wire.MaxListed))
	if q.err != nil {
		return q.err
	}
	ctx, out := c.Request().Context(), wire.JobList{Jobs: []*broker.View{}, Next: q.v.Get("cursor")}
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

// listReads bounds how many pages are looked at for one that a filter leaves
// empty.
const listReads = 10

// cancelAtOnce is how many jobs are cancelled in one step of the store, which
// does nothing else meanwhile.
const cancelAtOnce = 50

// cancelBatch refuses all further lines and takes back every job that has not
// ended. It may be repeated.
func (s *Server) cancelBatch(c echo.Context) error {
	b, err := s.batchOf(c)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	if err := s.Store.CloseBatch(ctx, b.ID); err != nil {
		return err
	}
	out := wire.BatchCancelResult{BatchID: b.ID, Results: map[string]int64{}}
	for after := int64(0); ; {
		lines, err := s.Store.Lines(ctx, b.ID, after, cancelAtOnce, false)
		if err != nil {
			return err
		}
		if len(lines) == 0 {
			return c.JSON(http.StatusOK, out)
		}
		after = lines[len(lines)-1].At
		var ids []string
		for i := range lines {
			if lines[i].JobID != "" {
				ids = append(ids, lines[i].JobID)
			}
		}
		if len(ids) == 0 {
			continue
		}
		results, err := s.Store.CancelAll(ctx, ids...)
		if err != nil {
			s.logLostCancel(err, ids...)
			return err
		}
		var ended []string
		for i, what := range results {
			out.Results[string(what)]++
			if what == redisstore.CancelWaiting {
				ended = append(ended, ids[i])
			}
		}
		s.logEnds(ctx, ended)
	}
}

// logEnds writes the lines of jobs that ended here.
func (s *Server) logEnds(ctx context.Context, ids []string) {
	views, err := s.Store.Jobs(ctx, ids)
	if err != nil {
		for _, id := range ids {
			s.logEnd(id) // each waits for the store
		}
		return
	}
	for _, v := range views {
		if v != nil {
			joblog.Ended(ctx, s.Log, v)
		}
	}
}

// What ?verdict= of a batch's lines may say.
const (
	verdictAdmitted = "admitted"
	verdictRefused  = "refused"
	verdictInvalid  = "invalid"
)

// batchLines reads lines in their order, with verdicts and outcomes. With a
// filter a page may hold fewer lines than asked for, even none, and still have a
// next one.
func (s *Server) batchLines(c echo.Context) error {
	q := newQuery(c, "cursor", "limit", "verdict", "outcome")
	after := q.int("cursor", 0, 0, maxInstantMS)
	limit := int(q.int("limit", listedByDefault, 1, wire.MaxListed))
	said := oneOf(q, "verdict", verdictAdmitted, verdictRefused, verdictInvalid)
	outcome := oneOf(q, "outcome", broker.Outcomes[:]...)
	if q.err != nil {
		return q.err
	}
	b, err := s.batchOf(c)
	if err != nil {
		return err
	}
	lines, err := s.Store.Lines(c.Request().Context(), b.ID, after, limit, true)
	if err != nil {
		return err
	}
	page := wire.LinePage{Lines: []*wire.LineView{}}
	for i := range lines {
		v, err := viewLine(&lines[i])
		if err != nil {
			return err
		}
		if (said == "" || said == verdictKind(v)) && (outcome == "" || v.Job != nil && v.Job.Outcome == outcome) {
			page.Lines = append(page.Lines, v)
		}
	}
	if len(lines) == limit {
		page.Next = strconv.FormatInt(lines[len(lines)-1].At, 10)
	}
	return c.JSON(http.StatusOK, page)
}

// viewLine is a line on record as it goes over the wire.
func viewLine(l *broker.BatchLine) (*wire.LineView, error) {
	v := &wire.LineView{Job: l.Job}
	if l.JobID == "" && l.Said != nil {
		if err := json.Unmarshal(l.Said, &v.BatchLine); err != nil {
			return nil, err
		}
	} else {
		v.Status = http.StatusAccepted
		v.Verdict = &wire.Verdict{JobID: l.JobID, Path: l.Path}
		if l.Job != nil {
			v.Verdict = wire.RecordedVerdict(l.Job)
		}
		v.Path, v.Reason = l.Path, slackgate.Reason(l.Path.String())
	}
	v.Line, v.CustomID = broker.LineOf(l.At), broker.LineCustomID(l.Name)
	return v, nil
}

// verdictKind is the kind of verdict that a line got.
func verdictKind(v *wire.LineView) string {
	switch {
	case v.Error == nil:
		return verdictAdmitted
	case gateSays(v.Error.Reason):
		return verdictRefused
	}
	return verdictInvalid
}

// resultsAtOnce is how many answers are read at once.
const resultsAtOnce = 50

// batchResults streams the lines whose jobs have ended, in that order, as
// NDJSON. When there is none after the cursor it waits as long as ?wait= says
// for the next.
func (s *Server) batchResults(c echo.Context) error {
	q := newQuery(c, "cursor", "wait", "outcome")
	cursor := q.int("cursor", 0, 0, maxInstantMS)
	outcome := oneOf(q, "outcome", broker.Outcomes[:]...)
	if q.err != nil {
		return q.err
	}
	wait, err := s.waitFor(q.v.Get("wait"))
	if err != nil {
		return err
	}
	b, err := s.batchOf(c)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	lines, err := s.awaitEnded(ctx, b, cursor, wait)
	if err != nil {
		return err
	}
	defer answered(c)
	w := c.Response()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for len(lines) > 0 {
		if err := patience(c, 0, writeWithin); err != nil {
			return nil
		}
		for i := range lines {
			cursor++
			l := &lines[i]
			if outcome != "" && (l.Job == nil || l.Job.Outcome != outcome) {
				continue
			}
			err := enc.Encode(wire.ResultLine{Line: broker.LineOf(l.At), CustomID: broker.LineCustomID(l.Name), Job: l.Job, NextCursor: cursor})
			if err != nil {
				return nil // the reader has gone
			}
		}
		w.Flush()
		if lines, err = s.Store.EndedLines(ctx, b.ID, cursor, resultsAtOnce); err != nil {
			return s.breakOff(c, err)
		}
	}
	return nil
}

// breakOff ends an answer that is under way so that its reader does not take it
// for the whole.
func (s *Server) breakOff(c echo.Context, err error) error {
	s.Log.Warn("stream broke", "route", c.Path(), "error", err)
	panic(http.ErrAbortHandler)
}

// awaitEnded reads what has ended after a cursor. It waits while there is
// nothing, and something is still to come.
func (s *Server) awaitEnded(ctx context.Context, b *broker.Batch, cursor int64, wait time.Duration) ([]broker.BatchLine, error) {
	over := time.NewTimer(wait)
	defer over.Stop()
	look := time.NewTicker(recheck / 4)
	defer look.Stop()
	for last := wait == 0; ; {
		p := s.progress(b) // before the lines: what ends in between is among them
		lines, err := s.Store.EndedLines(ctx, b.ID, cursor, resultsAtOnce)
		if err != nil || len(lines) > 0 || last || p.Status == wire.BatchDone || p.Status == wire.BatchCancelled {
			return lines, err
		}
		select {
		case <-look.C:
		case <-over.C:
			last = true
		case <-ctx.Done():
			return nil, nil // the reader has gone
		}
		if b, err = s.Store.Batch(ctx, b.ID); err != nil {
			return nil, err
		}
	}
}
