package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"leeway/broker"
	"leeway/broker/wire"
)

// result is a line of the results: what became of one document.
type result struct {
	Name    string        `json:"name"`
	Verdict *wire.Verdict `json:"verdict,omitempty"`
	Job     *broker.Job   `json:"job,omitempty"`
	// File is the answer's, in the folder of the results.
	File string `json:"file,omitempty"`
	// Error is why there is no job.
	Error string `json:"error,omitempty"`
}

// results is where answers go: a folder, with a file for each usable answer and
// results.jsonl beside them; a JSONL file; or the lines of the command itself.
type results struct {
	dir   string
	lines io.WriteCloser  // nil: none
	file  string          // that of the lines
	empty bool            // nothing was added
	taken map[string]bool // folded names of what is in dir
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
		f, err := create(path)
		return &results{lines: f, file: path, empty: true}, err
	}
	if err := os.MkdirAll(path, 0o750); err != nil {
		return nil, err
	}
	there, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	r := &results{dir: path, file: filepath.Join(path, "results.jsonl"), empty: true, taken: map[string]bool{}}
	for _, e := range there {
		r.taken[folded(e.Name())] = true
	}
	r.lines, err = create(r.file)
	return r, err
}

// create makes a file that is not there yet: nothing is overwritten.
func create(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("nothing is overwritten, give --out another place: %w", err)
	}
	return f, err
}

func (r *results) add(res *result) error {
	r.empty = false
	var kept error
	if r.dir != "" && res.Job != nil && res.Job.Answer != "" {
		res.File, kept = r.keep(res.Name, res.Job)
	}
	if r.lines == nil {
		return nil
	}
	return errors.Join(kept, printJSON(r.lines, res))
}

// keep writes an answer to a file of its own, and returns its name.
func (r *results) keep(name string, job *broker.Job) (string, error) {
	file := fileName(name, "")
	var f *os.File
	err := fs.ErrExist
	if len(file) <= maxFileName && !r.taken[folded(file)] {
		r.taken[folded(file)] = true
		f, err = create(filepath.Join(r.dir, file))
	}
	if errors.Is(err, fs.ErrExist) {
		file = fileName(name, job.ID)
		f, err = create(filepath.Join(r.dir, file))
	}
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(job.Answer + "\n")
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(f.Name()) // half an answer is none
		return "", err
	}
	return file, nil
}

func (r *results) close() error {
	if r.lines == nil {
		return nil
	}
	err := r.lines.Close()
	if r.empty { // the next attempt may have the place
		err = errors.Join(err, os.Remove(r.file))
	}
	return err
}

// folded is a file's name without regard to capitals and to how letters are
// composed: the folder may be, or come, where neither counts.
func folded(file string) string { return cases.Fold().String(norm.NFC.String(file)) }

const (
	answerExt = ".answer.txt"
	// maxFileName is the longest name that file systems take, in bytes.
	maxFileName = 255
)

// fileName is a document's name as that of its answer's file. / is written +, and
// what not every file system takes is its bytes as %2B: two names never become one.
// With a job's id that id is part of it, and what is too long is cut.
func fileName(name, jobID string) string {
	if name == "-" {
		name = "stdin"
	}
	var b strings.Builder
	for i, r := range name {
		_, size := utf8.DecodeRuneInString(name[i:])
		switch {
		case r == '/':
			b.WriteByte('+')
		case r == '.' && i == 0, r == utf8.RuneError && size == 1, !unicode.IsPrint(r), strings.ContainsRune(`+%~\:*?"<>|`, r):
			for _, c := range []byte(name[i : i+size]) {
				fmt.Fprintf(&b, "%%%02X", c)
			}
		default:
			b.WriteRune(r)
		}
	}
	file := b.String()
	if jobID == "" {
		return file + answerExt
	}
	mark := "~" + strings.TrimSuffix(fileName(jobID[:min(len(jobID), 64)], ""), answerExt) + answerExt
	return strings.ToValidUTF8(file[:min(len(file), max(maxFileName-len(mark), 0))], "") + mark
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
