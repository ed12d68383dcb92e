package backend

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
)

// read takes a response of the 2xx kind. What it is shows in how it begins and
// not in its content type: gateways send JSON under the name of events, and
// events under that of JSON.
func (c *Client) read(s *sink, h http.Header, in *meter) error {
	r := bufio.NewReader(in)
	first, err := begin(r)
	if errors.Is(err, io.EOF) {
		return nil // result calls it empty
	}
	if err != nil {
		return err
	}
	events := &eventReader{lines: &lineReader{r: r}, max: c.cfg.maxEventBytes, perLine: c.wire.lines && strings.IndexByte(":dei", first) < 0}
	switch {
	case first == '<': // a page
	case (first == '{' || first == '[') && !c.wire.lines:
		err = c.readWhole(s, r)
	default:
		if err = c.readStream(s, events, in); !events.said {
			return err
		}
	}
	if err == nil && !s.any {
		err = notOfProtocol("nothing of the protocol, content type " + h.Get("Content-Type"))
	}
	return err
}

// begin passes over blanks and a byte order mark, and returns the byte after
// them without taking it.
func begin(r *bufio.Reader) (byte, error) {
	for {
		b, err := r.ReadByte()
		if err != nil {
			return 0, err
		}
		if strings.IndexByte(" \t\r\n\xef\xbb\xbf", b) < 0 {
			return b, r.UnreadByte()
		}
	}
}

// readWhole takes an answer sent in one piece.
func (c *Client) readWhole(s *sink, in io.Reader) error {
	limit := int64(c.cfg.maxAnswerBytes)*2 + maxReasoningBytes
	body, err := io.ReadAll(&meter{r: in, left: limit + 1})
	if err != nil {
		return err
	}
	return c.wire.whole(s, body)
}

// readStream takes events until the terminator, the end, or one that ends the
// answer badly. in is what they are read from.
func (c *Client) readStream(s *sink, events *eventReader, in *meter) error {
	for first := true; ; first = false {
		name, data, err := events.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if first && events.perLine && !json.Valid(data) {
			// One value over several lines.
			return c.readWhole(s, io.MultiReader(bytes.NewReader(data), events.lines.r))
		}
		done, err := c.take(s, name, data)
		if err != nil {
			return err
		}
		if done {
			// The answer is complete. A moment is waited for the end of the
			// body, so that the connection can be used again.
			s.terminate()
			s.dog.reset(drainGrace, errTail)
			_, _ = io.CopyN(io.Discard, in, 4<<10)
			return nil
		}
	}
}

// take takes one event and reports whether it was the terminator.
func (c *Client) take(s *sink, name string, data []byte) (done bool, err error) {
	s.beside = false
	data = bytes.TrimSpace(data)
	switch {
	case string(data) == "[DONE]":
		return true, nil
	case len(data) == 0, name == "ping":
		return false, nil // it keeps the connection alive
	case data[0] != '{' && json.Valid(data):
		return false, reported(s, data, name == "error")
	}
	return c.wire.event(s, name, data)
}
