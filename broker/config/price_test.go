package config

import (
	"testing"
	"time"
)

func TestPriceAt(t *testing.T) {
	c, err := Parse([]byte(`
pools:
  paid:
    backends:
      - name: b
        url: http://h/v1
        model: m
        prices:
          - {valid_from: 2026-01-01, input_micro_per_mtok: 10}
          - {valid_from: 2026-03-01T12:00:00+01:00, version: spring, input_micro_per_mtok: 20, currency: EUR}
          - {valid_from: 2026-06-01, input_micro_per_mtok: 5, cached_micro_per_mtok: 1, call_micro: 3}
      - {name: c, url: "http://h/v1", model: m, price: {input_micro_per_mtok: 7}}
`))
	if err != nil {
		t.Fatal(err)
	}
	b := &c.Pools.Paid.Backends[0]
	for _, tt := range []struct {
		at, version, currency string
		input                 int64
	}{
		{"2020-01-01T00:00:00Z", "2026-01-01", "USD", 10}, // before the first: never free by accident
		{"2026-01-01T00:00:00Z", "2026-01-01", "USD", 10},
		{"2026-03-01T10:59:59Z", "2026-01-01", "USD", 10},
		{"2026-03-01T11:00:00Z", "spring", "EUR", 20},
		{"2026-05-31T23:59:59Z", "spring", "EUR", 20},
		{"2026-06-01T00:00:00Z", "2026-06-01", "USD", 5},
		{"2036-06-01T00:00:00Z", "2026-06-01", "USD", 5},
	} {
		at, err := time.Parse(time.RFC3339, tt.at)
		if err != nil {
			t.Fatal(err)
		}
		if p := b.PriceAt(at); p.Version != tt.version || p.Currency != tt.currency || p.InputMicroPerMTok != tt.input {
			t.Errorf("%s: %+v, want %+v", tt.at, p, tt)
		}
	}
	if p := c.Pools.Paid.Backends[1].PriceAt(time.Now()); p.InputMicroPerMTok != 7 || p.Version != "1" || p.Currency != "USD" {
		t.Errorf("%+v", p)
	}
}
