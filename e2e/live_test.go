//go:build server

package e2e_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
)

// workload is the declared one, or a scaled copy of it.
type workload struct {
	every                 time.Duration
	jobs                  int
	deadlineMS, reserveMS int
	paidMS, freeMS        int
}

// best is the most jobs that any schedule could answer in time: each worker, one
// job after the other, until the last job's first byte is due.
func (w workload) best() int {
	last := (time.Duration(w.jobs-1) * w.every).Milliseconds()
	due := int(last) + w.deadlineMS - w.reserveMS
	return 2*(due/w.paidMS) + due/w.freeMS
}

// live is what came of a workload.
type live struct {
	admitted, usable, late, expired, other int
	undecided                              int // no answer, or 503: the machine was too busy
}

// play submits the workload on schedule and waits for every end.
func (d *stack) play(w workload) live {
	d.t.Helper()
	every(w.every, w.jobs, func(int) { d.submit(client.Job{Text: text}) })
	d.settled(time.Minute)
	o := d.outcomes()
	r := live{admitted: len(d.book.admitted()), usable: o[broker.OutcomeUsable], late: o[broker.OutcomeLate], expired: o[broker.OutcomeExpired]}
	r.other = r.admitted - r.usable - r.late - r.expired
	for _, s := range d.book.all() {
		if s.err != nil || s.reason().Unavailable() {
			r.undecided++
		}
	}
	return r
}

// TestScaledWorkload runs the declared workload at a sixth of its time scale,
// where dispatch and a busy machine weigh six times as much: what is asserted
// is wide, what is printed is the point.
func TestScaledWorkload(t *testing.T) {
	w := workload{every: 125 * time.Second / 6000, jobs: 336, deadlineMS: 2500, reserveMS: 333, paidMS: 200, freeMS: 667}
	s := quick()
	s.PaidMS, s.PaidP95 = w.paidMS-20, w.paidMS // the rest is the way there
	s.FreeMS, s.FreeP95 = w.freeMS-20, w.freeMS
	s.DeadlineMS, s.ReserveMS = w.deadlineMS, w.reserveMS
	d := run(t, s)
	r := d.play(w)
	t.Logf("%d offered, %d admitted: %d usable, %d late, %d expired, %d otherwise; any schedule: at most %d; %d undecided",
		w.jobs, r.admitted, r.usable, r.late, r.expired, r.other, w.best(), r.undecided)
	if r.undecided > w.jobs/10 {
		t.Errorf("%d of %d submissions got no decision", r.undecided, w.jobs)
	}
	if r.usable < w.best()/3 {
		t.Errorf("%d usable of %d possible", r.usable, w.best())
	}
	if missed := r.admitted - r.usable; missed > r.admitted/2 {
		t.Errorf("%d of %d promises were broken", missed, r.admitted)
	}
	d.audit(rules{unanswered: r.undecided})
}

// TestEmbedded: one process is all there is.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "leeway.yaml")
	doc := "listen: 127.0.0.1:0\nmetrics_listen: 127.0.0.1:0\nworker_metrics_listen: 127.0.0.1:0\nredis: {timeout_ms: 1000}\n" +
		"pools:\n  paid: {limit: 2, first_byte_p95_ms: 250}\n  free: {limit: 1, first_byte_p95_ms: 600}\n"
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &stack{t: t, file: file}
	d.startAPI("--embedded")
	d.ready()
	doc = documents(t)[7]
	for _, class := range []string{"", "summary"} {
		s := d.admit(client.Job{Class: class, Text: doc})
		if v := d.waitFor(s, 20*time.Second); v.Outcome != broker.OutcomeUsable {
			t.Errorf("outcome %+v", v)
		}
		checkSummary(t, s)
	}
	rows, _, pages := d.still()
	if jobs := ofJobs(rows); len(jobs) != 2 || jobs[0].Known != broker.KnownReported || jobs[0].CostMicro <= 0 {
		t.Errorf("spend ledger: %+v", rows)
	}
	for p, pg := range pages {
		auditShared(t, p.name, pg, rows, nil)
	}
	d.auditLog(rules{})
	for _, l := range d.api.lines() {
		if l["level"] == "WARN" {
			return // the banner
		}
	}
	t.Error("nothing says that an embedded Redis keeps nothing")
}
