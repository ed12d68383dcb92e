// Package corpus ships real, licence-clean documents for the demo, the drills
// and the tests to summarise.
package corpus

import (
	"bufio"
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
)

// NISTAttribution is the line that NIST asks for where its texts (those whose
// name begins with "nist-") are shown.
const NISTAttribution = "Republished courtesy of the National Institute of Standards and Technology"

//go:embed manifest.jsonl texts/*.txt
var files embed.FS

// Document is one text with where it came from.
type Document struct {
	Name    string // the file's name without ".txt"; unique
	Text    string // UTF-8, 4 to 16 KB
	Source  string // repository@commit:path
	Licence string // as the repository states it
}

// entry is one line of manifest.jsonl.
type entry struct {
	Name    string `json:"name"`
	Source  string `json:"source"`
	Path    string `json:"path"`
	Licence string `json:"licence"`
	Bytes   int    `json:"bytes"`
	SHA256  string `json:"sha256"`
	Changes string `json:"changes"`
}

// Documents returns every document, ordered by name. The slice is the
// caller's to keep.
func Documents() []Document { return slices.Clone(load()) }

// load panics on a broken manifest: it is compiled in, and the package's test
// reads all of it.
var load = sync.OnceValue(func() []Document {
	entries, err := manifest()
	if err != nil {
		panic(fmt.Sprintf("corpus: %v", err))
	}
	docs := make([]Document, 0, len(entries))
	for _, e := range entries {
		text, err := files.ReadFile(path.Join("texts", e.Name+".txt"))
		if err != nil {
			panic(fmt.Sprintf("corpus: %v", err))
		}
		docs = append(docs, Document{
			Name:    e.Name,
			Text:    string(text),
			Source:  e.Source + ":" + e.Path,
			Licence: e.Licence,
		})
	}
	slices.SortFunc(docs, func(a, b Document) int { return strings.Compare(a.Name, b.Name) })
	return docs
})

// manifest decodes the shipped manifest strictly.
func manifest() ([]entry, error) {
	raw, err := files.ReadFile("manifest.jsonl")
	if err != nil {
		return nil, err
	}
	var entries []entry
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for n := 1; lines.Scan(); n++ {
		dec := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		dec.DisallowUnknownFields()
		var e entry
		if err := dec.Decode(&e); err != nil {
			return nil, fmt.Errorf("manifest.jsonl line %d: %w", n, err)
		}
		entries = append(entries, e)
	}
	return entries, lines.Err()
}
