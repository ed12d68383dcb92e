//go:build accept

package drill

import "testing"

// TestAcceptDrillsVirtual plays every drill over the whole of Leeway in virtual
// time: about a minute of a core.
func TestAcceptDrillsVirtual(t *testing.T) {
	for _, p := range Plans() {
		t.Run(p.Name, func(t *testing.T) {
			r := playVirtually(t, p)
			passes(t, r)
			for _, d := range r.Done {
				t.Logf("%6d ms %s %s", d.AtMS, d.What, d.Error)
			}
		})
	}
}

// TestAcceptBroken breaks the declared drill on purpose, over the whole of
// Leeway: without the re-check, and with p95s declared too low as well.
func TestAcceptBroken(t *testing.T) {
	for _, row := range broken {
		t.Run(row.name, func(t *testing.T) {
			p := row.plan(t)
			crossed(t, playVirtually(t, p), row.crossed)
		})
	}
}
