package drill

import (
	"context"
	"slices"
	"testing"

	"leeway/slackgate"
)

// Every drill that the simulator can play passes in it.
func TestDrillsSimulated(t *testing.T) {
	played := 0
	for _, p := range Plans() {
		if CannotSimulate(p) != "" {
			if _, err := Simulate(context.Background(), p, 1); err == nil {
				t.Errorf("%s: was simulated all the same", p.Name)
			}
			continue
		}
		played++
		t.Run(p.Name, func(t *testing.T) {
			p, _ := p.WithoutContrast()
			r := judged(t, p)
			passes(t, r)
		})
	}
	if played < 12 {
		t.Errorf("%d drills were simulated, want 12 or more", played)
	}
}

// An empty answer is booked as such and is no success, whatever its status said.
func TestEmptyIsNoSuccess(t *testing.T) {
	p := named(t, "free-empty")
	r := judged(t, p)
	m := r.Metrics
	if m["empty"] == 0 || m["success"] != m["usable"]+m["late"] || m["empty_unbooked"] != 0 {
		t.Errorf("%g empty, of which %g not booked; success %g, usable %g, late %g", m["empty"], m["empty_unbooked"], m["success"], m["usable"], m["late"])
	}
}

// What free-slow and free-held show does not depend on where in a free call the
// fault begins.
func TestFreeFaultsAnyPhase(t *testing.T) {
	for _, name := range []string{"free-slow", "free-held"} {
		for shift := int64(0); shift < 4000; shift += 400 {
			p := named(t, name)
			p.Arrivals[0].ForMS += shift
			for i := range p.Events {
				p.Events[i].AtMS += shift
			}
			r := judged(t, p)
			for _, v := range r.Verdicts {
				if !v.OK {
					t.Errorf("%s, %d ms later: %s is %g", name, shift, v.Threshold, *v.Value)
				}
			}
		}
	}
}

// broken are ways to break the declared drill, and the thresholds that must
// then be crossed out.
var broken = []breakage{
	{"seed without the re-check", slackgate.Seed, true, 100, []string{"usable >= 180", "late_percent <= 1"}},
	{"no re-check, p95 too low", slackgate.Predictive, true, 40, []string{"late_percent <= 1"}},
}

type breakage struct {
	name    string
	rule    slackgate.Rule
	recheck bool // off
	percent int
	crossed []string
}

func (b *breakage) plan(t *testing.T) *Plan {
	t.Helper()
	p := named(t, "declared")
	p.Policy, p.RecheckOff = b.rule, b.recheck
	if err := p.DeclareP95(b.percent); err != nil {
		t.Fatal(err)
	}
	return p
}

// crossed checks that thresholds do not hold, and that ledgers do.
func crossed(t *testing.T, r *Run, want []string) {
	t.Helper()
	var got []string
	for _, v := range r.Verdicts {
		if !v.OK {
			got = append(got, v.Threshold.String())
		}
		if v.Value != nil {
			t.Logf("%-30s %s", v.Threshold, number(*v.Value))
		}
	}
	for _, th := range want {
		if !slices.Contains(got, th) {
			t.Errorf("%s holds; crossed out are %v", th, got)
		}
	}
	if slices.Contains(got, "ledger_problems <= 0") {
		t.Errorf("the ledgers do not balance: %+v", r.Checks)
	}
	e := Evidence{Runs: []*Run{r}}
	if e.Passed() {
		t.Error("the drill passed")
	}
}

// A drill that is broken on purpose fails with the right threshold crossed out;
// the same drill unbroken does not.
func TestBrokenSimulated(t *testing.T) {
	for _, row := range broken {
		t.Run(row.name, func(t *testing.T) {
			p := row.plan(t)
			r := judged(t, p)
			crossed(t, r, row.crossed)
		})
	}
}

// The comparison says of a simulated run what the simulator itself says, and no
// row beats the bound.
func TestCompare(t *testing.T) {
	p := named(t, "declared")
	r := judged(t, p)
	r.Compare(p)
	usable := map[string]float64{}
	for _, c := range r.Compared {
		usable[c.Name] = *c.Usable
		t.Logf("%-24s %g usable", c.Name, *c.Usable)
	}
	if usable["predictive"] != usable["this run"] {
		t.Errorf("the same policy on the same times: %g usable, the run %g", usable["predictive"], usable["this run"])
	}
	bound := usable["no schedule beats"]
	for name, n := range usable {
		if n > bound {
			t.Errorf("%s: %g usable is more than the bound of %g", name, n, bound)
		}
	}
	if usable["no admission"] > bound/4 || usable["seed gate"] > usable["predictive"] {
		t.Errorf("the order of the policies is not the known one: %v", usable)
	}
}
