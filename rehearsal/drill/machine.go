package drill

import (
	"fmt"

	"leeway/rehearsal/lab"
	"leeway/slackgate"
)

// Machine is how late the machine itself was in a live run: what a threshold
// that did not hold may be about instead of Leeway. All times in milliseconds.
type Machine struct {
	// SendP99MS is how late jobs were sent.
	SendP99MS int64 `json:"send_p99_ms"`
	// CallP95MS is how much longer than the lab was told to take a first byte
	// took, as the worker saw it, over Calls calls without a fault; 0 calls: not
	// known.
	Calls     int   `json:"calls"`
	CallP95MS int64 `json:"call_p95_ms"`
	// MarginMS is the least that the declared p95s leave for that.
	MarginMS int64 `json:"margin_ms"`
}

// lateSendMS is a lateness of sends that a deadline of seconds can feel.
const lateSendMS = 100

// Late says how the machine was late; empty: it was not.
func (m *Machine) Late() (out []string) {
	if m == nil {
		return nil
	}
	if m.SendP99MS > lateSendMS {
		out = append(out, fmt.Sprintf("jobs were sent up to %d ms late (p99)", m.SendP99MS))
	}
	if m.Calls > 0 && m.CallP95MS > m.MarginMS {
		out = append(out, fmt.Sprintf("first bytes came %d ms later than the lab was told (p95 of %d calls), and what is declared leaves %d ms", m.CallP95MS, m.Calls, m.MarginMS))
	}
	return out
}

// machine works out how late the machine was.
func (r *Run) machine(p *Plan, t times) {
	r.Machine = &Machine{SendP99MS: int64(r.Metrics["send_lag_p99_ms"])}
	told, margin := map[string]int64{}, map[string]int64{}
	for _, path := range slackgate.Paths {
		for _, l := range p.Pool(path).Labs {
			profile, err := lab.ParseProfile(l.FirstByte)
			if d, ok := profile.Steady(); err == nil && ok {
				told[l.Name] = d.Milliseconds()
				margin[l.Name] = l.P95MS - told[l.Name]
			}
		}
	}
	for i := range r.Calls {
		c := &r.Calls[i]
		j := &r.Jobs[c.Job]
		if _, ok := told[c.Backend]; !ok || c.Fault != "" || c.FirstMS < 0 || j.Attempts != 1 || j.FirstByteMS < 0 {
			continue
		}
		t.add(beyondLab, float64(j.FirstByteMS-told[c.Backend]))
		if r.Machine.Calls == 0 || margin[c.Backend] < r.Machine.MarginMS {
			r.Machine.MarginMS = margin[c.Backend]
		}
		r.Machine.Calls++
	}
	r.Machine.CallP95MS = int64(t.quantile(beyondLab, 95))
}
