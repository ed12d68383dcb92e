// Package trace reads traces of requests to language models: when each came,
// and how many tokens were read and written for it.
package trace

import (
	"bytes"
	_ "embed" // for the traces
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Limits of a trace read from outside.
const (
	MaxBytes  = 64 << 20
	MaxRows   = 1_000_000
	maxTokens = 10_000_000
)

// Request is one row of a trace.
type Request struct {
	// AtUS is the arrival in microseconds, on the trace's own clock.
	AtUS int64
	// InputTokens were read and OutputTokens written.
	InputTokens, OutputTokens int
}

// The names of the columns that are understood; of several the first counts. An
// arrival is a date and time, or a number of milliseconds.
var (
	dateNames   = []string{"timestamp"}
	millisNames = []string{"timestamp_ms", "arrival_ms", "at_ms"}
	inputNames  = []string{"contexttokens", "input_length", "input_tokens", "num_prefill_tokens"}
	outputNames = []string{"generatedtokens", "output_length", "output_tokens", "num_decode_tokens"}
)

// Parse reads a CSV with a header, one request a row in order of arrival. It
// takes the columns TIMESTAMP (as 2006-01-02 15:04:05.9999999) or timestamp_ms,
// ContextTokens or input_length, and GeneratedTokens or output_length, in any
// order and case; other columns are passed over. An error names the line.
func Parse(doc []byte) ([]Request, error) {
	if len(doc) > MaxBytes {
		return nil, fmt.Errorf("the trace is longer than %d bytes", MaxBytes)
	}
	r := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(doc, []byte("\ufeff"))))
	r.LazyQuotes, r.ReuseRecord = true, true
	header, err := r.Read()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the trace: %w", err)
	}
	at, err := findColumns(header)
	if err != nil {
		return nil, err
	}
	var rows []Request
	for {
		cells, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("the trace: %w", err)
		}
		line, _ := r.FieldPos(0)
		row, err := at.request(cells)
		switch {
		case err != nil:
			return nil, fmt.Errorf("line %d of the trace: %w", line, err)
		case len(rows) == MaxRows:
			return nil, fmt.Errorf("the trace has more than %d rows", MaxRows)
		case len(rows) > 0 && row.AtUS < rows[len(rows)-1].AtUS:
			return nil, fmt.Errorf("line %d of the trace arrives before the one above it", line)
		}
		rows = append(rows, row)
	}
	if len(rows) < 2 {
		return nil, fmt.Errorf("a trace of %d rows is too short", len(rows))
	}
	return rows, nil
}

// columns are the places of what is read; -1 for those that are not there.
type columns struct{ date, millis, input, output int }

func findColumns(header []string) (columns, error) {
	names := make([]string, len(header))
	for i, name := range header {
		names[i] = strings.ToLower(strings.TrimSpace(name))
	}
	find := func(known []string) int {
		for _, want := range known {
			if i := slices.Index(names, want); i >= 0 {
				return i
			}
		}
		return -1
	}
	c := columns{find(dateNames), find(millisNames), find(inputNames), find(outputNames)}
	if c.date < 0 && c.millis < 0 {
		return c, fmt.Errorf("the trace has no column %s or %s", dateNames[0], millisNames[0])
	}
	if c.input < 0 || c.output < 0 {
		return c, fmt.Errorf("the trace needs the columns %s and %s", inputNames[0], outputNames[0])
	}
	return c, nil
}

// request reads one row.
func (c *columns) request(cells []string) (r Request, err error) {
	cell := func(i int) string { return strings.TrimSpace(cells[i]) }
	if c.millis >= 0 {
		ms, err := strconv.ParseFloat(cell(c.millis), 64)
		if err != nil || !(ms >= 0 && ms < 1e15) {
			return r, fmt.Errorf("arrival %.40q is not a number of milliseconds", cells[c.millis])
		}
		r.AtUS = int64(ms * 1000)
	} else {
		at, err := time.Parse(time.DateTime, cell(c.date)) // which takes digits after the second, too
		if err != nil {
			return r, fmt.Errorf("arrival %.40q is not a date and time", cells[c.date])
		}
		r.AtUS = at.UnixMicro()
	}
	tokens := func(i int) (int, error) {
		n, err := strconv.Atoi(cell(i))
		if err != nil || n < 0 || n > maxTokens {
			return 0, fmt.Errorf("%.40q is not a number of tokens", cells[i])
		}
		return n, nil
	}
	if r.InputTokens, err = tokens(c.input); err != nil {
		return r, err
	}
	r.OutputTokens, err = tokens(c.output)
	return r, err
}

//go:embed data/azure_code_2023.csv
var azureCode []byte

//go:embed data/azure_conv_2023.csv
var azureConv []byte

// AzureCode and AzureConversation are the traces that come with the package;
// data/README.md has their source and licence.
var (
	AzureCode         = sync.OnceValue(func() []Request { return mustParse(azureCode) })
	AzureConversation = sync.OnceValue(func() []Request { return mustParse(azureConv) })
)

func mustParse(doc []byte) []Request {
	rows, err := Parse(doc)
	if err != nil {
		panic(err) // our own file: a test reads it
	}
	return rows
}
