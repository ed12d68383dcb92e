package extract

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Fold returns s without white space at its ends and with every run of white
// space inside it as a single space. It is how a sentence of a summary is
// compared with its text: strings.Contains(Fold(text), sentence).
func Fold(s string) string { return strings.Join(strings.Fields(s), " ") }

// Sentences returns the sentences of a plain or Markdown text, folded (see
// [Fold]), in order. Headings, tables and fenced code are left out; a list item
// stands without its marker. A text with nothing else is split regardless of
// what it is. Bytes after [MaxTextBytes] are ignored and invalid UTF-8 is
// replaced by U+FFFD.
func Sentences(text string) []string {
	if len(text) > MaxTextBytes {
		cut := MaxTextBytes
		for cut > 0 && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut]
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	var out []string
	for _, block := range blocks(text) {
		out = split(out, block)
	}
	if len(out) == 0 {
		out = split(out, Fold(text))
	}
	return out
}

// blocks returns the paragraphs and list items of a text, each folded.
func blocks(text string) []string {
	var out []string
	var para []string
	flush := func() {
		if len(para) > 0 {
			out = append(out, Fold(strings.Join(para, " ")))
			para = nil
		}
	}
	fenced := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") || strings.HasPrefix(line, "~~~") {
			flush()
			fenced = !fenced
			continue
		}
		switch {
		case fenced:
		case line == "", line[0] == '#', line[0] == '|', rule(line):
			flush()
		default:
			if item := listItem.FindStringSubmatch(line); item != nil {
				flush()
				line = strings.TrimSpace(item[1])
			}
			line = strings.TrimLeft(line, "> ")
			if line != "" {
				para = append(para, line)
			}
		}
	}
	flush()
	return out
}

// rule reports whether a line only draws a line.
func rule(line string) bool {
	return len(line) >= 3 && strings.Trim(line, "-=*_ ") == ""
}

// listItem matches a list item and captures its text without the marker.
var listItem = regexp.MustCompile(`^(?:[-*+]|[0-9]{1,4}[.)]) (.*)`)

// split appends the sentences of one folded block to out.
func split(out []string, block string) []string {
	start := 0
	for i, r := range block {
		if i < start || !isStop(r) {
			continue
		}
		end := i + utf8.RuneLen(r)
		for end < len(block) { // closing quotes and brackets belong to the sentence
			c, size := utf8.DecodeRuneInString(block[end:])
			if !isStop(c) && !strings.ContainsRune("\"')]”’*_", c) {
				break
			}
			end += size
		}
		if end < len(block) && !isWide(r) && (block[end] != ' ' || !starts(block[start:end], block[end+1:])) {
			continue
		}
		out = add(out, block[start:end])
		start = end
	}
	return add(out, block[start:])
}

func add(out []string, s string) []string {
	s = strings.TrimSpace(s)
	if strings.IndexFunc(s, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) < 0 {
		return out
	}
	return append(out, s)
}

func isStop(r rune) bool { return r == '.' || r == '!' || r == '?' || isWide(r) }

// isWide reports whether r ends a sentence in a script that puts no space after
// it.
func isWide(r rune) bool { return r == '。' || r == '！' || r == '？' || r == '．' }

// terminated reports whether s ends as a sentence does.
func terminated(s string) bool {
	r, _ := utf8.DecodeLastRuneInString(strings.TrimRight(s, "\"')]”’*_"))
	return isStop(r)
}

// abbreviations are those after which a capital letter is likely to follow
// inside the sentence.
var abbreviations = map[string]bool{
	"mr.": true, "mrs.": true, "ms.": true, "dr.": true, "prof.": true, "st.": true, "vs.": true, "e.g.": true,
	"i.e.": true, "etc.": true, "cf.": true, "fig.": true, "no.": true, "sec.": true, "inc.": true, "u.s.": true,
}

// starts reports whether rest begins a new sentence after done, which ends in
// a stop followed by a space.
func starts(done, rest string) bool {
	first, _ := utf8.DecodeRuneInString(strings.TrimLeft(rest, "\"'([“‘*_`"))
	if unicode.IsLower(first) {
		return false
	}
	word := done[strings.LastIndexByte(done, ' ')+1:]
	word = strings.ToLower(strings.TrimLeft(word, "\"'([“‘*_"))
	initial := len(word) == 2 && word[1] == '.' && word[0] >= 'a' && word[0] <= 'z' && word != "i." // as in "J. Smith"
	return !initial && !abbreviations[word]
}
