package httpapi

import (
	"context"
	"errors"
	"time"

	"leeway/broker"
	"leeway/broker/joblog"
)

// logTries is how many seconds a line waits for the store; lostCancelWait is
// how long after a cancel without a reply its jobs are looked at.
const (
	logTries       = 120
	lostCancelWait = time.Second
)

// cancel takes jobs back, and logs the end of those that it ended.
func (s *Server) cancel(ctx context.Context, ids ...string) ([]broker.Cancellation, error) {
	met, err := s.Store.CancelAll(ctx, ids...)
	if err != nil {
		s.logLostCancel(err, ids)
		return nil, err
	}
	for _, c := range met {
		if c.Ended != nil {
			joblog.Ended(ctx, s.Log, c.Ended)
		}
	}
	return met, nil
}

// logLostCancel writes the lines of the jobs that a failed cancel ended all the
// same, if err says that it may have. Nobody else does: only this call was told
// by the store, and the answer was lost.
func (s *Server) logLostCancel(err error, ids []string) {
	lost, ok := errors.AsType[*broker.CancelUnknownError](err)
	if !ok {
		return
	}
	s.Background.Go("log line", func(ctx context.Context) error {
		// A store that stood still does first what it was asked before.
		select {
		case <-time.After(lostCancelWait):
		case <-ctx.Done():
			return nil
		}
		for _, id := range ids {
			err := s.whenReadable(ctx, id, func(view *broker.Job) {
				if view.CancelledBy == lost.Call {
					joblog.Ended(ctx, s.Log, view)
				}
			})
			if err != nil && !errors.Is(err, broker.ErrNotFound) {
				s.Log.Error("whether a cancel ended the job not readable for the log", "job_id", id, "error", err)
			}
		}
		return nil
	})
}

// whenReadable reads a job as soon as the store allows it. The error is the
// store's last; nil when ctx is done before.
func (s *Server) whenReadable(ctx context.Context, id string, then func(*broker.Job)) (err error) {
	pause := time.NewTicker(time.Second)
	defer pause.Stop()
	for range logTries {
		var view *broker.Job
		if view, err = s.Store.Get(ctx, id); err == nil {
			then(view)
			return nil
		}
		if !errors.Is(err, broker.ErrUnavailable) {
			return err
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil
		}
	}
	return err
}
