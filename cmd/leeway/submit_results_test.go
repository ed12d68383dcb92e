package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"leeway/broker"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// added are results of each kind.
var added = []*result{
	{Name: "sub/a.txt", Job: &broker.Job{ID: "j1", State: broker.StateDone, Path: slackgate.Paid, Outcome: broker.OutcomeUsable, Answer: "a < b"}},
	{Name: "b", Job: &broker.Job{ID: "j2", State: broker.StateDone, Path: slackgate.Free, Outcome: broker.OutcomeLate}},
	{Name: "c", Verdict: &wire.Verdict{Path: slackgate.Reject, Reason: slackgate.ReasonNoSlack}, Error: "reject_no_slack: no"},
}

// addAllTo writes the results to a path and returns what went to standard
// output.
func addAllTo(t *testing.T, path string) string {
	t.Helper()
	var out bytes.Buffer
	r, err := openResults(path, &out)
	if err != nil {
		t.Fatal(err)
	}
	for _, res := range added {
		if err := r.add(res); err != nil {
			t.Error(err)
		}
	}
	if err := r.close(); err != nil {
		t.Error(err)
	}
	return out.String()
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// Wherever results go, they are the same lines; a folder has the answers beside
// them, and no path writes nothing.
func TestResultsGoWhereTheyShould(t *testing.T) {
	dir := t.TempDir()
	lines := addAllTo(t, "-")
	if n := strings.Count(lines, "\n"); n != len(added) {
		t.Errorf("%d lines on standard output, want %d:\n%s", n, len(added), lines)
	}
	if said := addAllTo(t, ""); said != "" {
		t.Errorf("results that nobody asked for:\n%s", said)
	}
	file := filepath.Join(dir, "r.NDJSON")
	if said := addAllTo(t, file); said != "" {
		t.Errorf("results for a file on standard output:\n%s", said)
	}
	if diff := cmp.Diff(lines, read(t, file)); diff != "" {
		t.Errorf("in a file (-standard output +file):\n%s", diff)
	}
	folder := filepath.Join(dir, "new", "folder")
	if said := addAllTo(t, folder); said != "" {
		t.Errorf("results for a folder on standard output:\n%s", said)
	}
	named := strings.Replace(read(t, filepath.Join(folder, "results.jsonl")), `,"file":"sub+a.txt.answer.txt"`, "", 1)
	if diff := cmp.Diff(lines, named); diff != "" {
		t.Errorf("in a folder (-standard output +folder):\n%s", diff)
	}
	answers, err := filepath.Glob(filepath.Join(folder, "*.answer.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{filepath.Join(folder, "sub+a.txt.answer.txt")}, answers); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	if got := read(t, answers[0]); got != "a < b\n" {
		t.Errorf("the answer is %q", got)
	}
}

func TestResultsNowhereToGo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(file, "r.jsonl")} {
		if _, err := openResults(path, nil); err == nil {
			t.Errorf("%s: results below a file", path)
		}
	}
	for _, path := range []string{t.TempDir(), filepath.Join(t.TempDir(), "r.jsonl")} {
		for range 2 { // what has no results yet is no obstacle
			r, err := openResults(path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestCounts(t *testing.T) {
	for _, tt := range []struct {
		name     string
		counts   counts
		line     string
		progress string
		exit     int
	}{
		{
			"nothing yet", counts{}, "0 offered, 0 admitted, 0 usable, 0 missed, 0 refused, 0 failed",
			"[....................] 0 of 0: 0 usable, 0 missed, 0 refused, 0 failed", 0,
		},
		{
			"half of all", counts{offered: 4, admitted: 3, usable: 2}, "4 offered, 3 admitted, 2 usable, 0 missed, 0 refused, 0 failed",
			"[##########..........] 2 of 4: 2 usable, 0 missed, 0 refused, 0 failed", 0,
		},
		{
			"a refusal", counts{offered: 2, admitted: 1, usable: 1, refused: 1}, "2 offered, 1 admitted, 1 usable, 0 missed, 1 refused, 0 failed",
			"[####################] 2 of 2: 1 usable, 0 missed, 1 refused, 0 failed", exitRefused,
		},
		{
			"a miss is worse than a refusal", counts{offered: 2, admitted: 1, missed: 1, refused: 1},
			"2 offered, 1 admitted, 0 usable, 1 missed, 1 refused, 0 failed",
			"[####################] 2 of 2: 0 usable, 1 missed, 1 refused, 0 failed", exitMissed,
		},
		{
			"a failure is the worst", counts{offered: 3, admitted: 1, missed: 1, refused: 1, failed: 1},
			"3 offered, 1 admitted, 0 usable, 1 missed, 1 refused, 1 failed",
			"[####################] 3 of 3: 0 usable, 1 missed, 1 refused, 1 failed", exitFailed,
		},
	} {
		if got := tt.counts.line(); got != tt.line {
			t.Errorf("%s: the line is %q, want %q", tt.name, got, tt.line)
		}
		if got := tt.counts.progress(); got != tt.progress {
			t.Errorf("%s: the progress is %q, want %q", tt.name, got, tt.progress)
		}
		exit := 0
		if e, ok := errors.AsType[exitError](tt.counts.exit()); ok {
			exit = int(e)
		}
		if exit != tt.exit {
			t.Errorf("%s: exit %d, want %d", tt.name, exit, tt.exit)
		}
	}
}
