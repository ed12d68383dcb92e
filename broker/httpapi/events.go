package httpapi

import (
	"errors"
	"time"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/wire"
)

// events streams what happens to a job, beginning with what has happened
// already, until its outcome.
func (s *Server) events(c echo.Context) error {
	id, ctx := c.Param("id"), c.Request().Context()
	release, err := s.holdStream(c)
	if err != nil {
		return err
	}
	defer release()
	news, done := s.news.listen(id, 1)
	defer done()
	ended, forget := s.ends.listen(id, 1)
	defer forget()
	var view *broker.Job
	if err := s.reading(c, func() (err error) { view, err = s.jobOf(c); return err }); err != nil {
		return err
	}
	out, err := openStream(c)
	if err != nil {
		return nil // the client has gone
	}
	look, beat := time.NewTicker(recheck), time.NewTicker(heartbeat)
	defer look.Stop()
	defer beat.Stop()
	t := &teller{out: out}
	for {
		if gone := t.tell(view); gone != nil || view.State == broker.StateDone {
			return nil
		}
		select {
		case <-news:
		case <-ended:
		case <-look.C:
		case <-beat.C:
			if out.beat() != nil {
				return nil
			}
			continue
		case <-ctx.Done():
			return nil
		}
		var now *broker.Job
		switch err := s.reading(c, func() (err error) { now, err = s.Store.Get(ctx, id); return err }); {
		case err == nil:
			view = now
		case errors.Is(err, broker.ErrNotFound):
			return nil // its record has lapsed
		}
		// With the store away the stream waits for it, like the job.
	}
}

// teller turns a job's states into events, each told once.
type teller struct {
	out                         *eventStream
	verdict, running, firstByte bool
}

func (t *teller) tell(v *broker.Job) error {
	done := v.State == broker.StateDone
	claimedMS := v.AcceptedAtMS + v.QueueWaitMS
	at := func(ms int64) wire.EventAt { return wire.EventAt{JobID: v.ID, Path: v.Path, AtMS: ms} }
	if v.State == broker.StateWaiting {
		t.running, t.firstByte = false, false // it was handed back, or its worker was lost
	}
	for _, e := range []struct {
		told *bool
		due  bool
		name string
		data any
	}{
		{&t.verdict, true, wire.EventVerdict, wire.RecordedVerdict(v)},
		{&t.running, v.State == broker.StateRunning || done && v.Attempts > 0, wire.EventRunning, at(claimedMS)},
		{&t.firstByte, v.FirstByteAtMS > 0 || v.FirstByteMS != nil, wire.EventFirstByte, at(firstByteAt(v, claimedMS))},
		{new(bool), done, wire.EventOutcome, v},
	} {
		if *e.told || !e.due {
			continue
		}
		*e.told = true
		if err := t.out.send(e.name, e.data); err != nil {
			return err
		}
	}
	return nil
}

func firstByteAt(v *broker.Job, claimedMS int64) int64 {
	if v.FirstByteMS != nil {
		return claimedMS + *v.FirstByteMS
	}
	return v.FirstByteAtMS
}
