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
	docs := Documents()
	if len(docs) < 32 {
		t.Errorf("%d documents, want at least 32", len(docs))
	}
	listed := map[string]bool{}
	sources := map[string]int{}
	for _, d := range docs {
		if listed[d.Name+".txt"] {
			t.Errorf("%s is listed twice", d.Name)
		}
		listed[d.Name+".txt"] = true
		sources[d.Source]++
		sum := sha256.Sum256([]byte(d.Text))
		if got := hex.EncodeToString(sum[:]); got != d.SHA256 {
			t.Errorf("%s: sha256 %s, manifest says %s", d.Name, got, d.SHA256)
		}
		if n := len(d.Text); n != d.Bytes || n < 4000 || n > 16384 {
			t.Errorf("%s: %d bytes, manifest says %d; want 4 to 16 KB", d.Name, n, d.Bytes)
		}
		if !utf8.ValidString(d.Text) {
			t.Errorf("%s is not UTF-8", d.Name)
		}
		if !strings.HasPrefix(d.Source, "github.com/") || d.Path == "" || d.Licence == "" || d.Changes == "" {
			t.Errorf("%s: source, path, licence and changes must all be stated: %q, %q, %q, %q", d.Name, d.Source, d.Path, d.Licence, d.Changes)
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

func TestDocumentsAreOrderedAndTheCallersToKeep(t *testing.T) {
	docs := Documents()
	for i := range docs[1:] {
		if docs[i].Name >= docs[i+1].Name {
			t.Errorf("%s stands before %s", docs[i].Name, docs[i+1].Name)
		}
	}
	// A caller that changes its copy changes nobody else's.
	name := docs[0].Name
	docs[0].Name = "changed"
	if got := Documents()[0].Name; got != name {
		t.Errorf("first document is now %q", got)
	}
}

// nistAttribution is the line that NIST asks for where its texts are shown.
const nistAttribution = "Republished courtesy of the National Institute of Standards and Technology"

func TestREADMEStatesTermsOfEverySource(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range Documents() {
		repo, commit, ok := strings.Cut(d.Source, "@")
		if !ok || !strings.Contains(string(readme), repo) || !strings.Contains(string(readme), commit) {
			t.Errorf("README.md does not state %s", d.Source)
		}
	}
	if !strings.Contains(string(readme), nistAttribution) {
		t.Error("README.md lacks the attribution NIST asks for")
	}
}
