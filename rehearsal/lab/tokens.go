package lab

import (
	"unicode"
	"unicode/utf8"
)

// tokenBytes is how many bytes of a word make one token.
const tokenBytes = 6

// CountTokens estimates how many tokens a model would make of s: one for each
// started six bytes of each word, white space going with the word after it.
// English prose gives about 1.3 tokens a word, as common tokenizers do. It is
// an estimate, not any tokenizer's count.
func CountTokens(s string) int {
	n := 0
	for len(s) > 0 {
		s = s[nextToken(s):]
		n++
	}
	return n
}

// SplitTokens cuts s into the pieces that [CountTokens] counts, at most limit
// of them unless limit is negative. All pieces together are s, and valid UTF-8
// is never cut inside a character.
func SplitTokens(s string, limit int) []string {
	var out []string
	for len(s) > 0 && (limit < 0 || len(out) < limit) {
		n := nextToken(s)
		out = append(out, s[:n])
		s = s[n:]
	}
	return out
}

// nextToken returns the length of the first token of s, which is not empty.
func nextToken(s string) int {
	spaces, letters := 0, 0 // in bytes
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if unicode.IsSpace(r) {
			if letters > 0 || spaces >= tokenBytes {
				return i
			}
			spaces += size
		} else {
			if letters >= tokenBytes {
				return i
			}
			letters += size
		}
		i += size
	}
	return len(s)
}
