package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"leeway/broker"
	"leeway/broker/wire"
)

// result is a line of the results: what became of one document.
type result struct {
	Name    string        `json:"name"`
	Verdict *wire.Verdict `json:"verdict,omitempty"`
	Job     *broker.Job   `json:"job,omitempty"`
	// Error is why there is no job.
	Error string `json:"error,omitempty"`
}

// results is where answers go: a folder, with a file for each usable answer and
// results.jsonl beside them; a JSONL file; or the lines of the command itself.
type results struct {
	dir   string
	lines io.WriteCloser // nil: none
}

type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }

func openResults(path string, stdout io.Writer) (*results, error) {
	switch {
	case path == "":
		return &results{}, nil
	case path == "-":
		return &results{lines: keepOpen{stdout}}, nil
	case isJSONL(path):
		f, err := os.Create(path)
		return &results{lines: f}, err
	}
	if err := os.MkdirAll(path, 0o750); err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(path, "results.jsonl"))
	return &results{dir: path, lines: f}, err
}

func (r *results) add(res *result) error {
	if r.dir != "" && res.Job != nil && res.Job.Answer != "" {
		if err := os.WriteFile(filepath.Join(r.dir, fileName(res.Name)), []byte(res.Job.Answer+"\n"), 0o600); err != nil {
			return err
		}
	}
	if r.lines == nil {
		return nil
	}
	return printJSON(r.lines, res)
}

func (r *results) close() error {
	if r.lines == nil {
		return nil
	}
	return r.lines.Close()
}

// fileName is a document's name as that of one file: its folders' names stay in
// it, so that two documents of the same name in two folders have two answers.
func fileName(name string) string {
	name = strings.TrimLeft(filepath.ToSlash(filepath.Clean(name)), "./")
	name = strings.NewReplacer("/", "_", ":", "_", "\x00", "_").Replace(name)
	if name == "" || name == "-" {
		name = "stdin"
	}
	if len(name) > 200 {
		name = name[len(name)-200:]
	}
	return name + ".answer.txt"
}

// counts are how many documents came to what.
type counts struct {
	offered, admitted, usable, missed, refused, failed int
}

func (t *counts) line() string {
	return fmt.Sprintf("%d offered, %d admitted, %d usable, %d missed, %d refused, %d failed", t.offered, t.admitted, t.usable, t.missed, t.refused, t.failed)
}

// progress shows how many of the documents known by now are done with, and how.
func (t *counts) progress() string {
	const width = 20
	done := t.usable + t.missed + t.refused + t.failed
	full := 0
	if t.offered > 0 {
		full = width * done / t.offered
	}
	return fmt.Sprintf("[%s%s] %d of %d: %d usable, %d missed, %d refused, %d failed",
		strings.Repeat("#", full), strings.Repeat(".", width-full), done, t.offered, t.usable, t.missed, t.refused, t.failed)
}

// Exit codes of submit, beside 0 for nothing but usable answers.
const (
	exitFailed  = 1 // something could not be submitted or read
	exitMissed  = 3 // a job that was admitted has no usable answer
	exitRefused = 4 // the gate refused a job, and that was the worst
)

func (t *counts) exit() error {
	switch {
	case t.failed > 0:
		return exitError(exitFailed)
	case t.missed > 0:
		return exitError(exitMissed)
	case t.refused > 0:
		return exitError(exitRefused)
	}
	return nil
}
