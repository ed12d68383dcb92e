package main

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/mattn/go-isatty"
)

// What a terminal is told.
const (
	eraseLine  = "\r\x1b[K"
	wrapOff    = "\x1b[?7l"
	wrapOn     = "\x1b[?7h"
	home       = "\x1b[H"
	eraseRight = "\x1b[K"
	eraseBelow = "\x1b[J"
)

// terminal reports whether a writer is one.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// lastLine shows a text in the line that the cursor is in, cut off at the
// terminal's edge: of a line that wraps only the end could be erased again. The
// cursor comes to stand at its beginning.
func lastLine(text string) string { return eraseLine + wrapOff + text + wrapOn + "\r" }

// printable is a text for a terminal, without what would control it: names and
// answers come from elsewhere.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < ' ' || r >= 0x7f && r < 0xa0:
			return utf8.RuneError
		}
		return r
	}, text)
}
