package drill

import (
	"context"
	"log/slog"
	"runtime/debug"
	"strconv"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"leeway/cmd/app"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // much is made, little is kept
	app.LogRedis(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m)
}

// named is a built-in plan.
func named(t *testing.T, name string) *Plan {
	t.Helper()
	p, err := Named(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// judged is a simulated run of a plan, held against its thresholds.
func judged(t *testing.T, p *Plan) *Run {
	t.Helper()
	r, err := Simulate(context.Background(), p, 1)
	if err != nil {
		t.Fatal(err)
	}
	r.Judge(p)
	return r
}

// virtualPollMS is how often idle workers look for a ticket in virtual time,
// where each look costs real time and the length of the pause costs none.
const virtualPollMS = 50

// playVirtually runs a plan over the whole of Leeway in virtual time.
func playVirtually(t *testing.T, p *Plan) *Run {
	t.Helper()
	var out *Run
	synctest.Test(t, func(t *testing.T) {
		e, err := startEmbedded(p, true, virtualPollMS)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Play(context.Background(), p, &e.Target, new(Progress))
		if err != nil {
			t.Error(err)
		}
		if err := e.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		out = r
	})
	if out == nil {
		t.FailNow()
	}
	out.Judge(p)
	out.Compare(p)
	m := out.Metrics
	t.Logf("offered %g, admitted %g, rejected %g, undecided %g, usable %g, missed %g, wasted %g s, at most %g ms past a deadline",
		m["offered"], m["admitted"], m["rejected"], m["undecided"], m["usable"], m["missed"], m["wasted_s"], m["most_over_ms"])
	return out
}

// number prints a value for a message.
func number(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

// passes fails the test for whatever does not hold.
func passes(t *testing.T, r *Run) {
	t.Helper()
	for _, v := range r.Verdicts {
		switch {
		case v.Value == nil:
			t.Errorf("%s: no such number", v.Threshold)
		case !v.OK:
			t.Errorf("%s: is %s", v.Threshold, number(*v.Value))
		}
	}
	for _, c := range r.Checks {
		if !c.OK {
			t.Errorf("afterwards: %s", c.Detail)
		}
	}
}

// What the simulator cannot play is played over the whole of Leeway, in virtual
// time; the others are too, behind the accept tag.
func TestDrillsNotSimulated(t *testing.T) {
	for _, p := range Plans() {
		if CannotSimulate(p) == "" {
			continue
		}
		t.Run(p.Name, func(t *testing.T) { passes(t, playVirtually(t, p)) })
	}
}

// A hung call costs what is promised behind it in the only slot, and no more.
func TestOneHang(t *testing.T) { passes(t, playVirtually(t, named(t, "one-hang"))) }

// The second article's second table, over the whole of Leeway: eight successes
// either way, none in time against all.
func TestAttemptCounted(t *testing.T) {
	p := named(t, "attempt-counted")
	r := playVirtually(t, p)
	passes(t, r)
	t.Logf("straight: %+v; through Leeway: p50 %g ms", *r.Direct, r.Metrics["answer_p50_ms"])
	if r.Direct.P50MS < 3000 || r.Direct.P50MS > 3010 {
		t.Errorf("p50 of those who went straight is %d ms, want 3000", r.Direct.P50MS)
	}
}
