package backend

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// lineReader reads lines that end with CR, LF or CRLF, in time proportional to
// their length however small the pieces they arrive in, and without waiting for
// the byte after a CR.
//
// It exists because the SSE readers to be had (tmaxmax/go-sse, which the tests
// hold this one against) scan a whole event again with each read: an event of
// half a megabyte in reads of 256 bytes took them three seconds of processor
// time, and blank lines that keep a connection alive pile up in their buffer.
type lineReader struct {
	r       *bufio.Reader
	buf     []byte
	afterCR bool // the last byte was a CR
	// room is how many more bytes the current event may take.
	room int
}

// line returns the next line without its end. It is valid until the next call.
// A last line that no line end follows is returned too.
func (l *lineReader) line() ([]byte, error) {
	l.buf = l.buf[:0]
	for {
		b, err := l.r.ReadByte()
		if err != nil {
			if errors.Is(err, io.EOF) && len(l.buf) > 0 {
				return l.buf, nil
			}
			return nil, err
		}
		afterCR := l.afterCR
		l.afterCR = b == '\r'
		switch {
		case b == '\n' && afterCR: // of the line before
		case b == '\n' || b == '\r':
			return l.buf, nil
		case l.room == 0:
			return nil, &Error{Reason: ReasonTooLarge, Detail: "one event is over its bound"}
		default:
			l.room--
			l.buf = append(l.buf, b)
		}
	}
}

// eventReader reads server-sent events as the HTML standard says, with a bound
// on the size of one event.
type eventReader struct {
	lines *lineReader
	max   int
	// perLine is set where each line that is not blank is an event of its own.
	perLine bool
	begun   bool
	said    bool // there was a line that is neither blank nor a comment
	data    []byte
}

// nextLine is next where each line is an event of its own.
func (e *eventReader) nextLine() (name string, data []byte, err error) {
	for {
		e.lines.room = e.max
		line, err := e.lines.line()
		if line = bytes.TrimSpace(line); err != nil || len(line) > 0 {
			e.said = true
			return "", line, err
		}
	}
}

// next returns the next event that has data. The data is valid until the next
// call. An event that no blank line follows is discarded, as the standard says,
// so that the end of the stream is io.EOF.
func (e *eventReader) next() (name string, data []byte, err error) {
	if e.perLine {
		return e.nextLine()
	}
	e.data = e.data[:0]
	e.lines.room = e.max
	for {
		line, err := e.lines.line()
		if err != nil {
			return "", nil, err
		}
		if !e.begun {
			e.begun = true
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		if len(line) == 0 {
			if len(e.data) > 1 {
				return name, e.data[:len(e.data)-1], nil
			}
			name, e.data, e.lines.room = "", e.data[:0], e.max
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		e.said = e.said || len(field) > 0
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "data":
			e.data = append(append(e.data, value...), '\n')
		case "event":
			name = string(value)
		case "":
			// A comment takes no room: however many keep a connection alive,
			// no event grows.
			e.lines.room += len(line)
		}
	}
}
