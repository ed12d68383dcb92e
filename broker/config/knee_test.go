package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"leeway/broker"
)

func TestKneeOutOfDate(t *testing.T) {
	at := func(s string) time.Time {
		t.Helper()
		v, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	b := Backend{Protocol: "openai", URL: "http://127.0.0.1:1/v1", Model: "m"}
	here := b.Fingerprint()
	for _, tt := range []struct {
		knee *Knee
		now  string
		want string
	}{
		{nil, "2030-01-01T00:00:00Z", ""},
		{&Knee{Limit: 8, MeasuredOn: "2026-11-30", ValidDays: 90}, "2026-11-30T00:00:00Z", ""},
		{&Knee{Limit: 8, MeasuredOn: "2026-11-30", ValidDays: 90}, "2027-02-28T23:59:59Z", ""},
		{&Knee{Limit: 8, MeasuredOn: "2026-11-30", ValidDays: 90}, "2027-03-01T00:00:00Z", KneeExpired},
		{&Knee{Limit: 8, MeasuredOn: "2026-11-30", ValidDays: 1}, "2026-12-01T23:59:59Z", ""},
		{&Knee{Limit: 8, MeasuredOn: "2026-11-30", ValidDays: 1}, "2026-12-02T00:00:00Z", KneeExpired},
		{&Knee{Limit: 8, MeasuredOn: "2026-11-30", ValidDays: 90, Fingerprint: here}, "2026-11-30T00:00:00Z", ""},
		{&Knee{Limit: 8, MeasuredOn: "2026-11-30", ValidDays: 90, Fingerprint: "other"}, "2026-11-30T00:00:00Z", KneeChanged},
	} {
		b.Knee = tt.knee
		if got := b.KneeOutOfDate(at(tt.now)); got != tt.want {
			t.Errorf("%+v at %s: %q, want %q", tt.knee, tt.now, got, tt.want)
		}
	}
	for _, other := range []Backend{
		{Protocol: "ollama", URL: b.URL, Model: b.Model}, {Protocol: "openai", URL: "http://127.0.0.1:2/v1", Model: b.Model}, {Protocol: "openai", URL: b.URL, Model: "n"},
	} {
		if other.Fingerprint() == here {
			t.Errorf("%+v has the same fingerprint", other)
		}
	}
	if same := (&Backend{Name: "renamed", Protocol: "openai", URL: b.URL + "/", Model: "m"}); same.Fingerprint() != here {
		t.Error("a name and a slash make another backend")
	}
}

const measuredPool = `
knee_file: knees.json
pools:
  paid:
    limit: measured
    first_byte_p95_ms: 100
    backends:
      - {name: a, url: "http://127.0.0.1:1/v1", model: m}
      - {name: b, url: "http://127.0.0.1:2/v1", model: m}
`

// A measured limit is the knee of the pool's first backend.
func TestMeasuredLimit(t *testing.T) {
	dir := t.TempDir()
	file, knees := filepath.Join(dir, "leeway.yaml"), filepath.Join(dir, "knees.json")
	write := func(doc string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(measuredPool)
	if _, err := Load(file, nil); fieldOf(err) != "pools.paid.limit" || !strings.Contains(err.Error(), "leeway knee") {
		t.Errorf("before anything was measured: %v", err)
	}
	c, err := LoadToMeasure(file, nil)
	if err != nil || c.Pools.Paid.Limit != 1 || c.KneePath(file) != knees {
		t.Fatalf("to measure: %+v, %v", c, err)
	}
	k := &KneeFile{}
	k.Put(&MeasuredKnee{Backend: "b", Model: "m", Knee: Knee{Limit: 3, MeasuredOn: "2026-11-30"}})
	k.Put(&MeasuredKnee{Backend: "a", Model: "m", Knee: Knee{Limit: 7, MeasuredOn: "2026-11-01", ValidDays: 10, Fingerprint: c.Backend("a").Fingerprint()}})
	k.Put(&MeasuredKnee{Backend: "a", Model: "m", Knee: Knee{Limit: 8, MeasuredOn: "2026-11-30", ValidDays: 30, Fingerprint: c.Backend("a").Fingerprint()}})
	k.Put(&MeasuredKnee{Backend: "gone", Model: "m", Knee: Knee{Limit: 1, MeasuredOn: "2026-11-30"}})
	if err := k.Write(knees); err != nil {
		t.Fatal(err)
	}
	c, err = Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &c.Pools.Paid
	if p.Limit != 8 || !p.MeasuredLimit || p.Backends[0].Limit != 8 || p.Backends[1].Limit != 3 || c.Pools.Free.MeasuredLimit {
		t.Errorf("pool %+v", p)
	}
	if k := p.Backends[0].Knee; k.LastDay() != "2026-12-30" || p.Backends[1].Knee.ValidDays != DefaultKneeDays {
		t.Errorf("knees %+v, %+v", k, p.Backends[1].Knee)
	}
	// What stands in the configuration itself wins.
	write(strings.Replace(measuredPool, "1/v1\", model: m", "1/v1\", model: m, knee: {limit: 5, measured_on: 2026-10-01}", 1))
	if c, err = Load(file, nil); err != nil || c.Pools.Paid.Limit != 5 {
		t.Errorf("%+v, %v", c, err)
	}
	// A number stays a number, with knees beside it.
	write(strings.Replace(measuredPool, "measured\n", "2\n", 1))
	if c, err = Load(file, nil); err != nil || c.Pools.Paid.Limit != 2 || c.Pools.Paid.Backends[0].Limit != 2 || c.Pools.Paid.Backends[0].Knee.Limit != 8 {
		t.Errorf("%+v, %v", c, err)
	}
	// Elsewhere, and otherwise, the word is no number.
	for _, bad := range []string{
		"pools: {paid: {limit: measure}}", "pools: {paid: {first_byte_p95_ms: measured}}", "limits: {wait_ms: measured}",
		"pools: {paid: {limit: measured}}", "pools: {paid: {backends: [{name: a, url: 'http://h', model: m, limit: measured}]}}",
	} {
		if _, err := Parse([]byte(bad)); fieldOf(err) == "" {
			t.Errorf("%s: %v", bad, err)
		}
	}
	// A mistake in the file is one of the configuration.
	if err := os.WriteFile(knees, []byte(`{"knees": [{"backend": "a", "limit": 0, "measured_on": "2026-11-30"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file, nil); fieldOf(err) != "knee_file" || !strings.Contains(err.Error(), "knees[0].limit") {
		t.Errorf("%v", err)
	}
}

func TestKneeFileRefuses(t *testing.T) {
	for _, doc := range []string{
		``, `[]`, `{"knees": [{"backend": "a"}]}`, `{"knees": [], "more": 1}`, `{} {}`,
		`{"knees": [{"backend": "A b", "limit": 1, "measured_on": "2026-11-30"}]}`,
		`{"knees": [{"backend": "a", "limit": 4097, "measured_on": "2026-11-30"}]}`,
		`{"knees": [{"backend": "a", "limit": 1, "measured_on": "yesterday"}]}`,
		`{"knees": [{"backend": "a", "limit": 1, "measured_on": "2026-11-30", "valid_days": 3651}]}`,
		`{"knees": [{"backend": "a", "limit": 1, "measured_on": "2026-11-30"}, {"backend": "a", "limit": 2, "measured_on": "2026-11-30"}]}`,
		strings.Repeat(" ", MaxFileBytes+1),
	} {
		if k, err := parseKnees([]byte(doc)); err == nil {
			t.Errorf("%.80s: %+v", doc, k)
		}
	}
	if k, err := ReadKnees(filepath.Join(t.TempDir(), "none")); err != nil || len(k.Knees) != 0 {
		t.Errorf("a file that is not there: %+v, %v", k, err)
	}
	_, err := parseKnees([]byte(`{"knees": [{"backend": "a", "limit": 0, "measured_on": "2026-11-30"}]}`))
	if f, ok := errors.AsType[*broker.FieldError](err); !ok || f.Field != "knees[0].limit" {
		t.Errorf("%v", err)
	}
}

// FuzzKnees: any file is one that can be written and read again, or an error.
func FuzzKnees(f *testing.F) {
	f.Add([]byte(`{"knees": [{"backend": "a", "model": "m", "limit": 8, "measured_on": "2026-11-30", "steps": [1, 2]}]}`))
	f.Add([]byte(`{"knees": null}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		k, err := parseKnees(doc)
		if err != nil {
			return
		}
		at := filepath.Join(t.TempDir(), "k")
		if err := k.Write(at); err != nil {
			t.Fatal(err)
		}
		if again, err := ReadKnees(at); err != nil || len(again.Knees) != len(k.Knees) {
			t.Fatalf("%+v, %v", again, err)
		}
	})
}
