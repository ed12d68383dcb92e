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
func CountTokens(s string) int { return len(splitTokens(s)) }

// splitTokens cuts s into the pieces that [CountTokens] counts. All pieces
// together are s, and valid UTF-8 is never cut inside a character.
func splitTokens(s string) []string {
	var out []string
	start, spaces, letters := 0, 0, 0 // of the token that begins at start, in bytes
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		space := unicode.IsSpace(r)
		if letters >= tokenBytes || space && (letters > 0 || spaces >= tokenBytes) {
			out = append(out, s[start:i])
			start, spaces, letters = i, 0, 0
		}
		if space {
			spaces += size
		} else {
			letters += size
		}
		i += size
	}
	if start < len(s) {
		out = append(out, s[start:])
	}
	return out
}
