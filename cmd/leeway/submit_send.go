package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
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
	sent chan struct{} // closed when nothing more is sent
	slot chan struct{} // a token for each document under way; nil: no bound

	known chan struct{} // closed when id is set
	id    string        // the batch's; see batch

	// Of run alone.
	in    <-chan *document // nil once it has ended
	again []reoffer        // refused, and to be offered again; the next first
	lost  []*document      // sent, and left without a verdict
}

// reoffer is a document to be offered again, and when.
type reoffer struct {
	d  *document
	at time.Time
}

func newSender(c *submitCmd, in <-chan *document) *sender {
	s := &sender{c: c, in: in, sent: make(chan struct{}), known: make(chan struct{})}
	if c.Parallel > 0 {
		s.slot = make(chan struct{}, c.Parallel)
	}
	return s
}

// batch is the batch's id; empty before the first answer.
func (s *sender) batch() string {
	if isClosed(s.known) {
		return s.id
	}
	return ""
}

// opened takes note of the batch's id, which each request's answer tells.
func (s *sender) opened(id string) {
	if s.id == "" && id != "" {
		s.id = id
		close(s.known)
	}
}

// afterwards says how to get at the batch when this command is over.
func (s *sender) afterwards() string {
	if s.batch() == "" {
		return "`leeway jobs` lists them"
	}
	return fmt.Sprintf("`leeway batches results %s` brings their answers, `leeway batches cancel %s` takes them back", s.id, s.id)
}

// run sends everything and returns when every job has ended.
func (s *sender) run(ctx context.Context) error {
	following, stop := context.WithCancel(ctx)
	defer stop()
	followed := make(chan error, 1)
	go func() { followed <- s.follow(following) }()
	err := s.rounds(ctx)
	close(s.sent)
	if err != nil || s.batch() == "" { // there is nothing to wait for
		stop()
	}
	return errors.Join(err, <-followed)
}

// rounds sends until every document has its verdict.
func (s *sender) rounds(ctx context.Context) error {
	for tries := 0; ; {
		first := s.next(ctx, nil)
		if first == nil {
			return ctx.Err()
		}
		progress, err := s.round(ctx, first)
		if progress || err == nil && len(s.lost) == 0 {
			tries = 0
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && len(s.lost) == 0:
			continue
		case err == nil:
			err = errors.New("the API hangs up before it has answered")
		}
		if tries++; !client.Lost(err) || tries >= netTries {
			return err
		}
		if background.Sleep(ctx, time.Duration(tries)*200*time.Millisecond) != nil {
			return ctx.Err()
		}
	}
}

// next is the next document to offer; nil when there is none before the end of
// the wait, or none at all any more.
func (s *sender) next(ctx context.Context, wait <-chan time.Time) (d *document) {
	if len(s.lost) > 0 { // these have their slots
		d, s.lost = s.lost[0], s.lost[1:]
		return d
	}
	if s.slot != nil {
		select {
		case s.slot <- struct{}{}:
		case <-wait:
			return nil
		case <-ctx.Done():
			return nil
		}
		defer func() {
			if d == nil {
				<-s.slot
			}
		}()
	}
	for {
		var due <-chan time.Time
		if len(s.again) > 0 {
			due = time.After(time.Until(s.again[0].at))
		} else if s.in == nil {
			return nil
		}
		select {
		case <-due:
			d, s.again = s.again[0].d, s.again[1:]
			return d
		case got, ok := <-s.in:
			if ok {
				return got
			}
			s.in = nil
		case <-wait:
			return nil
		case <-ctx.Done():
			return nil
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
		for d := first; d != nil; d = s.next(ctx, time.After(idle)) {
			raw, err := json.Marshal(&d.job) // before its verdict, which clears the text
			mu.Lock()
			sent = append(sent, d)
			mu.Unlock()
			if err == nil {
				_, err = w.Write(append(raw, '\n'))
			}
			if err != nil {
				_ = w.CloseWithError(err)
				return
			}
		}
		_ = w.Close()
	}()
	verdicts := 0
	var again []reoffer
	to := &client.Lines{Batch: s.batch(), Key: s.c.run, Opened: s.opened}
	err = s.c.client().SendLines(ctx, to, body, func(l *wire.BatchLine) error {
		mu.Lock()
		defer mu.Unlock()
		if l.Line != verdicts+1 || l.Line > len(sent) {
			return fmt.Errorf("the API answered line %d after line %d", l.Line, verdicts)
		}
		d := sent[verdicts]
		sent[verdicts] = nil
		verdicts++
		if more, at := s.c.verdict(d, l); more {
			again = append(again, reoffer{d, at})
		}
		if l.Error != nil {
			s.free()
		}
		return nil
	})
	_ = body.CloseWithError(errStopped) // the writer may still be at it
	<-wrote
	s.again = append(s.again, again...)
	slices.SortStableFunc(s.again, func(a, b reoffer) int { return a.at.Compare(b.at) })
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
	f := follower{api: s.c.client(), id: s.id}
	for tries := 0; ; {
		all := isClosed(s.sent)
		b, quiet, err := f.next(ctx, resultsWait, func(r *wire.ResultLine) error {
			tries = 0
			if s.c.outcome(r) {
				s.free()
			}
			return nil
		})
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // stopped: its end is told elsewhere
		case client.Lost(err) && tries < netTries:
			tries++
			_ = background.Sleep(ctx, time.Duration(tries)*time.Second)
		case err != nil:
			return fmt.Errorf("answers: %w", err)
		case quiet && all && b.Pending == 0:
			s.c.lost(b.Lost)
			return nil
		case quiet && !all: // what was sent has ended: the API does not wait for more
			select {
			case <-s.sent:
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
