//go:build server

package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/faultpoint"
	"leeway/rehearsal/proctest"
	"leeway/slackgate"
)

const faultEnv = "LEEWAY_FAULTPOINT"

// buildFaulty builds the binaries that die where they are told to, and checks
// that those of the product cannot.
func buildFaulty(t *testing.T) {
	t.Helper()
	// Without the race detector, as the product is built: most of it is built already.
	if _, err := proctest.Build(filepath.Join(bin, "faultpoints"), []string{"-tags", "faultpoints"}, "api", "worker"); err != nil {
		t.Fatal(err)
	}
	for name, can := range map[string]bool{"api": false, "worker": false, "faultpoints/api": true, "faultpoints/worker": true} {
		raw, err := os.ReadFile(filepath.Join(bin, name))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(raw, []byte(faultEnv)) != can {
			t.Errorf("%s: a fault point is in it: %v, want %v", name, !can, can)
		}
	}
}

// died waits for a process to kill itself.
func died(t *testing.T, p *process, place string) {
	t.Helper()
	p.killed.Store(true)
	select {
	case <-p.Done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s lives after %s", p.name, place)
	}
}

// TestKilledAtEachStep kills an API at each step of a submission and a worker at
// each step of a job. The producer asks again with its key and gets the truth,
// the job is run once, or again with a row that says so, and no slot stays
// taken.
func TestKilledAtEachStep(t *testing.T) {
	t.Parallel()
	buildFaulty(t)
	one := quick()
	one.PaidSlots, one.DeadlineMS = 1, 20_000
	// What is known at the place where the API dies.
	onRecord := map[string]bool{faultpoint.Promised: true, faultpoint.Ticketing: true, faultpoint.Replying: true}
	for _, place := range faultpoint.API {
		t.Run("api "+place, func(t *testing.T) {
			t.Parallel()
			d := deploy(t, one)
			d.startWorker()
			d.faulty, d.env = "faultpoints", []string{faultEnv + "=" + place}
			victim := d.startAPI()
			d.faulty, d.env = "", nil
			d.ready()
			job := client.Job{Class: "paid-only", Text: text, IdempotencyKey: "killed-at-" + place}
			if v, err := d.client.Submit(context.Background(), &job); err == nil && place != faultpoint.Ticketing { // whose answer may be out
				t.Fatalf("answered %+v", v)
			}
			died(t, victim, place)
			d.startAPI()
			d.ready()
			// A ghost, whose producer never asks again, frees its slot too.
			proctest.Eventually(t, 20*time.Second, "nothing in flight", func() error {
				for _, pg := range d.metrics() {
					if n := pg.get(`job_inflight{path="paid"}`); n != 0 {
						return fmt.Errorf("%d in flight", n)
					}
				}
				return nil
			})
			before := d.labs["lab-paid"].forJobs()
			if ran := before == 1; ran != onRecord[place] {
				t.Errorf("%d calls were made for the job, on record: %v", before, onRecord[place])
			}
			s := d.admit(job)
			if s.verdict.Path != slackgate.Paid {
				t.Errorf("the second answer: %+v", s.verdict)
			}
			if v := d.waitFor(s, 20*time.Second); v.Outcome != broker.OutcomeUsable || v.Attempts != 1 || v.Answer == "" {
				t.Errorf("the job: %+v", v)
			}
			if n := d.labs["lab-paid"].forJobs(); n != 1 {
				t.Errorf("%d calls in all", n)
			}
			// Another body under the same key is another submission.
			job.Text = "Something else."
			if s := d.submit(job); s.refusal == nil || s.refusal.Status != http.StatusConflict {
				t.Errorf("another body under the key: %+v %+v", s.verdict, s.refusal)
			}
			d.book.subs = d.book.subs[:1]
			d.audit(rules{})
		})
	}
	t.Run("api "+faultpoint.Told, func(t *testing.T) {
		t.Parallel()
		toldTwice(t, one)
	})
	for _, place := range faultpoint.Worker {
		t.Run("worker "+place, func(t *testing.T) {
			t.Parallel()
			d := deploy(t, one)
			d.faulty, d.env = "faultpoints", []string{faultEnv + "=" + place}
			victim := d.startWorker("LEEWAY_FREE_SLOTS=0")
			d.faulty, d.env = "", nil
			d.startAPI()
			d.ready()
			s := d.admit(client.Job{Class: "paid-only", Text: text})
			died(t, victim, place)
			d.startWorker()
			v := d.waitFor(s, 20*time.Second)
			called := d.labs["lab-paid"].forJobs()
			want := map[string][2]int{ // attempts on the books, calls made
				faultpoint.Claimed: {1, 1}, faultpoint.Booked: {2, 1}, faultpoint.Answered: {2, 2}, faultpoint.Finished: {1, 1},
			}[place]
			if v.Outcome != broker.OutcomeUsable || v.Attempts != want[0] || called != want[1] {
				t.Errorf("%s after %d attempts and %d calls, want usable after %v", v.Outcome, v.Attempts, called, want)
			}
			unknown := 0
			rows := d.rows()
			for i := range rows {
				if lost(&rows[i]) {
					unknown++
				}
			}
			if unknown != want[0]-1 {
				t.Errorf("%d rows of unknown cost, want %d", unknown, want[0]-1)
			}
			d.auditBooks(rules{uncalled: lost})
		})
	}
}
