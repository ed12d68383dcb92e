package backend

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
)

// read takes a 200.
func (c *Client) read(s *sink, h http.Header, in *meter) error {
	kind, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	switch {
	case kind == "text/event-stream" && !c.wire.lines, c.wire.lines && (kind == "application/x-ndjson" || kind == ""):
		return c.readStream(s, bufio.NewReader(in), in)
	case kind == "application/json" || strings.HasSuffix(kind, "+json"):
		return c.readWhole(s, in)
	case kind == "" || kind == "text/plain" || kind == "application/octet-stream":
		// Not said, or not meant: look.
		return c.readUnnamed(s, in)
	}
	return &Error{Reason: ReasonBadAnswer, Detail: "unexpected content type " + kind}
}

// readWhole takes an answer sent in one piece.
func (c *Client) readWhole(s *sink, in io.Reader) error {
	limit := int64(c.cfg.maxAnswerBytes)*2 + maxReasoningBytes
	body, err := io.ReadAll(&meter{r: in, left: limit + 1})
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return nil // result calls it empty
	}
	return c.wire.whole(s, body)
}

// readUnnamed takes a body whose kind the headers do not tell.
func (c *Client) readUnnamed(s *sink, in *meter) error {
	r := bufio.NewReader(in)
	for {
		first, err := r.ReadByte()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case strings.IndexByte(" \t\r\n", first) >= 0:
			continue
		}
		_ = r.UnreadByte()
		if first == '{' || first == '[' {
			return c.readWhole(s, r)
		}
		return c.readStream(s, r, in)
	}
}

// readStream takes events or lines from r until the terminator, the end, or one
// that ends the answer badly. in is what r reads from.
func (c *Client) readStream(s *sink, r *bufio.Reader, in *meter) error {
	events := &eventReader{lines: &lineReader{r: r}, max: c.cfg.maxEventBytes}
	next := events.next
	if c.wire.lines {
		next = events.nextLine
	}
	for seen := false; ; seen = true {
		name, data, err := next()
		if errors.Is(err, io.EOF) {
			if seen || c.wire.lines || onlyComments(in.head) {
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
			// The answer is complete. A moment is waited for the end of the
			// body, so that the connection can be used again.
			s.dog.reset(drainGrace, errTail)
			_, _ = io.CopyN(io.Discard, in, 4<<10)
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
	return notOfProtocol("not a stream of events")
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
