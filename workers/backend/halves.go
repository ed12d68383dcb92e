package backend

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Servers cut answers at tokens, and some characters are more than one token: a
// piece may end with the first half of a surrogate pair or of a character's
// bytes. encoding/json replaces both, so that they are read here.

const replacement = "\ufffd"

// unquote is a JSON string, quotes included. Half a character at its beginning or
// end stays as it came, a surrogate as the three bytes that it would have in
// UTF-8, for [joiner] to put together. What is wrong elsewhere is replaced.
func unquote(b []byte) string {
	in := string(b[1 : len(b)-1])
	var head, tail string
	if len(in) >= 6 && isLow(escaped(in[:6])) {
		head, in = wobbly(escaped(in[:6])), in[6:]
	}
	for len(head) < 3 && in != "" && !utf8.RuneStart(in[0]) {
		head, in = head+in[:1], in[1:]
	}
	if cut := len(in) - 6; cut >= 0 && isHigh(escaped(in[cut:])) {
		if before := strings.TrimRight(in[:cut], `\`); (cut-len(before))%2 == 0 {
			tail, in = wobbly(escaped(in[cut:])), in[:cut]
		}
	}
	if cut := len(in) - unfinished(in); cut < len(in) {
		tail, in = in[cut:]+tail, in[:cut]
	}
	var s string
	_ = json.Unmarshal([]byte(`"`+in+`"`), &s) // it was valid with more around it
	return head + s + tail
}

// escaped is the code unit of an escape of six characters; 0 if it is none.
func escaped(s string) rune {
	if !strings.HasPrefix(s, `\u`) {
		return 0
	}
	n, _ := strconv.ParseUint(s[2:], 16, 16)
	return rune(n)
}

func isHigh(r rune) bool { return 0xd800 <= r && r < 0xdc00 }
func isLow(r rune) bool  { return 0xdc00 <= r && r < 0xe000 }

// wobbly is a surrogate as UTF-8 would write it.
func wobbly(r rune) string { return string([]byte{0xed, 0x80 | byte(r>>6)&0x3f, 0x80 | byte(r)&0x3f}) }

// surrogate is the one that three bytes stand for; 0 if they are none.
func surrogate(s string) rune {
	if len(s) != 3 || s[0] != 0xed || s[1] < 0xa0 {
		return 0
	}
	return 0xd000 | rune(s[1]&0x3f)<<6 | rune(s[2]&0x3f)
}

// unfinished is how many bytes at the end of s are the beginning of a character.
func unfinished(s string) int {
	for n := 1; n <= min(3, len(s)); n++ {
		if end := s[len(s)-n:]; utf8.RuneStart(end[0]) {
			if !utf8.FullRuneInString(end) {
				return n
			}
			break
		}
	}
	return 0
}

// joiner puts characters together of which each piece brought a half.
type joiner struct {
	held string // a first half
}

// join is the piece with what was held before it, and without a first half at
// its end. It is valid UTF-8.
func (j *joiner) join(piece string) string {
	if j.held == "" && utf8.ValidString(piece) {
		return piece
	}
	held := j.held
	j.held = ""
	var whole string
	if high := surrogate(held); high != 0 && len(piece) >= 3 {
		if low := surrogate(piece[:3]); isLow(low) {
			whole, held, piece = string(utf16.DecodeRune(high, low)), "", piece[3:]
		}
	}
	piece = held + piece
	n := unfinished(piece)
	if len(piece) >= 3 && isHigh(surrogate(piece[len(piece)-3:])) {
		n = 3
	}
	piece, j.held = piece[:len(piece)-n], piece[len(piece)-n:]
	return whole + strings.ToValidUTF8(piece, replacement)
}

// rest is what stands for a half that nothing followed.
func (j *joiner) rest() string {
	if j.held == "" {
		return ""
	}
	j.held = ""
	return replacement
}
