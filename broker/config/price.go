package config

import (
	"cmp"
	"fmt"
	"time"
)

// DatedPrice is a price and when it begins.
type DatedPrice struct {
	// ValidFrom is a date, 2026-01-31, whose day begins in UTC, or an RFC 3339
	// time. The prices stand in the order of time; the first also holds for
	// whatever was before it.
	ValidFrom string `yaml:"valid_from"`
	Price     `yaml:",inline"`

	from time.Time
}

// PriceAt is the price of a call made at t. The version of one without its own
// is its first day.
func (b *Backend) PriceAt(t time.Time) *Price {
	all := b.tariff()
	now := &all[0]
	for i := range all {
		if !all[i].from.After(t) {
			now = &all[i]
		}
	}
	return &now.Price
}

// PricesWithin are the prices that hold at some time from one instant until
// another.
func (b *Backend) PricesWithin(from, until time.Time) []*Price {
	out := []*Price{b.PriceAt(from)}
	for i := range b.Prices {
		if at := b.Prices[i].from; at.After(from) && !at.After(until) {
			out = append(out, &b.Prices[i].Price)
		}
	}
	return out
}

// tariff is every price that the backend has at some time; at least one.
func (b *Backend) tariff() []DatedPrice {
	if len(b.Prices) == 0 {
		return []DatedPrice{{Price: b.Price}}
	}
	return b.Prices
}

// Currencies are those of the backend's prices; at least one.
func (b *Backend) Currencies() []string {
	var out []string
	for _, p := range b.tariff() {
		out = append(out, p.Currency)
	}
	return out
}

// Price is a backend's price; the zero price is free of charge.
type Price struct {
	Currency string `yaml:"currency"`
	// Version names the price in spend rows. Defaults to "1", or to the date
	// of a dated price.
	Version string `yaml:"version"`
	// For a million input tokens, for a million of them that were cached (0:
	// as the others), for a million output tokens, and for each call.
	InputMicroPerMTok  int64 `yaml:"input_micro_per_mtok"`
	CachedMicroPerMTok int64 `yaml:"cached_micro_per_mtok"`
	OutputMicroPerMTok int64 `yaml:"output_micro_per_mtok"`
	CallMicro          int64 `yaml:"call_micro"`
}

// MaxPrices bounds a backend's list of dated prices.
const MaxPrices = 100

func (b *Backend) completePrices(at string) error {
	if len(b.Prices) == 0 {
		return b.Price.complete(at+".price", "1")
	}
	if err := cmp.Or(
		checkf(b.Price == Price{}, at+".prices", "set price or prices, not both"),
		atMost(at+".prices", len(b.Prices), MaxPrices),
	); err != nil {
		return err
	}
	for i := range b.Prices {
		p, at := &b.Prices[i], fmt.Sprintf("%s.prices[%d]", at, i)
		var bad error
		p.from, bad = instant(p.ValidFrom)
		if err := cmp.Or(
			checkf(bad == nil, at+".valid_from", "%q is neither a date such as 2026-01-31 nor an RFC 3339 time", p.ValidFrom),
			checkf(i == 0 || p.from.After(b.Prices[i-1].from), at+".valid_from", "%s is not after the one before it", p.ValidFrom),
			p.complete(at, p.ValidFrom),
		); err != nil {
			return err
		}
	}
	return nil
}

func instant(s string) (time.Time, error) {
	if t, err := time.Parse(time.DateOnly, s); err == nil {
		return t, nil
	}
	return time.Parse(time.RFC3339, s)
}

func (p *Price) complete(at, version string) error {
	orDefault(&p.Currency, "USD")
	orDefault(&p.Version, version)
	return cmp.Or(
		checkf(currency.MatchString(p.Currency), at+".currency", "%q: use letters and digits, for example USD", p.Currency),
		within(at+".input_micro_per_mtok", p.InputMicroPerMTok, 0, MaxPriceMicroPerMTok),
		within(at+".cached_micro_per_mtok", p.CachedMicroPerMTok, 0, MaxPriceMicroPerMTok),
		within(at+".output_micro_per_mtok", p.OutputMicroPerMTok, 0, MaxPriceMicroPerMTok),
		within(at+".call_micro", p.CallMicro, 0, MaxPriceMicroPerMTok),
	)
}
