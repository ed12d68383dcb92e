//go:build server

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/shard"
	"leeway/broker/wire"
	"leeway/rehearsal/redistest"
)

// ofShard is the shard of two that an id names.
func ofShard(id string) int { return shard.Of(id, 2) }

// TestShards runs a deployment of two shards over one Redis: jobs, keys and
// batches go to both, everything is read over both, a worker is killed, and the
// books balance.
func TestShards(t *testing.T) {
	t.Parallel()
	s := quick()
	s.Shards, s.PaidSlots, s.FreeSlots, s.PaidMS, s.PaidP95, s.DeadlineMS = 2, 4, 2, 300, 800, 60_000
	s.More = "producers:\n  capped: {budget_micro_per_day: 1000000000}\n"
	d := run(t, s)
	overShards(t, d)

	// A process that has another number of shards does not start.
	raw, err := os.ReadFile(d.file)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other.yaml")
	if err := os.WriteFile(other, []byte(strings.Replace(string(raw), "shards: 2", "shards: 1", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"api", "worker"} {
		out, err := exec.Command(filepath.Join(bin, name), "--config", other).CombinedOutput()
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 2 || !strings.Contains(string(out), "redis.shards") { //nolint:errorlint // as exec returns it
			t.Errorf("%s with one shard: %v %s", name, err, out)
		}
	}
}

// TestShardsOnCluster is the same on a Cluster of two masters, of which each
// holds a shard, with a worker for each.
func TestShardsOnCluster(t *testing.T) {
	t.Parallel()
	s := quick()
	s.Shards, s.PaidSlots, s.FreeSlots, s.PaidMS, s.PaidP95, s.DeadlineMS = 2, 4, 2, 300, 800, 60_000
	s.More = "producers:\n  capped: {budget_micro_per_day: 1000000000}\n"
	cluster := redistest.StartCluster(t, 2)
	prefixes := shard.Prefixes("leeway", 2)
	if cluster.Holder(t, "{"+prefixes[0]+"}") == cluster.Holder(t, "{"+prefixes[1]+"}") {
		t.Fatalf("%v are on one master", prefixes)
	}
	d := deployOver(t, s, cluster.Masters[0])
	d.env = []string{"REDIS_URL=" + cluster.URL()}
	d.startWorker("LEEWAY_WORKER_SHARDS=0")
	d.startWorker("LEEWAY_WORKER_SHARDS=1")
	d.startAPI()
	d.ready()
	in := map[int]int{}
	for n := 0; n < 8 || len(in) < 2 && n < 60; n++ {
		in[ofShard(d.admit(client.Job{Text: text}).verdict.JobID)]++
	}
	d.settled(60 * time.Second)
	for _, s := range d.book.admitted() {
		if s.view.Outcome != broker.OutcomeUsable {
			t.Errorf("%+v", s.view)
		}
	}
	if in[0] == 0 || in[1] == 0 {
		t.Errorf("jobs by shard: %v", in)
	}
	d.audit(rules{})
	d.balanced()
}

func overShards(t *testing.T, d *stack) {
	t.Helper()
	ctx := context.Background()
	in := map[int]int{}
	// More than a few, should the API have lost sight of a gate for a moment.
	for n := 0; n < 10 || len(in) < 2 && n < 60; n++ {
		in[ofShard(d.admit(client.Job{Text: text}).verdict.JobID)]++
	}
	keys := map[int]bool{}
	for i := range 8 {
		job := client.Job{Text: text, IdempotencyKey: fmt.Sprintf("k%d", i)}
		first := d.admit(job)
		again, err := d.client.Submit(ctx, &job)
		if err != nil || again.JobID != first.verdict.JobID {
			t.Errorf("key %d: %s, then %+v %v", i, first.verdict.JobID, again, err)
		}
		keys[ofShard(first.verdict.JobID)] = true
	}
	if in[0] == 0 || in[1] == 0 || len(keys) != 2 {
		t.Errorf("jobs by shard %v, keys in shards %v", in, keys)
	}
	for range 4 {
		if id := d.admit(client.Job{Text: text, Producer: "capped"}).verdict.JobID; ofShard(id) != 0 {
			t.Errorf("a job of a producer with a budget: %s", id)
		}
	}
	var batch string
	var lines []wire.BatchLine
	var body strings.Builder
	for i := range 5 {
		fmt.Fprintf(&body, `{"text":%q,"custom_id":"%d"}`+"\n", text, i)
	}
	err := d.client.SendLines(ctx, &client.Lines{Opened: func(id string) { batch = id }}, strings.NewReader(body.String()), func(l *wire.BatchLine) error {
		lines = append(lines, *l)
		return nil
	})
	if err != nil || len(lines) != 5 {
		t.Fatalf("batch: %d lines, %v", len(lines), err)
	}
	for _, l := range lines {
		if l.Verdict == nil || ofShard(l.JobID) != ofShard(batch) {
			t.Fatalf("line %+v of batch %s", l, batch)
		}
		d.book.add(&submission{job: client.Job{Text: text}, verdict: l.Verdict})
	}
	taken := d.admit(client.Job{Text: text})
	if _, err := d.client.Cancel(ctx, taken.verdict.JobID); err != nil {
		t.Error(err)
	}

	// The worker dies with jobs in both shards, and another goes on.
	d.workers[0].kill()
	d.startWorker()
	d.settled(60 * time.Second)
	for _, s := range d.book.admitted() {
		if s == taken {
			continue
		}
		if s.view.Outcome != broker.OutcomeUsable {
			t.Errorf("%+v", s.view)
		}
	}
	if b, err := d.client.Batch(ctx, batch, 0); err != nil || b.Pending != 0 || b.Lines != 5 {
		t.Errorf("batch %+v, %v", b, err)
	}

	// All jobs are listed, page by page; so are the ledger's rows.
	var listed []string
	for q := (url.Values{"limit": {"5"}}); ; {
		page, err := d.client.Jobs(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range page.Jobs {
			listed = append(listed, v.ID)
		}
		if page.Next == "" {
			break
		}
		q.Set("cursor", page.Next)
	}
	var jobs []string
	for _, s := range d.book.admitted() {
		jobs = append(jobs, s.verdict.JobID)
	}
	slices.Sort(listed)
	slices.Sort(jobs)
	if !slices.Equal(listed, jobs) {
		t.Errorf("%d jobs listed, %d admitted", len(listed), len(jobs))
	}
	all, seen := d.rows(), map[string]bool{}
	for cursor, more := "", true; more; more = cursor != "" {
		r := call(t, http.MethodGet, d.client.Base+"/v1/ledgers/spend?limit=4&cursor="+url.QueryEscape(cursor), "", "")
		var page broker.Page[broker.SpendRow]
		if err := json.Unmarshal(r.body, &page); err != nil {
			t.Fatalf("%v in %s", err, r.body)
		}
		for _, row := range page.Rows {
			if seen[row.ID] {
				t.Errorf("row %s twice", row.ID)
			}
			seen[row.ID] = true
		}
		cursor = page.Next
	}
	if len(seen) != len(all) {
		t.Errorf("%d rows page by page, %d in all", len(seen), len(all))
	}

	// A streamed answer comes from a worker through the job's own shard.
	r := call(t, http.MethodPost, d.client.Base+"/v1/chat/completions", "application/json",
		`{"model":"summary","stream":true,"messages":[{"role":"user","content":"Summarize."}]}`)
	if n := strings.Count(string(r.body), `"content":"`); r.status != http.StatusOK || n == 0 || !strings.HasSuffix(strings.TrimSpace(string(r.body)), "[DONE]") {
		t.Errorf("stream: %d, %d pieces: %s", r.status, n, r.body)
	}
	d.balanced()
}
