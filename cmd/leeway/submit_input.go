package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"leeway/broker/client"
	"leeway/broker/wire"
)

// maxDocument bounds one document, or one line of JSONL, in bytes.
const maxDocument = 16 << 20

// document is one thing to submit.
type document struct {
	// name tells it from others: a file, or a line of one.
	name    string
	job     client.Job
	verdict *wire.Verdict // of an admitted one
}

// documents yields what the arguments name, one after the other: files, folders
// (everything below them but what is hidden), globs, or - for standard input.
// .jsonl and .ndjson files hold one submission a line; all else is text.
func documents(ctx context.Context, args []string, stdin io.Reader, jsonl bool, yield func(document) error) error {
	for _, arg := range args {
		if arg == "-" {
			if err := readInput("-", stdin, jsonl, yield); err != nil {
				return err
			}
			continue
		}
		paths := []string{arg}
		if _, err := os.Stat(arg); err != nil {
			if paths, err = filepath.Glob(arg); err != nil || len(paths) == 0 {
				return fmt.Errorf("%s: no such file or folder, and no file fits it as a pattern", arg)
			}
		}
		for _, p := range paths {
			err := filepath.WalkDir(p, func(path string, d fs.DirEntry, err error) error {
				switch {
				case err != nil:
					return err
				case ctx.Err() != nil:
					return ctx.Err()
				case path != p && strings.HasPrefix(d.Name(), "."):
					if d.IsDir() {
						return fs.SkipDir
					}
					return nil
				case d.IsDir() || !d.Type().IsRegular() && path != p:
					return nil
				}
				f, err := os.Open(path) //nolint:gosec // the files are those of who runs the command
				if err != nil {
					return err
				}
				defer func() { _ = f.Close() }()
				return readInput(path, f, jsonl || isJSONL(path), yield)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func isJSONL(path string) bool {
	ext := strings.ToLower(filepath.Ext(path))
	return ext == ".jsonl" || ext == ".ndjson"
}

func readInput(name string, r io.Reader, jsonl bool, yield func(document) error) error {
	if jsonl {
		return readJSONL(name, r, yield)
	}
	raw, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	if err != nil {
		return err
	}
	if len(raw) > maxDocument {
		return fmt.Errorf("%s: is larger than %d bytes: split it", name, maxDocument)
	}
	return yield(document{name: name, job: client.Job{Text: string(raw)}})
}

func readJSONL(name string, r io.Reader, yield func(document) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxDocument)
	n := 0
	for lines.Scan() {
		n++
		raw := bytes.TrimSpace(lines.Bytes())
		if len(raw) == 0 {
			continue
		}
		var l client.Job
		var err error
		if raw[0] == '"' {
			err = json.Unmarshal(raw, &l.Text)
		} else {
			dec := json.NewDecoder(bytes.NewReader(raw))
			dec.DisallowUnknownFields()
			err = dec.Decode(&l)
		}
		if err != nil {
			return fmt.Errorf("%s:%d: want a JSON object with text, or a text in quotes: %w", name, n, err)
		}
		d := document{name: name + ":" + strconv.Itoa(n), job: l}
		if l.CustomID != "" {
			d.name = l.CustomID
		}
		if err := yield(d); err != nil {
			return err
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("%s:%d: the line is longer than %d bytes", name, n+1, maxDocument)
	} else if err != nil {
		return err
	}
	return nil
}
