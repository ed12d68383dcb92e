// Package extract summarises a text by picking its most central sentences, in
// the manner of LexRank: sentences are ranked by a random walk over their
// similarity, and the best are returned word for word in the order of the text.
//
// It is deterministic, needs no model and takes bounded time and memory
// whatever it is given.
package extract

import (
	"cmp"
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
	damping      = 0.85 // as in PageRank
	maxRounds    = 50   // the walk settles in about twenty
	settled      = 1e-6 // a round that moves the ranks by less than this is the last
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
	sims := similarities(cands)
	ranks := walk(sims)
	for i, s := range cands {
		if !terminated(s) {
			ranks[i] *= unterminated
		}
	}
	return strings.Join(pick(cands, ranks, sims, maxWords), "\n")
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

// matrix is a square matrix, row by row.
type matrix struct {
	n    int
	cell []float64
}

func (m matrix) at(i, j int) float64 { return m.cell[i*m.n+j] }

// similarities returns the cosine between every two sentences, their words
// weighted by how few sentences of this text have them.
func similarities(sentences []string) matrix {
	n := len(sentences)
	counts := make([]map[string]float64, n)
	having := map[string]float64{} // in how many sentences each word stands
	for i, s := range sentences {
		counts[i] = map[string]float64{}
		for _, w := range terms(s) {
			if counts[i][w] == 0 {
				having[w]++
			}
			counts[i][w]++
		}
	}
	type posting struct {
		sentence int
		weight   float64
	}
	postings := map[string][]posting{}
	norms := make([]float64, n)
	for i, c := range counts {
		for w, k := range c {
			postings[w] = append(postings[w], posting{i, k * math.Log(1+float64(n)/having[w])})
		}
	}
	m := matrix{n: n, cell: make([]float64, n*n)}
	// In the order of the words: a sum of floats depends on its order, and the
	// same text must always give the same summary.
	words := make([]string, 0, len(postings))
	for w := range postings {
		words = append(words, w)
	}
	slices.Sort(words)
	for _, w := range words {
		list := postings[w]
		for a := range list {
			norms[list[a].sentence] += list[a].weight * list[a].weight
			for b := range a {
				p, q := list[a], list[b]
				m.cell[p.sentence*n+q.sentence] += p.weight * q.weight
			}
		}
	}
	for i := range n {
		for j := range i {
			sum := m.cell[i*n+j] + m.cell[j*n+i]
			if sum > 0 {
				sum /= math.Sqrt(norms[i] * norms[j])
			}
			m.cell[i*n+j], m.cell[j*n+i] = sum, sum
		}
	}
	return m
}

// walk returns the rank of each sentence: the stationary distribution of a
// random walk along the similarities.
func walk(m matrix) []float64 {
	n := m.n
	totals := make([]float64, n)
	for i := range n {
		for j := range n {
			totals[i] += m.at(i, j)
		}
	}
	ranks, next := make([]float64, n), make([]float64, n)
	for i := range ranks {
		ranks[i] = 1 / float64(n)
	}
	for range maxRounds {
		var loose float64 // the share of those that resemble nobody
		for i, r := range ranks {
			if totals[i] == 0 {
				loose += r
			}
		}
		base := (1 - damping + damping*loose) / float64(n)
		for j := range next {
			next[j] = base
		}
		for i, r := range ranks {
			if totals[i] == 0 {
				continue
			}
			share := damping * r / totals[i]
			row := m.cell[i*n : (i+1)*n]
			for j, s := range row {
				next[j] += share * s
			}
		}
		var moved float64
		for i := range ranks {
			moved += math.Abs(next[i] - ranks[i])
		}
		ranks, next = next, ranks
		if moved < settled {
			break
		}
	}
	return ranks
}

// pick takes the best sentences that fit and do not repeat each other, and
// returns them in the order of the text.
func pick(sentences []string, ranks []float64, sims matrix, maxWords int) []string {
	order := make([]int, len(sentences))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(ranks[b], ranks[a]) })
	var taken []int
	left := maxWords
	for _, i := range order {
		n := CountWords(sentences[i])
		if n > left || slices.ContainsFunc(taken, func(t int) bool { return sims.at(i, t) > redundant }) {
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
// letters and digits only, three runes or more.
func terms(s string) []string {
	fields := strings.FieldsFunc(strings.ToLower(s), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
	out := fields[:0]
	for _, f := range fields {
		if len(f) >= 3 {
			out = append(out, f)
		}
	}
	return out
}

// CountWords returns how many words s has: runs of anything but white space.
func CountWords(s string) int {
	n := 0
	in := false
	for _, r := range s {
		space := unicode.IsSpace(r)
		if !space && !in {
			n++
		}
		in = !space
	}
	return n
}

// firstWords returns s up to the end of its n-th word.
func firstWords(s string, n int) string {
	in := false
	for i, r := range s {
		space := unicode.IsSpace(r)
		if space && in {
			if n--; n == 0 {
				return s[:i]
			}
		}
		in = !space
	}
	return s
}
