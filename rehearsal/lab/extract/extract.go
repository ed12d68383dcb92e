// Package extract summarises a text by picking its most central sentences, as
// LexRank does with degree centrality: a sentence ranks by its similarity to
// all others together, and the best are returned word for word in the order of
// the text.
//
// It is deterministic, needs no model and takes bounded time and memory
// whatever it is given.
package extract

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode"
)

// The bounds that keep the cost of a summary constant for large texts.
const (
	// MaxTextBytes is how much of a text is read; the rest is ignored.
	MaxTextBytes = 1 << 20
	// MaxSentences is how many sentences are ranked. Of a longer text, this many
	// are taken at even distances.
	MaxSentences = 256
	// MaxSentenceBytes is the longest run of text taken as one sentence; a
	// longer one is no candidate unless the text has nothing shorter.
	MaxSentenceBytes = 1000
)

const (
	minWords     = 5    // shorter sentences are headings and labels more often than not
	redundant    = 0.55 // a sentence this similar to one already taken says it twice
	unterminated = 0.4  // weight of a candidate without a full stop: mostly list items
)

// Summary returns the most central sentences of text, at most maxWords words
// in all, one sentence a line in the order in which they stand in the text.
// Each is a sentence of the text word for word; only runs of white space in it
// are folded to one space (see [Fold]).
//
// A text without a sentence of fitting length gives the beginning of its first
// one, cut after maxWords words. The result is empty only if the text has no
// words or maxWords is not positive.
func Summary(text string, maxWords int) string {
	if maxWords <= 0 {
		return ""
	}
	all := Sentences(text)
	cands := candidates(all, maxWords)
	if len(cands) == 0 {
		if len(all) == 0 {
			return ""
		}
		return firstWords(all[0], maxWords)
	}
	cands = spread(cands, MaxSentences)
	return strings.Join(pick(cands, similarities(cands), maxWords), "\n")
}

// candidates returns the sentences worth ranking. It asks for less when the
// text offers no better.
func candidates(all []string, maxWords int) []string {
	for _, least := range [...]int{minWords, 1} {
		var out []string
		seen := make(map[string]bool, len(all))
		for _, s := range all {
			n := CountWords(s)
			if n < least || n > maxWords || len(s) > MaxSentenceBytes || seen[s] {
				continue
			}
			seen[s] = true
			out = append(out, s)
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

// spread returns at most n of the items, at even distances.
func spread(items []string, n int) []string {
	if len(items) <= n {
		return items
	}
	out := make([]string, n)
	for i := range out {
		out[i] = items[i*len(items)/n]
	}
	return out
}

// similarities returns the cosine between every two sentences, their words
// weighted by how few sentences of this text have them; 0 between a sentence
// and itself.
func similarities(sentences []string) [][]float64 {
	type posting struct {
		sentence int
		count    float64
	}
	postings := map[string][]posting{} // by word, in the order of the sentences
	for i, s := range sentences {
		for _, w := range terms(s) {
			list := postings[w]
			if last := len(list) - 1; last >= 0 && list[last].sentence == i {
				list[last].count++
			} else {
				postings[w] = append(list, posting{i, 1})
			}
		}
	}
	sims := make([][]float64, len(sentences))
	for i := range sims {
		sims[i] = make([]float64, len(sentences))
	}
	// In the order of the words: a sum of floats depends on its order, and the
	// same text must always give the same summary.
	for _, w := range slices.Sorted(maps.Keys(postings)) {
		list := postings[w]
		rarity := math.Log(1 + float64(len(sentences))/float64(len(list)))
		for i, p := range list {
			for _, q := range list[:i+1] {
				sims[p.sentence][q.sentence] += p.count * q.count * rarity * rarity
			}
		}
	}
	for i, row := range sims { // so far the products below the diagonal, and on it the squares
		for j := range i {
			if row[j] > 0 {
				row[j] /= math.Sqrt(row[i] * sims[j][j])
			}
			sims[j][i] = row[j]
		}
	}
	for i := range sims {
		sims[i][i] = 0
	}
	return sims
}

// pick takes the most central sentences that fit and do not repeat each other,
// and returns them in the order of the text.
func pick(sentences []string, sims [][]float64, maxWords int) []string {
	ranks, order := make([]float64, len(sentences)), make([]int, len(sentences))
	for i, s := range sentences {
		order[i] = i
		for _, sim := range sims[i] {
			ranks[i] += sim
		}
		if !terminated(s) {
			ranks[i] *= unterminated
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(ranks[b], ranks[a]) })
	var taken []int
	left := maxWords
	for _, i := range order {
		n := CountWords(sentences[i])
		if n > left || slices.ContainsFunc(taken, func(t int) bool { return sims[i][t] > redundant }) {
			continue
		}
		taken = append(taken, i)
		left -= n
	}
	slices.Sort(taken)
	out := make([]string, len(taken))
	for k, i := range taken {
		out[k] = sentences[i]
	}
	return out
}

// terms returns the words of a sentence as they are compared: lower case,
// letters and digits only, three bytes or more.
func terms(s string) []string {
	words := strings.FieldsFunc(strings.ToLower(s), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
	return slices.DeleteFunc(words, func(w string) bool { return len(w) < 3 })
}

// CountWords returns how many words s has: runs of anything but white space.
func CountWords(s string) int { return len(strings.Fields(s)) }

// firstWords returns the first n words of s, which is folded.
func firstWords(s string, n int) string {
	words := strings.Fields(s)
	return strings.Join(words[:min(n, len(words))], " ")
}
