package corpus

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestManifestMatchesTexts(t *testing.T) {
	entries, err := manifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) < 32 {
		t.Errorf("%d documents, want at least 32", len(entries))
	}
	listed := map[string]bool{}
	sources := map[string]int{}
	for _, e := range entries {
		if listed[e.Name+".txt"] {
			t.Errorf("%s is listed twice", e.Name)
		}
		listed[e.Name+".txt"] = true
		sources[e.Source]++
		text, err := files.ReadFile("texts/" + e.Name + ".txt")
		if err != nil {
			t.Error(err)
			continue
		}
		sum := sha256.Sum256(text)
		if got := hex.EncodeToString(sum[:]); got != e.SHA256 {
			t.Errorf("%s: sha256 %s, manifest says %s", e.Name, got, e.SHA256)
		}
		if len(text) != e.Bytes || len(text) < 4000 || len(text) > 16384 {
			t.Errorf("%s: %d bytes, manifest says %d; want 4 to 16 KB", e.Name, len(text), e.Bytes)
		}
		if !utf8.Valid(text) {
			t.Errorf("%s is not UTF-8", e.Name)
		}
		if e.Path == "" || e.Licence == "" || e.Changes == "" {
			t.Errorf("%s: path, licence and changes must all be stated", e.Name)
		}
	}
	if len(sources) != 2 {
		t.Errorf("sources %v, want two", sources)
	}
	dir, err := files.ReadDir("texts")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range dir {
		if !listed[f.Name()] {
			t.Errorf("texts/%s is not in the manifest", f.Name())
		}
	}
}

func TestDocuments(t *testing.T) {
	docs := Documents()
	entries, err := manifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(docs) != len(entries) {
		t.Fatalf("%d documents, %d in the manifest", len(docs), len(entries))
	}
	for i, d := range docs {
		if i > 0 && docs[i-1].Name >= d.Name {
			t.Errorf("%s stands before %s", docs[i-1].Name, d.Name)
		}
		if d.Text == "" || !strings.HasPrefix(d.Source, "github.com/") || d.Licence == "" {
			t.Errorf("%s is not filled in: source %q, licence %q", d.Name, d.Source, d.Licence)
		}
	}
	// A caller that changes its copy changes nobody else's.
	name := docs[0].Name
	docs[0].Name = "changed"
	if got := Documents()[0].Name; got != name {
		t.Errorf("first document is now %q", got)
	}
}

func TestREADMEStatesTermsOfEverySource(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := manifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		repo, commit, ok := strings.Cut(e.Source, "@")
		if !ok || !strings.Contains(string(readme), repo) || !strings.Contains(string(readme), commit) {
			t.Errorf("README.md does not state %s", e.Source)
		}
	}
	if !strings.Contains(string(readme), NISTAttribution) {
		t.Error("README.md lacks the attribution NIST asks for")
	}
}
