//go:build server

package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/wire"
	"leeway/rehearsal/proctest"
	"leeway/slackgate"
)

// peakMiB is the most memory that a process has had, as the kernel counts it.
func (p *process) peakMiB() int {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				p.t.Fatal(err)
			}
			return kib / 1024
		}
	}
	p.t.Fatal("no VmHWM")
	return 0
}

func TestLargeBatch(t *testing.T) { largeBatch(t, 1000, 4*time.Minute) }

// largeBatch sends n documents of 2 KB in one stream: every line has its verdict
// in order, the API's memory stays bounded, progress is shown, the answers are
// downloaded, and what they say agrees with both ledgers.
func largeBatch(t *testing.T, n int, within time.Duration) {
	const peak = 200 // MiB
	s := quick()
	s.PaidSlots, s.PaidMS, s.PaidP95, s.DeadlineMS = 64, 5, 200, 300_000
	s.FreeSlots, s.RedisMS = 8, 5000 // a store that is slow on a busy machine is not what is tested
	d := deploy(t, s)
	api := d.startAPI()
	d.startWorker()
	d.ready()
	d.client.HTTP = &http.Client{Timeout: within} // a stream of that many lines takes longer than a call
	ctx := context.Background()

	doc := strings.Repeat(text+" ", 2000/len(text)+1)
	var body bytes.Buffer
	for i := range n {
		deadline := 300_000
		if i%10 == 9 {
			deadline = 1 // within the reserve: refused, and a miss on path reject
		}
		if i%100 == 50 {
			deadline = -1 // bad input
		}
		fmt.Fprintf(&body, `{"text":%q,"custom_id":"doc-%d","deadline_ms":%d}`+"\n", doc, i, deadline)
	}
	size := body.Len()
	var id string
	line, said := 0, map[string]int64{}
	jobs := map[string]bool{}
	var shown []int64 // what progress showed as done, while lines came in
	began := time.Now()
	err := d.client.SendLines(ctx, &client.Lines{Opened: func(batch string) { id = batch }}, &body, func(l *wire.BatchLine) error {
		line++
		if l.Line != line || l.CustomID != fmt.Sprintf("doc-%d", line-1) {
			t.Errorf("verdict %d is that of line %d, %s", line, l.Line, l.CustomID)
		}
		if l.Error != nil {
			said[l.Error.Reason]++
		} else {
			said[l.Path.String()]++
			jobs[l.JobID] = true
		}
		if line%(n/10) == 0 {
			b, err := d.client.Batch(ctx, id, 0)
			if err != nil {
				return err
			}
			shown = append(shown, b.Lines)
		}
		return nil
	})
	took := time.Since(began)
	if err != nil || line != n {
		t.Fatalf("%d verdicts: %v", line, err)
	}
	for i := range shown {
		if i > 0 && shown[i] < shown[i-1] {
			t.Errorf("progress went back: %v", shown)
		}
	}
	if want := int64(n / 10); said["reject_deadline"] != want || said[wire.ReasonInvalidField] != int64(n/100) {
		t.Errorf("verdicts %v", said)
	}

	// The answers, as they come.
	outcomes, answered, cursor := map[broker.Outcome]int64{}, map[string]broker.Outcome{}, int64(0)
	proctest.Eventually(t, within, "every job ends", func() error {
		err := d.client.BatchResults(ctx, id, cursor, time.Second, func(r *wire.ResultLine) error {
			cursor = r.NextCursor
			outcomes[r.Job.Outcome]++
			answered[r.Job.ID] = r.Job.Outcome
			if r.Job.Outcome == broker.OutcomeUsable && r.Job.Answer == "" {
				t.Errorf("%s is usable and has no answer", r.CustomID)
			}
			return nil
		})
		if err == nil && len(answered) < len(jobs) {
			err = fmt.Errorf("%d of %d", len(answered), len(jobs))
		}
		return err
	})
	all := time.Since(began)
	b, err := d.client.Batch(ctx, id, 0)
	if err != nil {
		t.Fatal(err)
	}
	if b.Status != wire.BatchDone || b.Lines != int64(n) || b.Pending != 0 || b.Admitted != int64(len(jobs)) {
		t.Errorf("%+v", b)
	}
	for what, want := range said {
		if b.Verdicts[what] != want {
			t.Errorf("%d verdicts %s were told, the batch counts %d", want, what, b.Verdicts[what])
		}
	}
	for o, want := range outcomes {
		if b.Outcomes[o] != want {
			t.Errorf("%d answers were %s, the batch counts %d", want, o, b.Outcomes[o])
		}
	}

	// Both ledgers.
	spent := map[string]int{}
	for _, r := range d.rows() {
		spent[r.JobID]++
	}
	misses, err := d.client.Misses(ctx)
	if err != nil {
		t.Fatal(err)
	}
	missed, refused := map[string]broker.Outcome{}, int64(0)
	for _, m := range misses {
		if m.Path == slackgate.Reject {
			refused++
			continue
		}
		missed[m.JobID] = m.Outcome
	}
	if refused != said["reject_deadline"] {
		t.Errorf("%d misses on path reject, %d were told", refused, said["reject_deadline"])
	}
	for job, o := range answered {
		if o == broker.OutcomeUsable && spent[job] == 0 {
			t.Errorf("%s has an answer and no spend row", job)
		}
		if o.Miss() != (missed[job] == o) {
			t.Errorf("%s ended %s, the ledger of misses says %q", job, o, missed[job])
		}
		delete(spent, job)
		delete(missed, job)
	}
	if len(spent)+len(missed) > 0 {
		t.Errorf("%d spend rows and %d misses of jobs that nobody was told of", len(spent), len(missed))
	}
	hwm := api.peakMiB()
	t.Logf("%d lines, %.1f MB: verdicts %v after %v; outcomes %v after %v; the API's peak memory %d MiB",
		n, float64(size)/1e6, said, took.Round(time.Millisecond), outcomes, all.Round(time.Millisecond), hwm)
	if hwm >= peak {
		t.Errorf("the API's peak memory was %d MiB, want less than %d", hwm, peak)
	}
	if raw, err := json.Marshal(b); err == nil {
		t.Logf("%s", raw)
	}
}
