package drill

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"leeway/broker/wire"
	"leeway/slackgate"
)

// likePlan is a deployment as a plan declares it, whose backends nobody controls.
func likePlan(p *Plan) *Deployment {
	d := &Deployment{gate: &wire.GateAnswer{
		Policy: p.Policy.String(), Recheck: "on", Verdict: &wire.Verdict{ReserveMS: p.Class.ReserveMS}, Pools: map[string]wire.PoolView{},
	}}
	for _, path := range slackgate.Paths {
		pool := p.Pool(path)
		v := wire.PoolView{Capacity: pool.Slots, FirstByteP95MS: pool.P95MS}
		v.FirstByte.DeclaredP95MS, v.Hold.DeclaredP95MS = pool.P95MS, pool.HoldP95MS
		d.gate.Pools[path.String()] = v
		for _, l := range pool.Labs {
			d.backends = append(d.backends, l.Name)
		}
	}
	return d
}

// thresholds are a plan's, in words.
func thresholds(p *Plan) (out []string) {
	for _, t := range p.Thresholds {
		out = append(out, t.String())
	}
	return out
}

// A deployment as the plan declares it plays all of it; one that has other pools
// keeps the thresholds that mean something there.
func TestFit(t *testing.T) {
	p := named(t, "declared")
	d := likePlan(p)
	f, err := d.Fit(t.Context(), p)
	if err != nil || len(f.Differs)+len(f.LeftOut) > 0 || !slices.Equal(thresholds(f.Plan), thresholds(p)) {
		t.Fatalf("%v: %+v", err, f)
	}
	for _, row := range []struct {
		change func(g *wire.GateAnswer)
		says   string
	}{
		{func(g *wire.GateAnswer) { g.Policy = "seed" }, "gate seed, declared predictive"},
		{func(g *wire.GateAnswer) { g.Recheck = "off" }, "re-check off"},
		{func(g *wire.GateAnswer) { g.Verdict.ReserveMS = 500 }, "reserve 500 ms, declared 2000"},
		{func(g *wire.GateAnswer) { v := g.Pools["paid"]; v.Capacity = 8; g.Pools["paid"] = v }, "paid: 8 slots, declared 2"},
		{func(g *wire.GateAnswer) { v := g.Pools["free"]; v.FirstByte.DeclaredP95MS = 90; g.Pools["free"] = v }, "free: first byte p95 90 ms, declared 4000"},
		{func(g *wire.GateAnswer) { v := g.Pools["free"]; v.FirstByteP95MS = 6100; g.Pools["free"] = v }, "free: the gate goes by a measured first byte p95 of 6100 ms"},
		{func(g *wire.GateAnswer) { v := g.Pools["free"]; v.Closed = true; g.Pools["free"] = v }, "free: closed by a flag or a drain"},
	} {
		d := likePlan(p)
		row.change(d.gate)
		f, err := d.Fit(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(f.Differs, row.says) {
			t.Errorf("want %q in %q", row.says, f.Differs)
		}
		got := thresholds(f.Plan)
		if slices.Contains(got, "usable >= 180") || !slices.Contains(got, "late_percent <= 1") || !slices.Contains(got, "ledger_problems <= 0") {
			t.Errorf("%s: thresholds %q", row.says, got)
		}
		if !slices.ContainsFunc(f.LeftOut, func(s string) bool { return strings.HasPrefix(s, "threshold usable >= 180") }) {
			t.Errorf("%s: left out %q", row.says, f.LeftOut)
		}
	}
}

// A drill whose events nobody may carry out is refused, as is one of which no
// threshold is left.
func TestFitRefuses(t *testing.T) {
	for _, name := range order {
		p := named(t, name)
		_, err := likePlan(p).Fit(t.Context(), p)
		harmless := slices.Contains([]string{"declared", "burst", "unbounded", "flag-flip", "drain"}, name)
		if harmless != (err == nil) || err != nil && !errors.Is(err, ErrCannot) {
			t.Errorf("%s with real backends: %v", name, err)
		}
	}
	p := named(t, "declared")
	p.Thresholds = p.Thresholds[:1] // usable
	d := likePlan(p)
	d.gate.Policy = "seed"
	if _, err := d.Fit(t.Context(), p); !errors.Is(err, ErrCannot) {
		t.Errorf("no threshold is left: %v", err)
	}
}

// The report says that the machine was late when sends, or first bytes beyond
// what is declared, were.
func TestMachineLate(t *testing.T) {
	for _, row := range []struct {
		m    *Machine
		want int
	}{
		{nil, 0},
		{&Machine{SendP99MS: 100, Calls: 9, CallP95MS: 60, MarginMS: 60}, 0},
		{&Machine{SendP99MS: 101, Calls: 9, CallP95MS: 60, MarginMS: 60}, 1},
		{&Machine{SendP99MS: 101, Calls: 9, CallP95MS: 61, MarginMS: 60}, 2},
		{&Machine{CallP95MS: 61}, 0},
	} {
		if got := row.m.Late(); len(got) != row.want {
			t.Errorf("%+v: %q", row.m, got)
		}
	}
}
