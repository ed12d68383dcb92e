package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/htmlindex"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"

	"leeway/broker/client"
	"leeway/broker/wire"
)

// maxDocument bounds one document, or one line of JSONL, in bytes.
const maxDocument = 16 << 20

// document is one thing to submit.
type document struct {
	// name tells it from others: its custom_id, or its place.
	name    string
	place   string // where it stands: a file, or a line of one
	job     client.Job
	verdict *wire.Verdict // of an admitted one
}

// input is what there is to submit.
type input struct {
	jsonl bool // whatever the files are called
	// encoding is the files', where they have no byte order mark; nil: UTF-8.
	encoding encoding.Encoding
	out      string // where answers go: no input
	// yield is given the documents; its error ends the reading.
	yield func(document) error
	// fail is told what should be submitted and cannot be read, and leave what is
	// not to be submitted.
	fail  func(name string, err error)
	leave func(name, why string)
}

// encodingOf is the encoding of a name, as browsers know them; nil for UTF-8.
func encodingOf(name string) (encoding.Encoding, error) {
	e, err := htmlindex.Get(cmp.Or(name, "utf-8"))
	switch {
	case err != nil:
		return nil, fmt.Errorf("--encoding %q: no such encoding: want utf-16, latin1, windows-1252, shift_jis or another that browsers know", name)
	case e == unicode.UTF8:
		return nil, nil //nolint:nilnil // the usual one
	}
	return e, nil
}

// expand resolves arguments: files and folders stand for themselves, patterns for
// what fits them, and - for standard input.
func expand(args []string) ([]string, error) {
	var paths []string
	for _, arg := range args {
		if _, err := os.Stat(arg); arg == "-" || err == nil {
			paths = append(paths, arg)
			continue
		}
		fit, err := filepath.Glob(arg)
		if err != nil || len(fit) == 0 {
			return nil, fmt.Errorf("%s: no such file or folder, and no file fits it as a pattern", arg)
		}
		paths = append(paths, fit...)
	}
	return paths, nil
}

