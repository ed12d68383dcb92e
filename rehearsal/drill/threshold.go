package drill

import (
	"fmt"
	"regexp"
	"strconv"
)

// Threshold is one thing that must hold: a metric, an operator and a number,
// written as "usable >= 180".
type Threshold struct {
	Metric string
	Op     string
	Value  float64
}

var thresholdForm = regexp.MustCompile(`^([a-z][a-z0-9_.-]*) (<=|>=|==) (-?[0-9]+(?:\.[0-9]+)?)$`)

// ParseThreshold reads the form that String writes.
func ParseThreshold(s string) (Threshold, error) {
	m := thresholdForm.FindStringSubmatch(s)
	if m == nil {
		return Threshold{}, fmt.Errorf("threshold %.80q: want a metric, one of <= >= ==, and a number", s)
	}
	v, err := strconv.ParseFloat(m[3], 64)
	if err != nil {
		return Threshold{}, err
	}
	return Threshold{m[1], m[2], v}, nil
}

// String returns the threshold as a plan has it.
func (t Threshold) String() string {
	return t.Metric + " " + t.Op + " " + strconv.FormatFloat(t.Value, 'f', -1, 64)
}

// MarshalText implements [encoding.TextMarshaler].
func (t Threshold) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (t *Threshold) UnmarshalText(text []byte) (err error) {
	*t, err = ParseThreshold(string(text))
	return err
}

// Holds reports whether a value is within the threshold.
func (t Threshold) Holds(v float64) bool {
	switch t.Op {
	case "<=":
		return v <= t.Value
	case ">=":
		return v >= t.Value
	}
	return v == t.Value
}
