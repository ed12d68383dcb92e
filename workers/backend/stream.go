package backend

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/tmaxmax/go-sse"
)

// readEvents takes a stream of server-sent events until its terminator, its
// end, or an event that ends the answer badly.
func (c *Client) readEvents(s *sink, in *meter) error {
	any := false
	for ev, err := range sse.Read(in, &sse.ReadConfig{MaxEventSize: c.cfg.MaxEventBytes}) {
		if err != nil {
			return streamError(err)
		}
		// By the standard an event without data is not dispatched; this
		// reader passes it on when it has a name or an id.
		if ev.Data == "" {
			continue
		}
		any = true
		done, err := c.wire.event(s, ev.Type, ev.Data)
		if err != nil {
			return err
		}
		if done {
			c.drain(s, in)
			return nil
		}
	}
	if any || onlyComments(in.head) {
		return nil
	}
	// A server that promises events and sends something else: an error object
	// in plain JSON, as a rule.
	if json.Valid(bytes.TrimSpace(in.head)) {
		return c.wire.whole(s, in.head)
	}
	return &Error{Reason: ReasonBadAnswer, Detail: "not a stream of events"}
}

// onlyComments reports whether a body without events was at least an event
// stream: nothing, or comments.
func onlyComments(head []byte) bool {
	for line := range bytes.Lines(head) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != ':' {
			return false
		}
	}
	return true
}

// readLines takes a stream of JSON values, one a line.
func (c *Client) readLines(s *sink, in *meter) error {
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, c.cfg.MaxEventBytes)
	for sc.Scan() {
		line := bytes.TrimSpace(sc.Bytes())
		if len(line) == 0 {
			continue
		}
		done, err := c.wire.event(s, "", string(line))
		if err != nil {
			return err
		}
		if done {
			c.drain(s, in)
			return nil
		}
	}
	return streamError(sc.Err())
}

// drain waits a moment for the end of the body, so that the connection can be
// used again. The answer is complete by now.
func (c *Client) drain(s *sink, in io.Reader) {
	s.watch.within(drainGrace, errTail)
	_, _ = io.CopyN(io.Discard, in, 4<<10)
}

func streamError(err error) error {
	if errors.Is(err, bufio.ErrTooLong) {
		return &Error{Reason: ReasonTooLarge, Detail: "one event is over its bound"}
	}
	return err
}
