// Package corpus ships real, licence-clean documents for the demo, the drills
// and the tests to summarise.
package corpus

import (
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
)

//go:embed manifest.jsonl texts/*.txt
var files embed.FS

// Document is one text with what manifest.jsonl says about it.
type Document struct {
	Name    string `json:"name"` // the file's name without ".txt"; unique
	Text    string `json:"-"`    // UTF-8, 4 to 16 KB
	Source  string `json:"source"`
	Path    string `json:"path"`    // in the source
	Licence string `json:"licence"` // as the source states it
	Bytes   int    `json:"bytes"`
	SHA256  string `json:"sha256"`
	Changes string `json:"changes"` // that were made to the source's text
}

// Documents returns every document, ordered by name. The slice is the
// caller's to keep.
func Documents() []Document { return slices.Clone(load()) }

// load panics on a broken manifest: it is compiled in, and the package's test
// reads all of it.
var load = sync.OnceValue(func() []Document {
	docs, err := read()
	if err != nil {
		panic(fmt.Sprintf("corpus: %v", err))
	}
	return docs
})

// read decodes the manifest strictly and reads the texts it lists.
func read() ([]Document, error) {
	manifest, err := files.Open("manifest.jsonl")
	if err != nil {
		return nil, err
	}
	defer func() { _ = manifest.Close() }()
	dec := json.NewDecoder(manifest)
	dec.DisallowUnknownFields()
	var docs []Document
	for dec.More() {
		var d Document
		if err := dec.Decode(&d); err != nil {
			return nil, fmt.Errorf("manifest.jsonl, document %d: %w", len(docs)+1, err)
		}
		text, err := files.ReadFile("texts/" + d.Name + ".txt")
		if err != nil {
			return nil, err
		}
		d.Text = string(text)
		docs = append(docs, d)
	}
	slices.SortFunc(docs, func(a, b Document) int { return strings.Compare(a.Name, b.Name) })
	return docs, nil
}
