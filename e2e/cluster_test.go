//go:build server

package e2e_test

import (
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/rehearsal/redistest"
	"leeway/slackgate"
)

// TestCluster runs the processes on a Redis Cluster of three masters: gate,
// jobs and ledgers are on one of them, each pool's asynq queue on whichever its
// name leads to.
func TestCluster(t *testing.T) {
	t.Parallel()
	paid := startLab(t, "lab-paid", 50, 0, 2)
	free := startLab(t, "lab-free", 50, 0, 1)
	cluster := redistest.StartCluster(t, 3)
	d := example(t, "leeway.yaml", cluster.Masters[0], "http://127.0.0.1:8001/v1", paid.url, "http://127.0.0.1:8002/v1", free.url)
	d.labs["lab-paid"], d.labs["lab-free"] = paid, free
	d.env = append(anywhere(d.redis), "REDIS_URL="+cluster.URL()) // a later one wins
	d.startWorker()
	d.startAPI()
	d.opens(slackgate.Paid)
	for i := range 6 {
		d.admit(client.Job{Text: documents(t)[i], DeadlineMS: 60_000})
		d.admit(client.Job{Class: "nightly", Text: documents(t)[i], DeadlineMS: 60_000})
	}
	d.settled(50 * time.Second)
	for _, s := range d.book.admitted() {
		if s.view.Outcome != broker.OutcomeUsable {
			t.Errorf("outcome %+v", s.view)
		}
	}
	d.audit(rules{})
	d.balanced()
}