// read reads files, folders (everything below them but what is hidden) and
// standard input, one after the other. .jsonl and .ndjson files hold one
// submission a line; all else is text.
func (in *input) read(ctx context.Context, paths []string, stdin io.Reader) error {
	out, _ := os.Stat(in.out)
	for _, p := range paths {
		if p == "-" {
			if err := in.readInput("-", stdin, in.jsonl); err != nil {
				return err
			}
			continue
		}
		if i, err := os.Stat(p); err == nil && i.IsDir() {
			p += "/" // what a link leads to, if it is one that was asked for
		}
		err := filepath.WalkDir(p, func(path string, d fs.DirEntry, err error) error {
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil:
				in.fail(path, err)
				return nil
			case path == p && !d.IsDir(): // whatever it is, it was asked for
			case path != p && strings.HasPrefix(d.Name(), "."):
				return in.skip(path, d, "is hidden")
			case d.IsDir() || d.Type().IsRegular():
				if i, err := d.Info(); out != nil && err == nil && os.SameFile(i, out) {
					return in.skip(path, d, "is where answers go")
				}
				if d.IsDir() {
					return nil
				}
			case d.Type()&fs.ModeSymlink != 0:
				in.fail(path, errors.New("is a link: name what it leads to"))
				return nil
			default:
				in.fail(path, errors.New("is no regular file"))
				return nil
			}
			f, err := os.Open(path) //nolint:gosec // the files are those of who runs the command
			if err != nil {
				in.fail(path, err)
				return nil
			}
			defer func() { _ = f.Close() }()
			return in.readInput(path, f, in.jsonl || isJSONL(path))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// skip leaves out a file, or a folder with all that is in it.
func (in *input) skip(path string, d fs.DirEntry, why string) error {
	in.leave(path, why)
	if d.IsDir() {
		return fs.SkipDir
	}
	return nil
}

func isJSONL(path string) bool {
	ext := strings.ToLower(filepath.Ext(path))
	return ext == ".jsonl" || ext == ".ndjson"
}

// byteOrderMark may stand before a text in UTF-8, and is no part of it.
const byteOrderMark = "\ufeff"

func (in *input) readInput(name string, r io.Reader, jsonl bool) error {
	text := bufio.NewReader(r)
	head, _ := text.Peek(len(byteOrderMark)) // its error comes again
	switch {
	case in.encoding != nil: // a mark overrides it
		text = bufio.NewReader(transform.NewReader(text, unicode.BOMOverride(in.encoding.NewDecoder())))
	case string(head) == byteOrderMark:
		_, _ = text.Discard(len(head))
	case bytes.HasPrefix(head, []byte("\xff\xfe")) || bytes.HasPrefix(head, []byte("\xfe\xff")):
		in.fail(name, errors.New("is UTF-16, not UTF-8: --encoding utf-16 reads it"))
		return nil
	}
	if jsonl {
		return in.readLines(name, text)
	}
	raw, err := io.ReadAll(io.LimitReader(text, maxDocument+1))
	if err == nil && len(raw) > maxDocument {
		err = fmt.Errorf("is larger than %d bytes: split it", maxDocument)
	}
	if err == nil {
		err = in.check(raw)
	}
	if err != nil {
		in.fail(name, err)
		return nil
	}
	return in.yield(document{name: name, place: name, job: client.Job{Text: string(raw)}})
}

// check says why a text is none: nothing is submitted that was not meant so.
func (in *input) check(text []byte) error {
	switch {
	case bytes.IndexByte(text, 0) >= 0:
		return errors.New("is binary, not text; or UTF-16, which --encoding utf-16 reads")
	case bytes.HasPrefix(text, []byte("%PDF-")):
		return errors.New("is a PDF, not text")
	case in.encoding != nil && bytes.ContainsRune(text, utf8.RuneError):
		return errors.New("is not in the encoding that --encoding or its byte order mark says")
	}
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && size == 1 {
			return fmt.Errorf("is not UTF-8 at byte %d: --encoding says what it is, for example latin1", at)
		}
		at += size
	}
	return nil
}

func (in *input) readLines(name string, lines *bufio.Reader) error {
	for n := 1; ; n++ {
		place := name + ":" + strconv.Itoa(n)
		raw, tooLong, err := readLine(lines)
		last := err != nil
		raw = bytes.TrimSpace(bytes.TrimPrefix(raw, []byte(byteOrderMark))) // of the second of two files in one, too
		switch {
		case last && !errors.Is(err, io.EOF):
			in.fail(place, err)
		case tooLong:
			in.fail(place, fmt.Errorf("the line is longer than %d bytes", maxDocument))
		case len(raw) > 0:
			job, err := in.line(raw)
			if err != nil {
				in.fail(place, err)
			} else if err := in.yield(document{name: cmp.Or(job.CustomID, place), place: place, job: job}); err != nil {
				return err
			}
		}
		if last {
			return nil //nolint:nilerr // said above, or the end
		}
	}
}

// line reads a line of JSONL as strictly as the API does.
func (in *input) line(raw []byte) (job client.Job, err error) {
	if err := in.check(raw); err != nil {
		return job, err
	}
	if raw[0] == '"' {
		err = json.Unmarshal(raw, &job.Text)
	} else {
		err = json.Unmarshal(raw, &job, json.RejectUnknownMembers(true))
	}
	if err != nil {
		err = fmt.Errorf("want a JSON object with text, or a text in quotes: %w", err)
	}
	return job, err
}

// readLine reads up to the next newline; a line that is too long is read to its
// end and forgotten. io.EOF comes with the last line.
func readLine(r *bufio.Reader) (line []byte, tooLong bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if tooLong = tooLong || len(line)+len(part) > maxDocument; tooLong {
			line = nil
		} else {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, tooLong, err
		}
	}
}
