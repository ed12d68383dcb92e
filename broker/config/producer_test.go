package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"leeway/slackgate"
)

func parse(t *testing.T, doc string) *Config {
	t.Helper()
	c, err := Parse([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const producersDoc = `
limits: {text_bytes: 1000, batch_lines: 100}
classes: {summary: {budget_micro_per_day: 7}, nightly: {}}
producers:
  small: {text_bytes: 10, batch_lines: 5, classes: [nightly], max_in_flight: 3, budget_micro_per_day: 0}
  large: {text_bytes: 2000, batch_lines: 500, submissions_per_s: 2.5}
  slow: {submissions_per_s: 0.5}
  bursty: {submissions_per_s: 2, burst: 9}
`

// A producer's limits stand before those of all where they are smaller.
func TestSmallerLimitHolds(t *testing.T) {
	c := parse(t, producersDoc)
	for _, tt := range []struct {
		producer    string
		text, bytes int64
		lines       int
	}{
		{"small", 10, 2*10 + LineOverhead, 5},
		{"large", 1000, 2*1000 + LineOverhead, 100},
		{"nobody", 1000, 2*1000 + LineOverhead, 100},
	} {
		if got := c.TextLimit(tt.producer); got != tt.text {
			t.Errorf("%s: texts of %d bytes, want %d", tt.producer, got, tt.text)
		}
		if got := c.LineBytes(tt.producer); got != tt.bytes {
			t.Errorf("%s: lines of %d bytes, want %d", tt.producer, got, tt.bytes)
		}
		if got := c.LinesLimit(tt.producer); got != tt.lines {
			t.Errorf("%s: batches of %d lines, want %d", tt.producer, got, tt.lines)
		}
	}
}

// Without a burst, that of a second at once; at least one.
func TestQuota(t *testing.T) {
	c := parse(t, producersDoc)
	for producer, want := range map[string]slackgate.Quota{
		"small":  slackgate.NewQuota(0, 0, 3),
		"large":  slackgate.NewQuota(2.5, 2, 0),
		"slow":   slackgate.NewQuota(0.5, 1, 0),
		"bursty": slackgate.NewQuota(2, 9, 0),
		"nobody": {},
	} {
		if got := c.Quota(producer); got != want {
			t.Errorf("%s: %+v, want %+v", producer, got, want)
		}
	}
	if nobody := c.Quota("nobody"); nobody.Limited() {
		t.Error("a producer without limits is limited")
	}
}

func TestMayUse(t *testing.T) {
	c := parse(t, producersDoc)
	for _, tt := range []struct {
		producer, class string
		may             bool
	}{
		{"small", "nightly", true},
		{"small", "summary", false},
		{"large", "summary", true},
		{"nobody", "summary", true},
	} {
		if got := c.MayUse(tt.producer, tt.class); got != tt.may {
			t.Errorf("%s may use %s: %v, want %v", tt.producer, tt.class, got, tt.may)
		}
	}
}

// A budget of nothing is a budget.
func TestBudgets(t *testing.T) {
	c := parse(t, producersDoc)
	none, nothing, seven := slackgate.Budget{}, slackgate.Budget{Set: true}, slackgate.Budget{Set: true, CapMicro: 7}
	for _, tt := range []struct {
		producer, class string
		own, ofClass    slackgate.Budget
	}{
		{"small", "nightly", nothing, none},
		{"small", "summary", nothing, seven},
		{"large", "summary", none, seven},
		{"nobody", "nightly", none, none},
	} {
		var want [slackgate.NumBudgets]slackgate.Budget
		want[slackgate.ProducerBudget], want[slackgate.ClassBudget] = tt.own, tt.ofClass
		if diff := cmp.Diff(want, c.Budgets(tt.producer, tt.class)); diff != "" {
			t.Errorf("%s, class %s (-want +got):\n%s", tt.producer, tt.class, diff)
		}
	}
	if !c.Budgeted() || parse(t, "").Budgeted() {
		t.Error("Budgeted: want it with budgets, and not without")
	}
}

func TestProducerBounds(t *testing.T) {
	for _, tt := range []struct {
		name, producer, field string // no field: it is good
	}{
		{"the slowest rate", "submissions_per_s: 0.001", ""},
		{"a slower rate", "submissions_per_s: 0.0009", "submissions_per_s"},
		{"the fastest rate", "submissions_per_s: 100000", ""},
		{"a faster rate", "submissions_per_s: 100001", "submissions_per_s"},
		{"no rate at all", "submissions_per_s: .nan", "submissions_per_s"},
		{"the largest burst", "{submissions_per_s: 1, burst: 100000}", ""},
		{"a larger burst", "{submissions_per_s: 1, burst: 100001}", "burst"},
		{"a burst without a rate", "burst: 1", "burst"},
		{"the most in flight", "max_in_flight: 1000000", ""},
		{"more in flight", "max_in_flight: 1000001", "max_in_flight"},
		{"texts longer than any", "text_bytes: 16777217", "text_bytes"},
		{"batches longer than any", "batch_lines: 10000001", "batch_lines"},
		{"an unknown class", "classes: [none]", "classes"},
		{"a webhook over http", "webhook: {url: 'http://h/', secret_env: S}", "webhook.url"},
		{"a webhook over http in a private network", "webhook: {url: 'http://h/', secret_env: S, allow_private: true}", ""},
		{"a webhook of no host", "webhook: {url: 'https://:1/', secret_env: S}", "webhook.url"},
		{"a webhook with credentials", "webhook: {url: 'https://u:hunter2@h/', secret_env: S}", "webhook.url"},
		{"a webhook with a fragment", "webhook: {url: 'https://h/#f', secret_env: S}", "webhook.url"},
		{"a webhook without a secret", "webhook: {url: 'https://h/'}", "webhook.secret_env"},
		{"a webhook with two secrets", "webhook: {url: 'https://h/', secret_env: S, secret_file: f}", "webhook.secret_env"},
	} {
		producer := tt.producer
		if !strings.HasPrefix(producer, "{") {
			producer = "{" + producer + "}"
		}
		want := ""
		if tt.field != "" {
			want = "producers.p." + tt.field
		}
		_, err := Parse([]byte("producers: {p: " + producer + "}"))
		if (err == nil) != (want == "") || fieldOf(err) != want {
			t.Errorf("%s: %v, want an error of %q", tt.name, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error shows a password: %v", tt.name, err)
		}
	}
}
