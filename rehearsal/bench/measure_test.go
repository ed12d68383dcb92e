// Package bench measures Leeway against what it stands on: an admission against
// a bare asynq enqueue, a request against what echo alone serves. What counts
// is the ratio of two rates taken in turns within one run, so that another
// machine, or a busy one, changes both. The measures themselves need a real
// redis-server and stand behind the build tag `bench`; `make bench` runs them.
package bench

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Measure is one row of the table.
type Measure struct {
	Name string `json:"measure"`
	// Ratio is the median over the rounds; 0 for a measure that is no ratio.
	Ratio float64 `json:"ratio,omitempty"`
	// CPURatio is the median of the processor time that the base took for each
	// piece of work over what this took, Redis and the load included: what the
	// ratio would be on a machine with nothing else to do. 0: not taken.
	CPURatio float64 `json:"cpu_ratio,omitempty"`
	// CPU is the processor time behind it, in microseconds for each piece of
	// work: what is measured and its base, median over the rounds.
	CPU [2]CPU `json:"cpu_us,omitzero"`
	// Value is the median of a measure in a unit: what was counted, or the
	// rate or time behind a ratio.
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Spread is the lowest and the highest of the rounds: of the ratio where
	// there is one, else of the value.
	Spread [2]float64 `json:"spread"`
	Rounds int        `json:"rounds"`
	// Base is the median of what the ratio is a ratio to, in the same unit.
	Base float64 `json:"base,omitempty"`
	Note string  `json:"note,omitempty"`
}

// CPU is processor time by who took it: Redis, and the process with Leeway and
// the load in it.
type CPU struct {
	Redis   float64 `json:"redis"`
	Process float64 `json:"process"`
}

// Sum is both together.
func (c CPU) Sum() float64 { return c.Redis + c.Process }

// Report is everything one run measured.
type Report struct {
	Machine  string    `json:"machine"`
	Measures []Measure `json:"measures"`
}

// Floor is the least, or the most, that a measure must come to: of its ratio in
// processor time where it has one, else of its ratio, else of its value.
type Floor struct {
	Name  string   `json:"measure"`
	Least *float64 `json:"least,omitempty"`
	Most  *float64 `json:"most,omitempty"`
}

// Ratios is a measure of how many times as fast as its base something ran.
// rates and bases are per second, a pair a round.
func Ratios(name string, rates, bases []float64) Measure {
	m := Measure{Name: name, Unit: "1/s", Rounds: len(rates), Value: median(rates), Base: median(bases)}
	ratios := make([]float64, len(rates))
	for i := range rates {
		ratios[i] = rates[i] / bases[i]
	}
	m.Ratio, m.Spread = median(ratios), spread(ratios)
	return m
}

// Values is a measure in a unit of its own.
func Values(name, unit string, values []float64) Measure {
	return Measure{Name: name, Unit: unit, Rounds: len(values), Value: median(values), Spread: spread(values)}
}

// Taken is what one side of a round came to.
type Taken struct {
	// PerSecond is how much work was done in a second, CPU the processor time
	// that each piece of it took, in microseconds.
	PerSecond float64
	CPU       CPU
}

// Rounds is a measure of how many times as fast as its base something ran, in
// real and in processor time.
func Rounds(name string, subject, base []Taken) Measure {
	of := func(taken []Taken, what func(Taken) float64) []float64 {
		out := make([]float64, len(taken))
		for i, t := range taken {
			out[i] = what(t)
		}
		return out
	}
	perSecond := func(t Taken) float64 { return t.PerSecond }
	sum := func(t Taken) float64 { return t.CPU.Sum() }
	m := Ratios(name, of(subject, perSecond), of(base, perSecond))
	m.CPURatio = Ratios("", of(base, sum), of(subject, sum)).Ratio
	for i, side := range [][]Taken{subject, base} {
		m.CPU[i] = CPU{
			Redis:   median(of(side, func(t Taken) float64 { return t.CPU.Redis })),
			Process: median(of(side, func(t Taken) float64 { return t.CPU.Process })),
		}
	}
	return m
}

// Costs is Rounds the other way round: how many times as much of real and of
// processor time a piece of work took as its base.
func Costs(name string, subject, base []Taken) Measure {
	m := Rounds(name, base, subject)
	m.Value, m.Base = m.Base, m.Value
	m.CPU[0], m.CPU[1] = m.CPU[1], m.CPU[0]
	return m
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

// Quantile is the q-quantile of values, by nearest rank; 0 of none.
func Quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

func spread(v []float64) [2]float64 {
	if len(v) == 0 {
		return [2]float64{}
	}
	return [2]float64{slices.Min(v), slices.Max(v)}
}

// WriteTable prints the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(t, "%s\n\nmeasure\tratio\tspread\tCPU ratio\tRedis us\tprocess us\tvalue\tbase\tunit\trounds\tnote\n", r.Machine)
	for _, m := range r.Measures {
		ratio, cpu, redis, process, base := "", "", "", "", ""
		if m.Ratio != 0 {
			ratio, base = short(m.Ratio), short(m.Base)
		}
		if m.CPURatio != 0 {
			cpu = short(m.CPURatio)
			redis = short(m.CPU[0].Redis) + " / " + short(m.CPU[1].Redis)
			process = short(m.CPU[0].Process) + " / " + short(m.CPU[1].Process)
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s .. %s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", m.Name, ratio, short(m.Spread[0]), short(m.Spread[1]),
			cpu, redis, process, short(m.Value), base, m.Unit, m.Rounds, m.Note)
	}
	return t.Flush()
}

// short is a number with three digits that matter.
func short(x float64) string {
	switch {
	case x >= 100 || x == 0:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// WriteJSON writes the report as one JSON document.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

// Check holds a report against floors. A floor whose measure the report does
// not have is an error too: a renamed measure would otherwise never fail again.
func (r *Report) Check(floors []Floor) error {
	var errs []error
	for _, f := range floors {
		i := slices.IndexFunc(r.Measures, func(m Measure) bool { return m.Name == f.Name })
		if i < 0 {
			errs = append(errs, fmt.Errorf("%q was not measured", f.Name))
			continue
		}
		m := &r.Measures[i]
		got := cmp.Or(m.CPURatio, m.Ratio, m.Value)
		if f.Least != nil && got < *f.Least {
			errs = append(errs, fmt.Errorf("%q came to %s; the floor is %s", f.Name, short(got), short(*f.Least)))
		}
		if f.Most != nil && got > *f.Most {
			errs = append(errs, fmt.Errorf("%q came to %s; the ceiling is %s", f.Name, short(got), short(*f.Most)))
		}
	}
	return errors.Join(errs...)
}
