package simulate

import (
	"bytes"
	_ "embed" // for the traces
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Limits of a trace read from outside.
const (
	MaxTraceBytes = 64 << 20
	MaxTraceRows  = 1_000_000
	maxTraceLine  = 4096
	maxTokens     = 10_000_000
)

// Request is one row of a trace.
type Request struct {
	// AtUS is the arrival in microseconds, on the trace's own clock.
	AtUS int64
	// InputTokens were read and OutputTokens written.
	InputTokens, OutputTokens int
}

// traceColumns names the columns understood, first match wins. The first kind
// of arrival is a date and time, the second a number of milliseconds.
var traceColumns = struct{ date, millis, input, output []string }{
	date:   []string{"timestamp"},
	millis: []string{"timestamp_ms", "arrival_ms", "at_ms"},
	input:  []string{"contexttokens", "input_length", "input_tokens", "num_prefill_tokens"},
	output: []string{"generatedtokens", "output_length", "output_tokens", "num_decode_tokens"},
}

// ParseTrace reads a CSV with a header, one request a row in order of arrival.
// It takes the columns TIMESTAMP (as 2006-01-02 15:04:05.9999999) or
// timestamp_ms, ContextTokens or input_length, and GeneratedTokens or
// output_length, in any order and case; other columns are passed over. An
// error names the line.
func ParseTrace(doc []byte) ([]Request, error) {
	if len(doc) > MaxTraceBytes {
		return nil, fmt.Errorf("simulate: the trace is longer than %d bytes", MaxTraceBytes)
	}
	var p traceParser
	var rows []Request
	for n := 1; len(doc) > 0; n++ {
		line, rest, _ := bytes.Cut(doc, []byte{'\n'})
		doc = rest
		text := strings.TrimSpace(string(line[:min(len(line), maxTraceLine)]))
		switch {
		case len(line) > maxTraceLine:
			return nil, fmt.Errorf("simulate: line %d of the trace is too long", n)
		case text == "":
			continue
		case p.columns == 0:
			if err := p.header(text); err != nil {
				return nil, err
			}
			continue
		case len(rows) == MaxTraceRows:
			return nil, fmt.Errorf("simulate: the trace has more than %d rows", MaxTraceRows)
		}
		r, err := p.row(text)
		if err != nil {
			return nil, fmt.Errorf("simulate: line %d of the trace: %w", n, err)
		}
		if len(rows) > 0 && r.AtUS < rows[len(rows)-1].AtUS {
			return nil, fmt.Errorf("simulate: line %d of the trace arrives before the one above it", n)
		}
		rows = append(rows, r)
	}
	if len(rows) < 2 {
		return nil, fmt.Errorf("simulate: a trace of %d rows is too short", len(rows))
	}
	return rows, nil
}

// traceParser knows where the columns stand; -1 for those that are not there.
type traceParser struct{ columns, date, millis, input, output int }

func (p *traceParser) header(line string) error {
	names := strings.Split(strings.ToLower(strings.TrimPrefix(line, "\ufeff")), ",")
	find := func(known []string) int {
		for _, want := range known {
			for i, name := range names {
				if strings.TrimSpace(name) == want {
					return i
				}
			}
		}
		return -1
	}
	c := &traceColumns
	*p = traceParser{len(names), find(c.date), find(c.millis), find(c.input), find(c.output)}
	if p.date < 0 && p.millis < 0 {
		return fmt.Errorf("simulate: the trace has no column %s or %s", c.date[0], c.millis[0])
	}
	if p.input < 0 || p.output < 0 {
		return fmt.Errorf("simulate: the trace needs the columns %s and %s", c.input[0], c.output[0])
	}
	return nil
}

func (p *traceParser) row(line string) (Request, error) {
	cells := strings.Split(line, ",")
	if len(cells) != p.columns {
		return Request{}, fmt.Errorf("%d cells where the header has %d", len(cells), p.columns)
	}
	var r Request
	if p.millis >= 0 {
		ms, err := strconv.ParseFloat(strings.TrimSpace(cells[p.millis]), 64)
		if err != nil || !(ms >= 0 && ms < 1e15) {
			return Request{}, fmt.Errorf("arrival %.40q is not a number of milliseconds", cells[p.millis])
		}
		r.AtUS = int64(ms * 1000)
	} else {
		us, ok := parseDate(strings.TrimSpace(cells[p.date]))
		if !ok {
			return Request{}, fmt.Errorf("arrival %.40q is not a date and time", cells[p.date])
		}
		r.AtUS = us
	}
	for _, c := range []struct {
		at *int
		in int
	}{{&r.InputTokens, p.input}, {&r.OutputTokens, p.output}} {
		n, err := strconv.Atoi(strings.TrimSpace(cells[c.in]))
		if err != nil || n < 0 || n > maxTokens {
			return Request{}, fmt.Errorf("%.40q is not a number of tokens", cells[c.in])
		}
		*c.at = n
	}
	return r, nil
}

// parseDate reads "2006-01-02 15:04:05" with up to nine more digits after a
// point, as microseconds since 1970. (Package time is kept out of the gate and
// what stands below it, so that nothing there can read a clock.)
func parseDate(s string) (us int64, ok bool) {
	const form = "dddd-dd-dd dd:dd:dd"
	if len(s) < len(form) || len(s) > len(form)+10 {
		return 0, false
	}
	var part [6]int64
	k := 0
	for i, want := range []byte(form) {
		switch c := s[i]; {
		case want != 'd' && c == want:
			k++
		case want == 'd' && c >= '0' && c <= '9':
			part[k] = part[k]*10 + int64(c-'0')
		default:
			return 0, false
		}
	}
	year, month, day := part[0], part[1], part[2]
	if month < 1 || month > 12 || day < 1 || day > 31 || part[3] > 23 || part[4] > 59 || part[5] > 60 {
		return 0, false
	}
	// Days since 1970 in a calendar whose years begin in March, so that the
	// leap day comes last.
	if month < 3 {
		year--
		month += 12
	}
	days := 365*year + year/4 - year/100 + year/400 + (153*(month-3)+2)/5 + day - 1 - 719468
	us = (((days*24+part[3])*60+part[4])*60 + part[5]) * 1e6
	if rest := s[len(form):]; rest != "" {
		digits, point := strings.CutPrefix(rest, ".")
		n, err := strconv.ParseUint((digits + "000000000")[:9], 10, 64)
		if !point || digits == "" || err != nil {
			return 0, false
		}
		us += int64(n / 1000)
	}
	return us, true
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
	rows, err := ParseTrace(doc)
	if err != nil {
		panic(err) // our own file: a test reads it
	}
	return rows
}

// TraceSlices is the number of different runs that a trace gives.
func TraceSlices(trace []Request) int { return max(1, (len(trace)-1)/articleJobs) }

// TraceWorkload plays slices of a trace, 720 requests each, as the article's
// jobs, with time scaled so that eight a second arrive on average. Seed n takes
// slice n, counted from 1 and beginning anew after the last.
func TraceWorkload(name string, trace []Request) Workload {
	return Workload{Name: name, Slices: TraceSlices(trace), Make: func(seed uint64) []Arrival {
		n := TraceSlices(trace)
		from := int((seed-1)%uint64(n)) * articleJobs
		end := min(from+articleJobs, len(trace))
		return scaled(trace[from:end], trace[end:], articlePerSecond)
	}}
}

// WholeTraceWorkload plays a trace from its first request to its last as the
// article's jobs, with time scaled so that perSecond arrive on average.
func WholeTraceWorkload(name string, trace []Request, perSecond float64) Workload {
	return Workload{
		Name: fmt.Sprintf("%s at %g/s", name, perSecond), Slices: 1,
		Make: func(uint64) []Arrival { return scaled(trace, nil, perSecond) },
	}
}

// scaled are rows as the article's jobs, perSecond on average. The row after
// them, where there is one, ends their time.
func scaled(rows, after []Request, perSecond float64) []Arrival {
	span := rows[len(rows)-1].AtUS - rows[0].AtUS
	if len(after) > 0 {
		span = after[0].AtUS - rows[0].AtUS
	}
	jobs := make([]Arrival, len(rows))
	for i, r := range rows {
		at := 0.0
		if span > 0 {
			at = float64(r.AtUS-rows[0].AtUS) / float64(span) * float64(len(rows)) / perSecond * 1000
		}
		jobs[i] = articleJob(int64(at))
		jobs[i].InputTokens, jobs[i].OutputTokens = r.InputTokens, r.OutputTokens
	}
	return jobs
}
