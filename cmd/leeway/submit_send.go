package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"leeway/broker/background"
	"leeway/broker/client"
	"leeway/broker/wire"
)

// How patient sending is.
const (
	// netTries is how often in a row a call is made again whose reply was lost.
	netTries = 5
	// idle is how long a request may stand open without a line: the API hangs
	// up after a minute.
	idle = 20 * time.Second
	// resultsWait is how long one call waits for the next answer.
	resultsWait = 20 * time.Second
)

// sender sends documents in rounds of one request each, all under one batch, and
// follows the batch's answers meanwhile.
type sender struct {
	c    *submitCmd
	in   chan *document
	over chan struct{} // closed when nothing more is sent
	sent chan struct{} // closed when every document has its verdict
	slot chan struct{} // a token for each document under way; nil: no bound

	mu    sync.Mutex // guards what follows
	id    string
	known chan struct{} // closed when id is set

	// Of run alone.
	again  []later // refused, and to be offered again
	lost   []*document
	closed bool // in has ended
}

// later is a document to be offered again, and when.
type later struct {
	d  *document
	at time.Time
}

func newSender(c *submitCmd) *sender {
	s := &sender{c: c, in: make(chan *document), over: make(chan struct{}), sent: make(chan struct{}), known: make(chan struct{})}
	if c.Parallel > 0 {
		s.slot = make(chan struct{}, c.Parallel)
	}
	return s
}

// batch is the batch's id; empty before the first answer.
func (s *sender) batch() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// later says how to get at the batch when this command is over.
func (s *sender) later() string {
	if s.batch() == "" {
		return "`leeway jobs` lists them"
	}
	return fmt.Sprintf("`leeway batches results %s` brings their answers, `leeway batches cancel %s` takes them back", s.batch(), s.batch())
}

func (s *sender) opened(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id == "" {
		s.id = id
		close(s.known)
	}
}

// run sends everything and returns when every job has ended.
func (s *sender) run(ctx context.Context) error {
	following, stop := context.WithCancel(ctx)
	defer stop()
	followed := make(chan error, 1)
	go func() { followed <- s.follow(following) }()
	err := s.rounds(ctx)
	close(s.over)
	if err != nil {
		stop()
	}
	close(s.sent)
	if s.batch() == "" {
		stop() // nothing was taken
		return errors.Join(err, <-followed)
	}
	return errors.Join(err, <-followed)
}

