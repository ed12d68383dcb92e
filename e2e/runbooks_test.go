//go:build server

package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"leeway/rehearsal/proctest"
)

var block = regexp.MustCompile("(?s)```sh\n(.*?)```")

// systemctlScript stands in for systemd, which a test machine does not run. It takes
// what to do from the shipped units.
const systemctlScript = `#!/bin/bash
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

// curlScript is curl, but that an answer of 4xx or 5xx fails the command.
const curlScript = `#!/bin/bash
for arg in "$@"; do
	case $arg in -sf) exec /usr/bin/curl "$@" ;; esac
done
exec /usr/bin/curl --fail-with-body "$@"
`

// TestRunbookCommands runs every command of every page, in the pages' own order,
// against a running system under load. A page must leave no flag set and no
// pool drained.
func TestRunbookCommands(t *testing.T) {
	t.Parallel()
	envFile := filepath.Join(t.TempDir(), "leeway.env")
	if err := os.WriteFile(envFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := quick()
	s.DeadlineMS, s.ReserveMS, s.Budget = 3000, 300, 1_000_000_000_000
	s.More = "knee_file: knees.json\n"
	w := watch(t, s, nil, "--env-file", envFile)
	w.flood(250*time.Millisecond, int64(s.DeadlineMS), func(int) string { return "runbooks" })

	units, err := filepath.Abs("../deploy/systemd")
	if err != nil {
		t.Fatal(err)
	}
	bin, pids := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		filepath.Join(bin, "systemctl"):      systemctlScript,
		filepath.Join(bin, "curl"):           curlScript,
		filepath.Join(pids, "leeway-api"):    fmt.Sprint(w.api.Cmd.Process.Pid),
		filepath.Join(pids, "leeway-worker"): fmt.Sprint(w.workers[0].Cmd.Process.Pid),
	} {
		if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	paid, free := w.labs["lab-paid"], w.labs["lab-free"]
	env := append(os.Environ(),
		"PATH="+bin+":"+w.bin+":"+os.Getenv("PATH"), "UNITS="+units, "PIDS="+pids,
		"LEEWAY_API="+w.client.Base, "REDIS_URL="+w.redis.URL(),
		"LAB_PAID_CONTROL="+paid.control, "LAB_FREE_CONTROL="+free.control,
	)
	here := strings.NewReplacer(
		"localhost:8080", strings.TrimPrefix(w.client.Base, "http://"), "localhost:9090", w.apiMetrics, "localhost:9091", w.workerMetrics, "localhost:9099", w.prometheus,
		"localhost:8001/v1", strings.TrimPrefix(paid.url, "http://"), "/etc/leeway/leeway.env", envFile, "/etc/leeway/leeway.yaml", w.file,
	)
	run := func(script string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", here.Replace(script))
		cmd.Env = env
		return cmd.CombinedOutput()
	}

	// Counters of what the pages look at must exist before they look.
	proctest.Eventually(t, time.Minute, "jobs have run and were scraped", func() error {
		_, err := run(`
			curl -s localhost:9091/metrics | grep -E '^job_queue_wait_ms_count.path="paid". [1-9]'
			for metric in job_decision_total job_queue_wait_ms_count; do
				curl -sG localhost:9099/api/v1/query --data-urlencode "query=rate($metric[1h])" | grep '"value"'
			done`)
		return err
	})
	all, err := filepath.Glob("../runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, name := range all {
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range block.FindAllStringSubmatch(string(page), -1) {
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
		proctest.Eventually(t, 20*time.Second, name+" leaves all as it was", func() error {
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
	for _, p := range []*process{w.api, w.workers[0]} { // errors fail when they are stopped
		if !strings.Contains(p.Out.String(), `"configuration reloaded"`) {
			t.Errorf("%s was reloaded by no page", p.name)
		}
	}
	t.Logf("%d blocks of commands ran", n)
	if n < 40 {
		t.Errorf("%d blocks of commands are fewer than the pages had", n)
	}
}
