package backend

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// readEvents takes a stream of server-sent events until its terminator, its
// end, or an event that ends the answer badly.
func (c *Client) readEvents(s *sink, in *meter) error {
	events := newEventReader(in, c.cfg.MaxEventBytes)
	for seen := false; ; seen = true {
		name, data, err := events.next()
		if errors.Is(err, io.EOF) {
			if seen || onlyComments(in.head) {
				return nil
			}
			return c.notEvents(s, in.head)
		}
		if err != nil {
			return err
		}
		done, err := c.wire.event(s, name, data)
		if err != nil {
			return err
		}
		if done {
			c.drain(s, in)
			return nil
		}
	}
}

// notEvents takes what a server sent that promised events and sent something
// else: an error object in plain JSON, as a rule.
func (c *Client) notEvents(s *sink, head []byte) error {
	if json.Valid(bytes.TrimSpace(head)) {
		return c.wire.whole(s, head)
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
	lines := newLineReader(in)
	for {
		lines.room = c.cfg.MaxEventBytes
		line, err := lines.line()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		done, err := c.wire.event(s, "", line)
		if err != nil {
			return err
		}
		if done {
			c.drain(s, in)
			return nil
		}
	}
}

// drain waits a moment for the end of the body, so that the connection can be
// used again. The answer is complete by now.
func (c *Client) drain(s *sink, in io.Reader) {
	s.watch.within(drainGrace, errTail)
	_, _ = io.CopyN(io.Discard, in, 4<<10)
}
