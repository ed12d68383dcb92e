package backend

import "strings"

// Servers without a parser for a model's reasoning pass it on as the beginning
// of the answer, between these marks.
const (
	thinkOpen  = "<think>"
	thinkClose = "</think>"
)

// thinker takes reasoning off the beginning of an answer that arrives in
// pieces. Marks further on belong to the answer.
type thinker struct {
	state thinkState
	// held is text that may turn out to be (part of) a mark. It is never
	// longer than maxHeld and a piece.
	held string
}

type thinkState uint8

const (
	thinkMaybe  thinkState = iota // nothing but blanks and part of a mark so far
	thinkInside                   // between the marks
	thinkOver                     // the answer has begun
)

// maxHeld bounds the blanks that may stand before a mark.
const maxHeld = 64

// split says what of a piece is reasoning and what is answer.
func (t *thinker) split(piece string) (reasoning, answer string) {
	if t.state == thinkMaybe {
		t.held += piece
		begun := strings.TrimLeft(t.held, " \t\r\n")
		switch {
		case strings.HasPrefix(begun, thinkOpen):
			t.state, t.held, piece = thinkInside, "", begun[len(thinkOpen):]
		case strings.HasPrefix(thinkOpen, begun) && len(t.held) <= maxHeld:
			return "", ""
		default:
			t.state = thinkOver
			return "", t.take()
		}
	}
	if t.state == thinkOver {
		return "", piece
	}
	t.held += piece
	if before, after, found := strings.Cut(t.held, thinkClose); found {
		t.state, t.held = thinkOver, ""
		return before, strings.TrimLeft(after, " \t\r\n")
	}
	// The end may be the beginning of the closing mark.
	keep := min(len(t.held), len(thinkClose)-1)
	for keep > 0 && !strings.HasPrefix(thinkClose, t.held[len(t.held)-keep:]) {
		keep--
	}
	reasoning = t.held[:len(t.held)-keep]
	t.held = t.held[len(t.held)-keep:]
	return reasoning, ""
}

// rest says what the text still held is, now that nothing follows.
func (t *thinker) rest() (reasoning, answer string) {
	if t.state == thinkInside {
		return t.take(), ""
	}
	return "", t.take()
}

func (t *thinker) take() string {
	s := t.held
	t.held = ""
	return s
}
