// Package docs_test holds the pages of this folder against the source.
package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"leeway/rehearsal/lab"
)

// named is a test as a page names it: its folder and its name.
var named = regexp.MustCompile("`([a-z0-9/]+) ((?:Test|Fuzz)[A-Za-z0-9]+)(?:/([^`]+))?`")

// TestFaultsAreTested holds that each row of the faults page names tests, that
// each of them exists, and that each fault the lab plays has its row.
func TestFaultsAreTested(t *testing.T) {
	page, err := os.ReadFile("faults.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{}
	for _, m := range named.FindAllStringSubmatch(string(page), -1) {
		dir, name, sub := m[1], m[2], m[3]
		if _, ok := sources[dir]; !ok {
			sources[dir] = tests(t, filepath.Join("..", dir))
		}
		if !strings.Contains(sources[dir], "\nfunc "+name+"(") {
			t.Errorf("%s has no %s", dir, name)
		}
		// A sub-test has its name from a table.
		if sub != "" && !strings.Contains(sources[dir], `"`+sub+`"`) {
			t.Errorf("%s has nothing of the name %q for %s", dir, sub, name)
		}
	}
	rows := 0
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| fault ") || strings.HasPrefix(line, "| ---") {
			continue
		}
		rows++
		if !named.MatchString(line) {
			t.Errorf("no test in %s", line)
		}
	}
	if rows < 50 {
		t.Errorf("%d rows", rows)
	}
	for _, k := range lab.FaultKinds() {
		if !strings.Contains(string(page), "\n| `"+k.Name+"` |") {
			t.Errorf("the lab plays %s, and no row says what becomes of it", k.Name)
		}
	}
}

// tests is the source of a folder's tests.
func tests(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no tests: %v", dir, err)
	}
	var all strings.Builder
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(raw)
	}
	return all.String()
}
