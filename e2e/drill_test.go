//go:build server

package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/wire"
	"leeway/rehearsal/proctest"
)

// evidence is what these tests read of a drill's JSON.
type evidence struct {
	Against string   `json:"against"`
	Differs []string `json:"differs"`
	LeftOut []string `json:"left_out"`
	Runs    []struct {
		Done []struct {
			What  string `json:"what"`
			Error string `json:"error"`
		} `json:"done"`
		Metrics    map[string]float64 `json:"metrics"`
		Thresholds []struct {
			Threshold string   `json:"threshold"`
			Value     *float64 `json:"value"`
			OK        bool     `json:"ok"`
		} `json:"thresholds"`
		Compared []struct {
			Name   string   `json:"name"`
			Usable *float64 `json:"usable"`
		} `json:"compared"`
	} `json:"runs"`
}

// controls are the flags that tell a drill of the stack's labs.
func (d *stack) controls() []string {
	var args []string
	for name, b := range d.labs {
		args = append(args, "--lab-control", name+"="+b.control)
	}
	return args
}

// drill starts `leeway drill` against the stack. What it prints is not JSON.
func (d *stack) drill(args ...string) *process {
	d.t.Helper()
	p := start(d.t, "leeway", nil, append([]string{"drill"}, append(args, "--api", d.client.Base)...)...)
	p.plain = true
	return p
}

// drilled runs a drill to its end and returns its evidence and exit code.
func (d *stack) drilled(within time.Duration, args ...string) (e evidence, code int) {
	d.t.Helper()
	file := filepath.Join(d.t.TempDir(), "evidence.json")
	p := d.drill(append(args, "--json", file)...)
	select {
	case <-p.Done:
	case <-time.After(within):
		d.t.Fatalf("the drill did not end in %v", within)
	}
	p.judged = true // it may well exit 1
	raw, err := os.ReadFile(file)
	if err != nil {
		d.t.Fatalf("%v; the drill printed:\n%s%s", err, proctest.Tail(p.Out.String()), proctest.Tail(p.Err.String()))
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		d.t.Fatal(err)
	}
	d.t.Logf("%s", p.Out.String())
	return e, p.Cmd.ProcessState.ExitCode()
}

