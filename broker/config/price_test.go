package config

import (
	"fmt"
	"strings"
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

// A call may end under another price than it began with.
func TestPricesWithin(t *testing.T) {
	day := func(s string) time.Time {
		t.Helper()
		at, err := time.Parse(time.DateOnly, s)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	c, err := Parse([]byte(`
pools:
  paid:
    backends:
      - {name: b, url: "http://h/v1", model: m, prices: [{valid_from: 2026-01-01}, {valid_from: 2026-03-01}, {valid_from: 2026-06-01}]}
      - {name: c, url: "http://h/v1", model: m}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, from, until string
		want              string
	}{
		{"before the first", "2025-01-01", "2025-02-01", "2026-01-01"},
		{"within one", "2026-01-02", "2026-02-01", "2026-01-01"},
		{"until the first day of the next", "2026-02-01", "2026-03-01", "2026-01-01 2026-03-01"},
		{"over all", "2025-01-01", "2027-01-01", "2026-01-01 2026-01-01 2026-03-01 2026-06-01"},
		{"after the last", "2026-06-01", "2027-01-01", "2026-06-01"},
	} {
		var versions []string
		for _, p := range c.Pools.Paid.Backends[0].PricesWithin(day(tt.from), day(tt.until)) {
			versions = append(versions, p.Version)
		}
		if got := strings.Join(versions, " "); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if p := c.Pools.Paid.Backends[1].PricesWithin(day("2025-01-01"), day("2027-01-01")); len(p) != 1 || p[0].Version != "1" {
		t.Errorf("one price for all time: %+v", p)
	}
}

// The currency of the budgets is that of the first backend that costs money.
func TestCurrency(t *testing.T) {
	for _, tt := range []struct{ name, price, want string }{
		{"no price", "stall_ms: 1000", "USD"},
		{"a price of nothing", "price: {currency: EUR}", "USD"},
		{"a price a call", "price: {currency: EUR, call_micro: 1}", "EUR"},
		{"a later price", "prices: [{valid_from: 2026-01-01, currency: EUR}, {valid_from: 2026-02-01, currency: CHF, cached_micro_per_mtok: 1}]", "CHF"},
	} {
		c, err := Parse(fmt.Appendf(nil, oneBackend, tt.price))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if got := c.Currency(); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
