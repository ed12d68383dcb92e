package slackgate

import "strconv"

// RungDigits is how many characters a number takes in the text of a ladder or of
// shares, so that a script can read the few that it needs by their place.
const RungDigits = 16

// AppendRungs writes down the ladder's rungs for a store that compares with
// them: within (-1: no end), max and wait of each, padded with blanks.
func (l *Ladder) AppendRungs(out []byte) []byte {
	for _, r := range l.rungs {
		if r.WithinMS == Unbounded {
			r.WithinMS = -1
		}
		for _, n := range [...]int64{r.WithinMS, r.Max, r.WaitMS} {
			out = appendNumber(out, n)
		}
	}
	return out
}

// AppendLevels writes down the level of each rung in the same way.
func (s Shares) AppendLevels(out []byte) []byte {
	for _, n := range s {
		out = appendNumber(out, n)
	}
	return out
}

func appendNumber(out []byte, n int64) []byte {
	const most = 1e15 // a number that a float holds, in RungDigits
	var digits [20]byte
	text := strconv.AppendInt(digits[:0], min(n, most), 10)
	for range RungDigits - len(text) {
		out = append(out, ' ')
	}
	return append(out, text...)
}
