package httpapi

import (
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"leeway/broker"
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
		BatchID: b.ID, Producer: b.Producer, CreatedAtMS: b.CreatedAtMS, CancelledAtMS: b.CancelledAtMS, ExpiresAtMS: b.ExpiresAtMS,
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
	if out.Pending > 0 && s.Store.NowMS() > b.DueAtMS+lostAfter.Milliseconds() {
		out.Lost, out.Pending = out.Pending, 0
	}
	switch {
	case b.ReceivingEndsAtMS > s.Store.NowMS() && b.CancelledAtMS == 0:
		out.Status = wire.BatchReceiving
	case out.Pending > 0:
		out.Status = wire.BatchInProgress
	case b.CancelledAtMS > 0:
		out.Status = wire.BatchCancelled
	default:
		out.Status = wire.BatchDone
	}
	return out
}

func isOver(b *wire.Batch) bool {
	return b.Status == wire.BatchDone || b.Status == wire.BatchCancelled
}

// batchOf reads the batch that a request names, if it is the caller's.
func (s *Server) batchOf(c echo.Context) (*broker.Batch, error) {
	b, err := s.Store.Batch(c.Request().Context(), c.Param("id"))
	if err != nil {
		return nil, err
	}
	if !isTheirs(c, b.Producer) {
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
	wait, err := s.waitFor(q.Get("wait"))
	if err != nil {
		return err
	}
	release, err := s.holdWait(c, wait)
	if err != nil {
		return err
	}
	defer release()
	var out *wire.Batch
	err = s.poll(c, wait, recheck, nil, func(bool) (bool, error) {
		b, err := s.batchOf(c)
		if err != nil {
			return false, err
		}
		out = s.progress(b)
		return isOver(out), nil
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

func (s *Server) listBatches(c echo.Context) error {
	q := newQuery(c, "producer", "cursor", "limit")
	producer, all := s.whose(c, q)
	limit := q.limit()
	if q.err != nil {
		return q.err
	}
	ctx := c.Request().Context()
	ids, next, err := s.Store.RecentBatches(ctx, producer, all, q.Get("cursor"), limit)
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
		met, err := s.cancel(ctx, ids...)
		if err != nil {
			return err
		}
		for _, what := range met {
			out.Results[string(what.Result)]++
		}
	}
}
