//go:build server && accept

package e2e_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"leeway/rehearsal/drill"
	"leeway/rehearsal/redistest"
)

// setup starts what `leeway drill setup` prints for a drill: its commands and its
// file, with ports of this test's own.
func setup(t *testing.T, name string) *stack {
	t.Helper()
	doc, err := exec.Command(filepath.Join(bin, "leeway"), "drill", "setup", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	d := &stack{t: t, labs: map[string]*backend{}, redis: redistest.Start(t)}
	d.redisAt(doc)
	text := strings.Replace(string(doc), "redis://127.0.0.1:6379/0", d.redis.URL(), 1)
	command := regexp.MustCompile(`(?m)^#   leeway (lab --addr (\S+) --control \S+ --model (\S+) .*)$`)
	for _, m := range command.FindAllStringSubmatch(string(doc), -1) {
		args := strings.Fields(m[1])
		args[2], args[4] = "127.0.0.1:0", "127.0.0.1:0"
		b := startLabWith(t, m[3], args)
		d.labs[m[3]] = b
		text = strings.Replace(text, "http://"+m[2]+"/v1", b.url, 1)
	}
	text = "listen: 127.0.0.1:0\nmetrics_listen: 127.0.0.1:0\nworker_metrics_listen: 127.0.0.1:0\n" + text
	d.file = filepath.Join(t.TempDir(), "leeway.yaml")
	if err := os.WriteFile(d.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// The first worker is the one that a drill may kill.
	if strings.Contains(text, "LEEWAY_PAID_SLOTS=0 worker") {
		d.startWorker("LEEWAY_PAID_SLOTS=0")
		d.startWorker("LEEWAY_FREE_SLOTS=0")
	} else {
		d.startWorker()
	}
	d.startAPI()
	d.ready()
	return d
}

// redisAt checks that the file names the Redis that is then replaced.
func (d *stack) redisAt(doc []byte) {
	d.t.Helper()
	if !bytes.Contains(doc, []byte("redis://127.0.0.1:6379/0")) {
		d.t.Fatalf("no Redis in\n%s", doc)
	}
}

// TestAcceptDrills plays the built-in drills against real processes, as their
// plans declare them. Their thresholds hold on a quiet machine; the report says
// when the machine was late. worker-back is for virtual time: two cores do not
// carry its hundred jobs a second through a restart.
func TestAcceptDrills(t *testing.T) {
	for _, plan := range drill.Plans() {
		if plan.Name == "worker-back" {
			continue
		}
		does := func(a drill.Action) bool {
			return slices.ContainsFunc(plan.Events, func(e drill.Event) bool { return e.Do == a })
		}
		t.Run(plan.Name, func(t *testing.T) {
			d := setup(t, plan.Name)
			worker := d.workers[0]
			for _, p := range []*process{d.api, worker} {
				p.outage = true // what is said of a Redis that stands still is no failure
			}
			args := append(d.controls(), plan.Name, "--worker-pid", strconv.Itoa(worker.Cmd.Process.Pid), "--redis-pid", strconv.Itoa(d.redis.PID()))
			worker.killed.Store(does(drill.DoKillWorker))
			if does(drill.DoAddWorker) {
				ended := make(chan struct{})
				defer func() { <-ended }()
				go func() { // as a supervisor does
					defer close(ended)
					<-worker.Done
					if err := d.anotherWorker(); err != nil {
						t.Errorf("no other worker: %v", err)
					}
				}()
			}
			e, code := d.drilled(5*time.Minute, args...)
			if left := len(e.LeftOut) > 0; left != (plan.Contrast != "") || len(e.Differs) > 0 {
				t.Errorf("differs %q, left out %q", e.Differs, e.LeftOut)
			}
			if code != 0 {
				t.Errorf("exit %d", code)
			}
			for _, v := range e.Runs[0].Thresholds {
				if !v.OK {
					t.Errorf("%s: is %v", v.Threshold, e.Runs[0].Metrics[strings.Fields(v.Threshold)[0]])
				}
			}
			d.undone()
		})
	}
}

// anotherWorker starts a worker like the first; it may be called beside the
// test. It ends with the test's process.
func (d *stack) anotherWorker() error {
	cmd := exec.Command(filepath.Join(bin, "worker"), "--config", d.file)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	if err := cmd.Start(); err != nil {
		return err
	}
	d.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return nil
}
