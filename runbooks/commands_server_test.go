//go:build server

package runbooks_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"leeway/rehearsal/stagetest"
)

var block = regexp.MustCompile("(?s)```sh\n(.*?)```")

// systemctl stands in for systemd, which a test machine does not run. It takes
// what to do from the shipped units.
const systemctl = `#!/bin/bash
set -eu
verb=$1; shift
case $verb in
reload)
	for unit in "$@"; do
		MAINPID=$(cat "$PIDS/$unit")
		eval "$(sed -n 's/^ExecReload=//p' "$UNITS/$unit.service")"
	done ;;
list-unit-files)
	for f in "$UNITS"/*; do
		case $(basename "$f") in $1) basename "$f" ;; esac
	done ;;
*)
	echo "no such verb: $verb" >&2; exit 1 ;;
esac
`

// curl is curl, but that an answer of 4xx or 5xx fails the command.
const curl = `#!/bin/bash
for arg in "$@"; do
	case $arg in -sf) exec /usr/bin/curl "$@" ;; esac
done
exec /usr/bin/curl --fail-with-body "$@"
`

// TestCommands runs every command of every page, in the pages' own order,
// against a running system under load. A page must leave no flag set and no
// pool drained.
func TestCommands(t *testing.T) {
	st := stagetest.Start(t, "..", stagetest.Settings{})
	st.Flood(250*time.Millisecond, func(int) string { return "runbooks" })

	units, err := filepath.Abs("../deploy/systemd")
	if err != nil {
		t.Fatal(err)
	}
	bin, pids := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		filepath.Join(bin, "systemctl"):      systemctl,
		filepath.Join(bin, "curl"):           curl,
		filepath.Join(pids, "leeway-api"):    fmt.Sprint(st.API.Cmd.Process.Pid),
		filepath.Join(pids, "leeway-worker"): fmt.Sprint(st.Worker.Cmd.Process.Pid),
	} {
		if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	env := append(os.Environ(),
		"PATH="+bin+":"+st.Bin+":"+os.Getenv("PATH"), "UNITS="+units, "PIDS="+pids,
		"LEEWAY_API=http://"+st.APIAddr, "REDIS_URL="+st.Redis.URL(),
		"LAB_PAID_CONTROL="+st.Paid.Control, "LAB_FREE_CONTROL="+st.Free.Control,
	)
	here := strings.NewReplacer(
		"localhost:8080", st.APIAddr, "localhost:9090", st.APIMetrics, "localhost:9091", st.WorkerMetrics, "localhost:9099", st.Prometheus,
		"localhost:8001/v1", strings.TrimPrefix(st.Paid.URL, "http://"), "/etc/leeway/leeway.env", st.EnvFile, "/etc/leeway/leeway.yaml", st.Config,
	)
	run := func(script string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", here.Replace(script))
		cmd.Env = env
		return cmd.CombinedOutput()
	}

	// Counters of what the pages look at must exist before they look.
	stagetest.Eventually(t, time.Minute, "jobs have run and were scraped", func() error {
		_, err := run(`
			curl -s localhost:9091/metrics | grep -E '^job_queue_wait_ms_count.path="paid". [1-9]'
			for metric in job_decision_total job_queue_wait_ms_count; do
				curl -sG localhost:9099/api/v1/query --data-urlencode "query=rate($metric[1h])" | grep '"value"'
			done`)
		return err
	})
	all := pages(t)
	n := 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, m := range block.FindAllStringSubmatch(all[name], -1) {
			n++
			begun := time.Now()
			out, err := run(m[1])
			if err != nil {
				t.Errorf("%s: %v\n%s\nprinted:\n%s", name, err, m[1], out)
			}
			if strings.Contains(string(out), `"result":[]`) {
				t.Errorf("%s: no data for\n%s", name, m[1])
			}
			if took := time.Since(begun); took > 20*time.Second {
				t.Errorf("%s: took %v:\n%s", name, took, m[1])
			}
		}
		stagetest.Eventually(t, 20*time.Second, name+" leaves all as it was", func() error {
			for what, script := range map[string]string{
				"flags":       `! leeway flags | tail -n +2 | grep -v ' config '`,
				"pools":       `leeway pools | grep '^paid: open' && leeway pools | grep '^free: open'`,
				"environment": `test ! -s /etc/leeway/leeway.env`,
				"faults":      `curl -s "$LAB_PAID_CONTROL/fault" "$LAB_FREE_CONTROL/fault" | { ! grep -E '"name": ?"[a-z]'; }`,
			} {
				if out, err := run(script); err != nil {
					return fmt.Errorf("%s: %w\n%s", what, err, out)
				}
			}
			return nil
		})
	}
	for name, p := range map[string]*stagetest.Process{"api": st.API, "worker": st.Worker} {
		log := p.Output()
		if !strings.Contains(log, `"configuration reloaded"`) {
			t.Errorf("%s was reloaded by no page", name)
		}
		for line := range strings.Lines(log) {
			if strings.Contains(line, `"level":"ERROR"`) {
				t.Errorf("%s logged %s", name, line)
			}
		}
	}
	t.Logf("%d blocks of commands ran", n)
	if n < 40 {
		t.Errorf("%d blocks of commands are fewer than the pages had", n)
	}
}
