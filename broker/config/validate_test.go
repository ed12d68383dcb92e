package config

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestChecksNameTheField(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want string // "" where the value is good
	}{
		{"a number at its lower bound", within("f", 1, 1, 3), ""},
		{"a number at its upper bound", within("f", 3, 1, 3), ""},
		{"a number below", within("f", 0, 1, 3), "f: 0 is outside 1..3"},
		{"a number above", within("f", int64(4), 1, 3), "f: 4 is outside 1..3"},
		{"a rate above", within("f", 100_000.5, 0, 100_000), "f: 100000.5 is outside 0..100000"},
		{"not a number", within("f", math.NaN(), 0, 1), "f: NaN is outside 0..1"},
		{"a list of as many as may be", atMost("f", 2, 2), ""},
		{"a longer list", atMost("f", 3, 2), "f: more than 2"},
		{"one of a set", oneOf("f", PaidOnly, PaidFirst, PaidOnly), ""},
		{"none of a set", oneOf("f", "both", "paid", "free"), `f: "both" is not one of [paid free]`},
		{"a name", named("f", "a-1._b"), ""},
		{"a name with a blank", named("f", "a b"), `f: "a b": use a-z, 0-9, '.', '_' and '-'`},
		{"no name", named("f", ""), `f: "": use a-z, 0-9, '.', '_' and '-'`},
		{"an address", address("f", ":80"), ""},
		{"a host alone", address("f", "host"), `f: "host" is not host:port`},
	} {
		got := ""
		if tt.err != nil {
			got = tt.err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestWebURL(t *testing.T) {
	for s, host := range map[string]string{
		"http://h/v1": "h", "https://h:1": "h:1", "http://:8080/v1": ":8080", "ftp://h": "", "h/v1": "", "": "", "http://%zz": "",
	} {
		u, ok := webURL(s)
		if ok != (host != "") || u.Host != host {
			t.Errorf("%q: host %q, %v; want %q", s, u.Host, ok, host)
		}
	}
}

// Lists are bounded, and the error names the list.
func TestLongestLists(t *testing.T) {
	list := func(n int, item string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, item+",", i)
		}
		return b.String()
	}
	for _, tt := range []struct {
		field, doc, item string
		most             int
	}{
		{"producers", "producers: {%s}", "p%d: {}", MaxProducers},
		{
			"pools.paid.backends[0].prices", fmt.Sprintf(oneBackend, "prices: [%s]"),
			"{valid_from: '2026-01-01T00:00:00.%03dZ'}", MaxPrices,
		},
	} {
		if _, err := Parse(fmt.Appendf(nil, tt.doc, list(tt.most, tt.item))); err != nil {
			t.Errorf("%d %s: %v", tt.most, tt.field, err)
		}
		if _, err := Parse(fmt.Appendf(nil, tt.doc, list(tt.most+1, tt.item))); fieldOf(err) != tt.field {
			t.Errorf("%d %s: %v", tt.most+1, tt.field, err)
		}
	}
}

// A pool alone is a whole setup: what is left out beside a pool that has backends
// is not there, and one that was meant to be says what it lacks.
func TestPoolAlone(t *testing.T) {
	const backends = "backends: [{name: b, url: 'http://h/v1', model: m}]"
	for _, tt := range []struct {
		name, doc  string
		paid, free int
		field      string
	}{
		{"paid alone", "pools: {paid: {" + backends + "}}", 2, 0, ""},
		{"free alone", "pools: {free: {limit: 3, " + backends + "}}", 0, 3, ""},
		{"free alone, and paid named", "pools: {paid: {limit: 0}, free: {" + backends + "}}", 0, 1, ""},
		{"no backend at all", "pools: {paid: {limit: 5}}", 5, 1, ""},
		{"a limit without backends", "pools: {paid: {" + backends + "}, free: {limit: 2}}", 0, 0, "pools.free.backends"},
	} {
		c, err := Parse([]byte(tt.doc))
		if fieldOf(err) != tt.field || err == nil && (c.Pools.Paid.Limit != tt.paid || c.Pools.Free.Limit != tt.free) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err != nil && !strings.Contains(err.Error(), "limit: 0") {
			t.Errorf("%s: %v does not say what to write", tt.name, err)
		}
	}
}
