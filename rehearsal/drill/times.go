package drill

import (
	"math"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The distributions that are named more than once.
const (
	timeToVerdict = "time to verdict"
	usableAnswer  = "usable answer, from intended send"
	beyondLab     = "first byte beyond the lab's own"
	sentLate      = "sent late by"
)

// distOrder is the order of a report's distributions.
var distOrder = []string{
	"first byte, paid", "wait, paid", "queue age at admission, paid",
	"first byte, free", "wait, free", "queue age at admission, free",
	"slack at admission", "time to reject", timeToVerdict, usableAnswer, beyondLab, sentLate,
}

// longestMS bounds what a histogram takes: a day, the longest deadline.
const longestMS = 24 * 3600 * 1000

// times collects distributions by name.
type times map[string]*hdrhistogram.Histogram

func (t times) of(name string) *hdrhistogram.Histogram {
	if t[name] == nil {
		t[name] = hdrhistogram.New(1, longestMS, 4)
	}
	return t[name]
}

func (t times) add(name string, ms float64) {
	_ = t.of(name).RecordValue(int64(math.Round(min(max(ms, 0), longestMS)))) // within bounds
}

func (t times) quantile(name string, q float64) float64 {
	return float64(t.of(name).ValueAtQuantile(q))
}

// Dist is a distribution in milliseconds.
type Dist struct {
	Name string `json:"name"`
	N    int64  `json:"n"`
	P50  int64  `json:"p50_ms"`
	P90  int64  `json:"p90_ms"`
	P95  int64  `json:"p95_ms"`
	P99  int64  `json:"p99_ms"`
	Max  int64  `json:"max_ms"`
}

// dists are those in which there is anything.
func (t times) dists() (out []Dist) {
	for _, name := range distOrder {
		if h := t.of(name); h.TotalCount() > 0 {
			out = append(out, Dist{
				Name: name, N: h.TotalCount(), P50: h.ValueAtQuantile(50), P90: h.ValueAtQuantile(90),
				P95: h.ValueAtQuantile(95), P99: h.ValueAtQuantile(99), Max: h.Max(),
			})
		}
	}
	return out
}
