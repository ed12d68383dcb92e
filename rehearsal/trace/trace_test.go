package trace

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	row  = "2023-11-16 18:17:03.9799600,4808,10\n"
)

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		doc  string
		want []Request
	}{
		"milliseconds, other names, another column, an empty line and CR LF": {
			"other,Timestamp_MS,Input_Length,OUTPUT_LENGTH\r\nx,0,10,2\n\nx,1500.5,7,0\r\n",
			[]Request{{0, 10, 2}, {1_500_500, 7, 0}},
		},
		"dates": {head + row + row, []Request{{1_700_158_623_979_960, 4808, 10}, {1_700_158_623_979_960, 4808, 10}}},
		"a byte order mark and blanks around cells": {
			"\ufeffat_ms , input_tokens, output_tokens\n 0 , 1,2\n1,3 ,4",
			[]Request{{0, 1, 2}, {1000, 3, 4}},
		},
		"of two names for one thing the first known counts": {
			"at_ms,timestamp_ms,input_length,output_length\n9,0,1,1\n9,1,1,1\n",
			[]Request{{0, 1, 1}, {1000, 1, 1}},
		},
		"a quote in a column that is passed over": {
			"note,at_ms,input_length,output_length\n5\" disk,0,1,1\nnone,1,1,1\n",
			[]Request{{0, 1, 1}, {1000, 1, 1}},
		},
	} {
		got, err := Parse([]byte(c.doc))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: want -, got +\n%s", name, diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for name, c := range map[string]struct{ doc, says string }{
		"empty":             {"", "no column"},
		"header only":       {head, "0 rows"},
		"one row":           {head + row, "1 rows"},
		"no arrival":        {"ContextTokens,GeneratedTokens\n1,2\n1,2\n", "no column timestamp or timestamp_ms"},
		"no tokens":         {"TIMESTAMP\n" + row, "needs the columns"},
		"bad date":          {head + row + "yesterday,1,2\n", "line 3"},
		"missing cell":      {head + row + "2023-11-16 18:17:03,1\n", "line 3"},
		"one cell too many": {head + row + "2023-11-16 18:17:03,1,2,3\n", "line 3"},
		"negative tokens":   {head + row + "2023-11-16 18:17:04,-1,2\n", "line 3"},
		"too many tokens":   {head + row + "2023-11-16 18:17:04,99999999999,2\n", "line 3"},
		"not a number":      {head + row + "2023-11-16 18:17:04,1e3,2\n", "line 3"},
		"back in time":      {head + row + "2023-11-16 18:17:02,1,2\n", "line 3 of the trace arrives before"},
		"infinite":          {"timestamp_ms,input_length,output_length\n0,1,1\nInf,1,1\n", "line 3"},
		"NaN":               {"timestamp_ms,input_length,output_length\n0,1,1\nNaN,1,1\n", "line 3"},
		"a long line":       {head + row + strings.Repeat("x", 4097) + "\n", "line 3"},
		"negative duration": {"timestamp_ms,input_length,output_length\n-5,1,1\n0,1,1\n", "line 2"},
		"too many bytes":    {head + strings.Repeat("x", MaxBytes), "longer than"},
	} {
		if rows, err := Parse([]byte(c.doc)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v; want an error that says %q", name, rows, err, c.says)
		}
	}
}

func TestDates(t *testing.T) {
	at := func(date string) ([]Request, error) {
		return Parse(fmt.Appendf(nil, "%s%q,1,1\n%q,1,1\n", head, date, date))
	}
	for _, c := range []string{
		"1970-01-01 00:00:00", "2023-11-16 18:17:03.9799600", "2024-02-29 23:59:59.999999999", "2000-03-01 00:00:00.1",
		"1969-12-31 23:59:59", "2100-02-28 12:00:00.000001", "2023-11-16 18:17:03,5",
	} {
		want, err := time.Parse("2006-01-02 15:04:05.999999999", c)
		if err != nil {
			t.Fatal(err)
		}
		if rows, err := at(c); err != nil || rows[0].AtUS != want.UnixMicro() {
			t.Errorf("%s: %v (%v), want %d", c, rows, err, want.UnixMicro())
		}
	}
	for _, c := range []string{
		"", "2023-11-16", "2023-11-16T18:17:03", "2023-13-16 18:17:03", "2023-00-16 18:17:03", "2023-11-32 18:17:03",
		"2023-02-29 18:17:03", "2023-11-16 24:17:03", "2023-11-16 18:60:03", "2023-11-16 18:17:61", "2023-11-16 18:17:03.",
		"2023-11-16 18:17:03.-1", "+023-11-16 18:17:03",
	} {
		if rows, err := at(c); err == nil {
			t.Errorf("%q: taken as %v", c, rows)
		}
	}
}

// FuzzParse: no document panics, and what is taken is in order and in range.
func FuzzParse(f *testing.F) {
	f.Add([]byte(head + row + "2023-11-16 18:17:04,1,1\n"))
	f.Add([]byte("timestamp_ms,input_length,output_length\n0,1,1\n1,2,3\n"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		rows, err := Parse(doc)
		if err != nil {
			return
		}
		for i, r := range rows {
			if i > 0 && r.AtUS < rows[i-1].AtUS {
				t.Fatalf("request %d comes at %d, before the one above it", i, r.AtUS)
			}
			if min(r.InputTokens, r.OutputTokens) < 0 || max(r.InputTokens, r.OutputTokens) > maxTokens {
				t.Fatalf("request %d: %+v", i, r)
			}
		}
	})
}

func TestOwnTraces(t *testing.T) {
	for name, trace := range map[string][]Request{"code": AzureCode(), "conversation": AzureConversation()} {
		if len(trace) != 8641 {
			t.Errorf("%s: %d rows", name, len(trace))
		}
	}
}
