package config

import (
	"fmt"
	"net/url"
	"time"

	"leeway/broker"
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
	if len(b.Prices) == 0 {
		return &b.Price
	}
	now := &b.Prices[0]
	for i := range b.Prices {
		if !b.Prices[i].from.After(t) {
			now = &b.Prices[i]
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
	if b.Price != (Price{}) {
		return broker.Fieldf(at+".prices", "set price or prices, not both")
	}
	if len(b.Prices) > MaxPrices {
		return broker.Fieldf(at+".prices", "more than %d", MaxPrices)
	}
	for i := range b.Prices {
		p, at := &b.Prices[i], fmt.Sprintf("%s.prices[%d]", at, i)
		var err error
		if p.from, err = instant(p.ValidFrom); err != nil {
			return broker.Fieldf(at+".valid_from", "%q is neither a date such as 2026-01-31 nor an RFC 3339 time", p.ValidFrom)
		}
		if i > 0 && !p.from.After(b.Prices[i-1].from) {
			return broker.Fieldf(at+".valid_from", "%s is not after the one before it", p.ValidFrom)
		}
		if err := p.complete(at, p.ValidFrom); err != nil {
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
	if !currency.MatchString(p.Currency) {
		return broker.Fieldf(at+".currency", "%q: use letters and digits, for example USD", p.Currency)
	}
	return firstError(
		within(at+".input_micro_per_mtok", p.InputMicroPerMTok, 0, MaxPriceMicroPerMTok),
		within(at+".cached_micro_per_mtok", p.CachedMicroPerMTok, 0, MaxPriceMicroPerMTok),
		within(at+".output_micro_per_mtok", p.OutputMicroPerMTok, 0, MaxPriceMicroPerMTok),
		within(at+".call_micro", p.CallMicro, 0, MaxPriceMicroPerMTok),
	)
}

// complete validates where the archive is. An error never shows the URL: it may
// hold a password.
func (a *Archive) complete() error {
	if a.URL != "" {
		u, err := url.Parse(a.URL)
		if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
			return broker.Fieldf("archive.url", "must be a URL that begins with postgres://")
		}
	}
	return firstError(
		within("archive.window_ms", a.WindowMS, 0, 365*24*3600*1000),
		within("archive.batch_rows", int64(a.BatchRows), 1, 50_000),
		within("archive.every_ms", a.EveryMS, 10, 3600*1000),
	)
}
