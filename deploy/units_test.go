package deploy_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"leeway/broker/config"
)

func read(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

var (
	option = regexp.MustCompile(`--([a-z-]+)`)
	field  = regexp.MustCompile(`(?m)^\t+([A-Z]\w+) +(?:string|bool)\s+` + "`")
	hump   = regexp.MustCompile(`([a-z])([A-Z])`)
)

// options are the options that a command's main.go declares, and those that all
// processes have.
func options(t *testing.T, command string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, file := range []string{"../cmd/" + command + "/main.go", "../cmd/app/command.go"} {
		for _, m := range field.FindAllStringSubmatch(read(t, file), -1) {
			out[strings.ToLower(hump.ReplaceAllString(m[1], "$1-$2"))] = true
		}
	}
	if !out["config"] {
		t.Fatalf("%s: options %v", command, out)
	}
	return out
}

// TestUnits holds the shipped units to what the processes do: they reload on
// SIGHUP, know the options they are started with, and are given time to stop.
func TestUnits(t *testing.T) {
	for unit, command := range map[string]string{"leeway-api": "api", "leeway-worker": "worker"} {
		keys := map[string]string{}
		for line := range strings.Lines(read(t, "systemd/"+unit+".service")) {
			if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(k, "#") {
				keys[k] = v
			}
		}
		if got := keys["ExecReload"]; got != "/bin/kill -HUP $MAINPID" {
			t.Errorf("%s: ExecReload=%s", unit, got)
		}
		start := keys["ExecStart"]
		if !strings.HasPrefix(start, "/usr/local/bin/"+command+" ") {
			t.Errorf("%s: ExecStart=%s", unit, start)
		}
		known := options(t, command)
		for _, m := range option.FindAllStringSubmatch(start, -1) {
			if !known[m[1]] {
				t.Errorf("%s starts %s with --%s, which it does not know", unit, command, m[1])
			}
		}
		if !strings.Contains(start, "--env-file ") {
			t.Errorf("%s names no environment file: a reload could not change the environment", unit)
		}
		stop, err := strconv.ParseInt(keys["TimeoutStopSec"], 10, 64)
		if err != nil {
			t.Errorf("%s: TimeoutStopSec: %v", unit, err)
		}
		if grace := config.Default().Worker.ShutdownGraceMS; command == "worker" && stop*1000 <= grace {
			t.Errorf("%s is killed after %d s; a worker stops within %d ms", unit, stop, grace)
		}
	}
}
