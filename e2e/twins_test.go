//go:build server

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/wire"
)

// A hundred submissions of one key at once, through two API processes: one job,
// one generation as the backend's own log has it, one spend row.
func TestTwins(t *testing.T) {
	t.Parallel()
	const twins = 100
	s := quick()
	s.DeadlineMS = 20_000
	d := run(t, s)
	first := d.client.Base
	d.startAPI()
	d.ready()
	bases := []string{first, d.client.Base}
	transport := &http.Transport{MaxIdleConnsPerHost: twins}
	defer transport.CloseIdleConnections()
	caller := &http.Client{Transport: transport, Timeout: callTimeout}

	var wg sync.WaitGroup
	var mu sync.Mutex
	statuses, jobs := map[int]int{}, map[string]int{}
	begin := make(chan struct{})
	for i := range twins {
		wg.Go(func() {
			req, err := http.NewRequest(http.MethodPost, bases[i%2]+"/v1/jobs", strings.NewReader(fmt.Sprintf(`{"text":%q}`, text)))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set(wire.HeaderIdempotencyKey, "twins")
			<-begin
			resp, err := caller.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			var v wire.Verdict
			if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[resp.StatusCode]++
			jobs[v.JobID]++
		})
	}
	close(begin)
	wg.Wait()
	if len(jobs) != 1 || statuses[http.StatusAccepted] != 1 || statuses[http.StatusOK] != twins-1 {
		t.Fatalf("statuses %v of jobs %v; want one accepted, and the rest told of it", statuses, jobs)
	}
	for id := range jobs {
		v, err := d.client.Wait(context.Background(), id)
		if err != nil || v.Outcome != broker.OutcomeUsable || v.Attempts != 1 {
			t.Errorf("%+v, %v", v, err)
		}
	}
	calls := d.labs["lab-paid"].forJobs() + d.labs["lab-free"].forJobs()
	if rows := ofJobs(d.rows()); len(rows) != 1 || calls != 1 {
		t.Errorf("%d generations, spend rows %+v", calls, rows)
	}
	// Both replicas know the key, and that another body is another submission.
	for _, base := range bases {
		c := &client.Client{Base: base, HTTP: caller}
		if v, err := c.Submit(context.Background(), &client.Job{Text: text, IdempotencyKey: "twins"}); err != nil || jobs[v.JobID] == 0 {
			t.Errorf("%+v, %v", v, err)
		}
	}
}
