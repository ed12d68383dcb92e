//go:build server

package dashboards

import (
	"os/exec"
	"strings"
	"testing"
)

// TestRules runs promtool's unit tests of the rules.
func TestRules(t *testing.T) {
	for _, args := range [][]string{
		{"check", "rules", rulesFile},
		{"test", "rules", "prometheus/rules_test.yaml"},
		{"check", "config", "prometheus/prometheus.yaml"},
	} {
		if out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