func (s *sender) rounds(ctx context.Context) error {
	for tries := 0; ctx.Err() == nil; {
		first, more := s.next(ctx, time.Hour)
		if first == nil {
			if more {
				continue // nothing within the hour
			}
			return ctx.Err()
		}
		progress, err := s.round(ctx, first)
		if progress {
			tries = 0
		}
		p, told := errors.AsType[*wire.Problem](err)
		switch tries++; {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && len(s.lost) == 0:
			tries = 0
			continue
		case told && p.Status/100 != 5, tries >= netTries:
			if err == nil {
				err = errors.New("the API hangs up before it has answered")
			}
			return err
		}
		if background.Sleep(ctx, time.Duration(tries)*200*time.Millisecond) != nil {
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// next is the next document to offer. It is nil when there is none within wait,
// and then more says whether there may be one later.
func (s *sender) next(ctx context.Context, wait time.Duration) (d *document, more bool) {
	over := time.NewTimer(wait)
	defer over.Stop()
	if n := len(s.lost); n > 0 { // these have their slots
		d = s.lost[0]
		s.lost = s.lost[1:]
		return d, true
	}
	if s.slot != nil {
		select {
		case s.slot <- struct{}{}:
		case <-over.C:
			return nil, true
		case <-ctx.Done():
			return nil, false
		}
		defer func() {
			if d == nil {
				<-s.slot
			}
		}()
	}
	for {
		var due <-chan time.Time
		first := -1
		for i := range s.again {
			if first < 0 || s.again[i].at.Before(s.again[first].at) {
				first = i
			}
		}
		if first >= 0 {
			t := time.NewTimer(time.Until(s.again[first].at))
			defer t.Stop()
			due = t.C
		} else if s.closed {
			return nil, false
		}
		in := s.in
		if s.closed {
			in = nil
		}
		select {
		case <-due:
			d = s.again[first].d
			s.again = append(s.again[:first], s.again[first+1:]...)
			return d, true
		case got, ok := <-in:
			if ok {
				return got, true
			}
			s.closed = true
		case <-over.C:
			return nil, true
		case <-ctx.Done():
			return nil, false
		}
	}
}

// round sends documents in one request, from first on, until there is none for a
// while, and takes in their verdicts. What got none is lost, and sent again in
// the next. progress is set when there was a verdict.
func (s *sender) round(ctx context.Context, first *document) (progress bool, err error) {
	body, w := io.Pipe()
	var mu sync.Mutex // guards sent
	var sent []*document
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		for d := first; d != nil; d, _ = s.next(ctx, idle) {
			raw, err := json.Marshal(&d.job)
			if err != nil { // strings and numbers: cannot happen
				_ = w.CloseWithError(err)
				return
			}
			mu.Lock()
			sent = append(sent, d)
			mu.Unlock()
			if _, err := w.Write(append(raw, '\n')); err != nil {
				return
			}
		}
		_ = w.Close()
	}()
	verdicts := 0
	var again []later
	err = s.c.client().SendLines(ctx, &client.Lines{Batch: s.batch(), Key: s.c.run, Opened: s.opened}, body, func(l *wire.BatchLine) error {
		mu.Lock()
		defer mu.Unlock()
		if l.Line != verdicts+1 || l.Line > len(sent) {
			return fmt.Errorf("the API answered line %d after line %d", l.Line, verdicts)
		}
		d := sent[verdicts]
		sent[verdicts] = nil
		verdicts++
		switch more, at := s.c.verdict(d, l); {
		case more:
			again = append(again, later{d, at})
			s.free()
		case l.Error != nil:
			s.free()
		}
		return nil
	})
	_ = body.CloseWithError(errStopped) // the writer may still be at it
	<-wrote
	s.again = append(s.again, again...)
	s.lost = append(s.lost, sent[verdicts:]...)
	return verdicts > 0, err
}

// free gives back a slot of a document that is no longer under way.
func (s *sender) free() {
	if s.slot != nil {
		<-s.slot
	}
}

// follow takes in the answers of the batch until all of its jobs have ended.
func (s *sender) follow(ctx context.Context) error {
	select {
	case <-s.known:
	case <-ctx.Done():
		return nil // nothing was taken, or the end is told elsewhere
	}
	var cursor, ended int64
	for tries := 0; ; {
		admitted, all := s.admitted()
		if all && ended >= admitted {
			return nil
		}
		err := s.c.client().BatchResults(ctx, s.batch(), cursor, resultsWait, func(r *wire.ResultLine) error {
			cursor, tries = r.NextCursor, 0
			if d := s.doc(r.CustomID); d != nil {
				ended++
				s.c.outcome(d, r.Job)
				s.free()
			}
			return nil
		})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped: its end is told elsewhere
		}
		switch {
		case client.Lost(err) && tries < netTries:
			tries++
			_ = background.Sleep(ctx, time.Duration(tries)*time.Second)
		case err != nil:
			return fmt.Errorf("answers: %w", err)
		case all:
			if done, err := s.done(ctx, cursor); done || err != nil {
				return err
			}
		}
	}
}

func (s *sender) doc(id string) *document {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.c.docs[id]
}

// admitted is how many documents became jobs, and whether there may be more.
func (s *sender) admitted() (n int64, all bool) {
	select {
	case <-s.sent:
		all = true
	default:
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return int64(s.c.count.admitted), all
}

// done reports whether there is nothing left to wait for although not every job
// has told its end: the record of one is gone.
func (s *sender) done(ctx context.Context, cursor int64) (bool, error) {
	b, err := s.c.client().Batch(ctx, s.batch(), 0)
	if err != nil {
		if client.Lost(err) {
			return false, nil
		}
		return false, err
	}
	var ended int64
	for _, n := range b.Outcomes {
		ended += n
	}
	if b.Pending > 0 || ended > cursor {
		return false, nil
	}
	s.c.note(func(t *counts) { t.failed += int(b.Lost) })
	return true, nil
}
