package drill

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"leeway/rehearsal/lab"
	"leeway/slackgate"
)

// Fitted is a plan as a deployment can play it.
type Fitted struct {
	Plan *Plan
	// Differs says what the deployment has otherwise than the plan declares.
	Differs []string
	// LeftOut says what of the plan is left out there, and why.
	LeftOut []string
}

// sized are the metrics whose numbers in a plan hold for the pools that it
// declares; a deployment with other pools has others.
var sized = []string{
	"usable", "success", "admitted", "admitted_paid", "admitted_free", "rejected", "rejected_percent", "answered", "empty",
	"answer_p50_ms", "queue_age_free_max_ms",
}

// Fit holds a plan against the deployment as it stands. The plan that it returns
// declares the deployment's own pools, and only thresholds that mean something
// there. That an event cannot be carried out is an error, as is a plan that no
// threshold is left of.
func (d *Deployment) Fit(ctx context.Context, p *Plan) (*Fitted, error) {
	if why := d.Cannots(p); len(why) > 0 {
		return nil, refuse(p, why...)
	}
	f := &Fitted{}
	p, left := p.WithoutContrast()
	if left != "" {
		f.LeftOut = append(f.LeftOut, left)
	}
	fitted := *p
	f.Plan = &fitted
	f.differ(p, d)
	other := len(f.Differs) > 0
	if err := f.paces(ctx, p, d); err != nil {
		return nil, err
	}
	fitted.Thresholds = nil
	for _, t := range p.Thresholds {
		why := d.meaningless(t.Metric, other)
		if why == "" {
			fitted.Thresholds = append(fitted.Thresholds, t)
			continue
		}
		f.LeftOut = append(f.LeftOut, fmt.Sprintf("threshold %s: %s", t, why))
	}
	if len(fitted.Thresholds) == 0 {
		return nil, refuse(p, "none of its thresholds means anything there: "+strings.Join(f.LeftOut, "; "))
	}
	return f, nil
}

// meaningless says why a threshold cannot be held there; empty: it can.
func (d *Deployment) meaningless(metric string, other bool) string {
	base, rest, _ := strings.Cut(metric, ".")
	if base == "answered" {
		if name, _, _ := strings.Cut(rest, "."); !slices.Contains(d.backends, name) {
			return "no backend there is called " + name
		}
	}
	switch {
	case other && slices.Contains(sized, base):
		return "its number is for what the plan declares"
	case metric == "twice_answered" && !d.WholeRecord:
		return "it takes the records of every backend (--lab-control)"
	}
	return ""
}

// differ notes what the deployment has otherwise, and puts it into the plan.
func (f *Fitted) differ(p *Plan, d *Deployment) {
	note := func(format string, args ...any) { f.Differs = append(f.Differs, fmt.Sprintf(format, args...)) }
	if d.gate.Policy != p.Policy.String() {
		note("gate %s, declared %s", d.gate.Policy, p.Policy)
		_ = f.Plan.Policy.UnmarshalText([]byte(d.gate.Policy)) // one that is not known here stays as declared
	}
	if off := d.gate.Recheck == "off"; off != p.RecheckOff {
		note("re-check %s", d.gate.Recheck)
		f.Plan.RecheckOff = off
	}
	if v := d.gate.Verdict; v != nil && v.ReserveMS != p.Class.ReserveMS {
		note("reserve %d ms, declared %d", v.ReserveMS, p.Class.ReserveMS)
		f.Plan.Class.ReserveMS = v.ReserveMS
	}
	for _, path := range slackgate.Paths {
		v, want, got := d.gate.Pools[path.String()], p.Pool(path), f.Plan.Pool(path)
		if v.Capacity != want.Slots {
			note("%s: %d slots, declared %d", path, v.Capacity, want.Slots)
			got.Slots = v.Capacity
		}
		if v.Closed && v.Capacity > 0 {
			note("%s: closed by a flag or a drain", path)
		}
		if v.Capacity == 0 || want.Slots == 0 {
			got.P95MS, got.HoldP95MS = max(v.FirstByteP95MS, 1), max(v.Hold.P95MS, 1)
			continue
		}
		if n := v.FirstByte.DeclaredP95MS; n != want.P95MS {
			note("%s: first byte p95 %d ms, declared %d", path, n, want.P95MS)
			got.P95MS = n
		}
		if n := v.Hold.DeclaredP95MS; n != want.HoldP95MS {
			note("%s: hold p95 %d ms, declared %d", path, n, want.HoldP95MS)
			got.HoldP95MS = n
		}
		if v.FirstByteP95MS > v.FirstByte.DeclaredP95MS {
			note("%s: the gate goes by a measured first byte p95 of %d ms", path, v.FirstByteP95MS)
		}
	}
}

// uncontrolled stands for the pace of a backend that a drill cannot ask.
const uncontrolled = "at its own pace"

// paces puts the paces of the deployment's labs into the plan, and notes where
// one is faster or slower than declared. A backend that is not there is left out.
func (f *Fitted) paces(ctx context.Context, p *Plan, d *Deployment) error {
	for _, path := range slackgate.Paths {
		pool := f.Plan.Pool(path)
		pool.Labs = nil
		for _, l := range p.Pool(path).Labs {
			if !slices.Contains(d.backends, l.Name) {
				continue
			}
			want := l.FirstByte
			l.FirstByte, l.Tail = uncontrolled, "0"
			if c, ok := d.Labs[l.Name].(*lab.Remote); ok {
				pace, err := c.Pace(ctx)
				if err != nil {
					return fmt.Errorf("lab %s: %w", l.Name, err)
				}
				l.FirstByte, l.Tail = pace.Profile, pace.Tail
				if !samePace(want, pace.Profile) {
					f.Differs = append(f.Differs, fmt.Sprintf("%s: first byte %s, declared %s", l.Name, pace.Profile, want))
				}
			}
			pool.Labs = append(pool.Labs, l)
		}
	}
	return nil
}

// samePace reports whether two profiles are the same, however they are written.
func samePace(a, b string) bool {
	x, errX := lab.ParseProfile(a)
	y, errY := lab.ParseProfile(b)
	return errX == nil && errY == nil && x.String() == y.String()
}