// undone checks that a drill has left nothing behind: labs healthy, no flag set,
// no job waiting or running, books that balance.
func (d *stack) undone() {
	d.t.Helper()
	for name, b := range d.labs {
		if r := call(d.t, http.MethodGet, b.control+"/fault", "", ""); strings.TrimSpace(string(r.body)) != "{}" {
			d.t.Errorf("%s still plays %s", name, r.body)
		}
	}
	flags, err := d.client.Flags(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	if i := slices.IndexFunc(flags, func(f wire.FlagView) bool { return f.Source == "flag" }); i >= 0 {
		d.t.Errorf("still set: %+v", flags[i])
	}
	proctest.Eventually(d.t, 10*time.Second, "no job of the drill is left", func() error {
		p, err := d.client.Pools(d.t.Context())
		if err != nil {
			return err
		}
		for name, v := range p.Pools {
			if v.Waiting+v.Running > 0 {
				return fmt.Errorf("%s: %d waiting, %d running", name, v.Waiting, v.Running)
			}
		}
		return nil
	})
	d.balanced()
}

// TestDrill drills a deployment by its address: what is known of the jobs comes
// from the API alone, faults go to the labs that are named, and nothing is left
// behind.
func TestDrill(t *testing.T) {
	t.Parallel()
	d := run(t, quick())
	e, code := d.drilled(time.Minute, append(d.controls(), "--plan", "testdata/drill-short.yaml", "--class", "free-only")...)
	if e.Against != d.client.Base || len(e.Differs)+len(e.LeftOut) > 0 || len(e.Runs) != 1 {
		t.Fatalf("against %s, differs %q, left out %q, %d runs", e.Against, e.Differs, e.LeftOut, len(e.Runs))
	}
	r := &e.Runs[0]
	passed := true
	for _, v := range r.Thresholds {
		passed = passed && v.OK
		if !v.OK {
			t.Errorf("%s: %v", v.Threshold, v.Value)
		}
	}
	if passed != (code == 0) {
		t.Errorf("exit %d, passed %t", code, passed)
	}
	var done []string
	for _, x := range r.Done {
		if x.Error != "" {
			t.Errorf("%s: %s", x.What, x.Error)
		}
		done = append(done, x.What)
	}
	if len(done) != 4 {
		t.Errorf("done: %q", done)
	}
	d.undone()
	d.drillRefuses()
}

// drillRefuses checks what a drill says that may not do what its plan wants.
func (d *stack) drillRefuses() {
	d.t.Helper()
	for _, row := range []struct{ args, says string }{
		{"free-slow", "--lab-control lab-free=URL"},
		{"kill-worker", "--worker-pid"},
		{"redis-pause", "--redis-pid"},
		{"declared --lab-control lab-moon=http://127.0.0.1:1/control", "no backend there is called"},
		{"declared --lab-control lab-free=http://192.0.2.1/control", "--remote"},
		{"declared --class nobody", "class"},
		{"declared --redis-pid 1", "no worker's and no Redis's"},
		{"declared --simulate", "leave one out"},
		{"declared --no-recheck", "as it is"},
	} {
		p := d.drill(strings.Fields(row.args)...)
		<-p.Done
		p.judged = true
		if code := p.Cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(p.Err.String(), row.says) {
			d.t.Errorf("drill %s: exit %d: %s", row.args, code, p.Err.String())
		}
	}
	p := d.drill("list")
	<-p.Done
	for _, want := range []string{
		"left out: fault lab-free slow after 6000 ms: needs the control of lab-free (--lab-control lab-free=URL)",
		"can be played there, with 5 of its 6 thresholds", // declared: its number of usable jobs is for other pools
	} {
		if !strings.Contains(p.Out.String(), want) {
			d.t.Errorf("drill list does not say %q:\n%s", want, p.Out.String())
		}
	}
}

// TestDrillInterrupted ends a drill by Ctrl-C while a fault, a flag and a stopped
// Redis are its doing: all of it is undone, and its jobs are taken back.
func TestDrillInterrupted(t *testing.T) {
	t.Parallel()
	s := quick()
	s.FreeMS = 3000 // jobs that are still there when the drill is ended
	s.FreeP95 = 3200
	d := run(t, s)
	plan := filepath.Join(t.TempDir(), "plan.yaml")
	doc := `
name: interrupted
about: everything that can be broken is
class: {deadline_ms: 4000, reserve_ms: 500, prefer: free-first}
paid: {slots: 2, p95_ms: 250, labs: [{name: lab-paid, first_byte: "fixed:60ms"}]}
free: {slots: 1, p95_ms: 3200, labs: [{name: lab-free, first_byte: "fixed:3s"}]}
arrivals: [{per_second: 4, for_ms: 60000}]
events:
  - {at_ms: 0, do: fault, on: lab-paid, fault: silent}
  - {at_ms: 1000, do: flag, on: FREE_QUEUE_AGE_CUT_MS, value: "60000"}
  - {at_ms: 2000, do: pause-store}
thresholds: [ledger_problems <= 0]
`
	if err := os.WriteFile(plan, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range append(slices.Clone(d.apis), d.workers...) {
		p.outage = true
	}
	p := d.drill(append(d.controls(), "--plan", plan, "--redis-pid", strconv.Itoa(d.redis.PID()))...)
	proctest.Eventually(t, 20*time.Second, "Redis is stopped", func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.redis.PID()))
		if err != nil {
			return err
		}
		if !strings.Contains(string(stat), ") T ") {
			return errors.New("it runs")
		}
		return nil
	})
	p.Signal(syscall.SIGINT)
	select {
	case <-p.Done:
	case <-time.After(callTimeout):
		t.Fatal("the drill did not end")
	}
	p.judged = true
	if code := p.Cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit %d", code)
	}
	if s := p.Err.String(); strings.Contains(s, "could not be undone") {
		t.Errorf("it said: %s", s)
	}
	d.undone()
	jobs, err := d.client.Misses(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range jobs {
		if jobs[i].Cause != broker.CauseExpiredInQueue && jobs[i].Cause != broker.CauseLateFirstByte {
			t.Errorf("a job missed by %s", jobs[i].Cause)
		}
	}
}
