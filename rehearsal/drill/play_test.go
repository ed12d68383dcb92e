package drill

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker/flag"
	"leeway/broker/wire"
	"leeway/rehearsal/lab"
)

// flagPlan flips a flag and plays a fault under load.
func flagPlan(t *testing.T) *Plan {
	t.Helper()
	p := named(t, "flag-flip")
	p.Events = append(p.Events[:1:1], Event{AtMS: 16_000, Do: DoFault, On: "lab-free", Fault: "silent"},
		Event{AtMS: 30_000, Do: DoHeal, On: "lab-free"}, Event{AtMS: 30_000, Do: DoClearFlag, On: "ADMIT_FREE"})
	if err := p.Complete(); err != nil {
		t.Fatal(err)
	}
	return p
}

// inVirtualTime runs f with an embedded Leeway of the plan.
func inVirtualTime(t *testing.T, p *Plan, f func(t *testing.T, e *Embedded)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e, err := startEmbedded(p, true, virtualPollMS)
		if err != nil {
			t.Fatal(err)
		}
		f(t, e)
		if err := e.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// alice sets a flag, as an operator who is at work does.
func alice(t *testing.T, e *Embedded) {
	t.Helper()
	_, err := e.Client.SetFlag(context.Background(), flag.AdmitFree, &wire.FlagChange{Value: "0", Reason: "misses rise", By: "alice"})
	if err != nil {
		t.Error(err)
	}
}

// setBy is who has set the flag; empty: nobody.
func setBy(t *testing.T, e *Embedded) string {
	t.Helper()
	f, err := e.flagThatIsSet(context.Background(), "ADMIT_FREE")
	if err != nil {
		t.Error(err)
	}
	if f == nil {
		return ""
	}
	return f.By
}

// A drill does not begin where somebody is at work with what it would break.
func TestDoesNotTouchWhatIsSet(t *testing.T) {
	p := flagPlan(t)
	inVirtualTime(t, p, func(t *testing.T, e *Embedded) {
		alice(t, e)
		if _, err := Play(t.Context(), p, &e.Target, new(Progress)); err == nil || !strings.Contains(err.Error(), "by alice (misses rise)") {
			t.Errorf("with a flag set: %v", err)
		}
		if by := setBy(t, e); by != "alice" {
			t.Errorf("the flag is now set by %q", by)
		}
	})
	inVirtualTime(t, p, func(t *testing.T, e *Embedded) {
		if err := e.stage.Labs["lab-free"].SetFault(lab.Fault{Name: "slow"}); err != nil {
			t.Fatal(err)
		}
		if _, err := Play(t.Context(), p, &e.Target, new(Progress)); err == nil || !strings.Contains(err.Error(), "plays the fault slow already") {
			t.Errorf("with a fault set: %v", err)
		}
	})
}

// A flag that an operator has set while the drill ran stays, and the report says
// so.
func TestLeavesAnOperatorsFlag(t *testing.T) {
	p := flagPlan(t)
	inVirtualTime(t, p, func(t *testing.T, e *Embedded) {
		timer := time.AfterFunc(20*time.Second, func() { alice(t, e) })
		defer timer.Stop()
		r, err := Play(t.Context(), p, &e.Target, new(Progress))
		if err != nil {
			t.Fatal(err)
		}
		r.Judge(p)
		if by := setBy(t, e); by != "alice" {
			t.Errorf("the flag is now set by %q", by)
		}
		if r.Metrics["ledger_problems"] == 0 {
			t.Error("the report says nothing of it")
		}
	})
}

// A run that is ended early undoes what it has done, and takes its jobs back.
func TestEndedEarly(t *testing.T) {
	p := flagPlan(t)
	inVirtualTime(t, p, func(t *testing.T, e *Embedded) {
		ctx, cancel := context.WithTimeout(t.Context(), 18*time.Second)
		defer cancel()
		if _, err := Play(ctx, p, &e.Target, new(Progress)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended with %v", err)
		}
		if by := setBy(t, e); by != "" {
			t.Errorf("the flag is still set by %q", by)
		}
		if f := e.stage.Labs["lab-free"].Fault(); f.Name != "" {
			t.Errorf("lab-free plays %s", f.Name)
		}
		time.Sleep(5 * time.Second) // virtual: running jobs see that they are taken back
		pools, err := e.Client.Pools(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for name, v := range pools.Pools {
			if v.Waiting+v.Running > 0 {
				t.Errorf("%s: %d waiting, %d running", name, v.Waiting, v.Running)
			}
		}
	})
}

// A job that the API does not take at all ends the drill, with the API's reason.
func TestRefusedByTheAPI(t *testing.T) {
	p := flagPlan(t)
	p.Arrivals = []Arrivals{{Count: 2, OutputTokens: 1_000_000}}
	inVirtualTime(t, p, func(t *testing.T, e *Embedded) {
		if _, err := Play(t.Context(), p, &e.Target, new(Progress)); err == nil || !strings.Contains(err.Error(), "max_output_tokens") {
			t.Errorf("ended with %v", err)
		}
	})
}
