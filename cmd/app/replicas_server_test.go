//go:build server

package app_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/broker/store/storetest"
	"leeway/broker/wire"
	"leeway/cmd/app"
	"leeway/rehearsal/redistest"
	"leeway/slackgate"
)

// Eight API replicas with clients of their own share one real Redis and take
// ten thousand submissions. What they promise together is what one gate would
// promise, and each decision can be repeated from the state that the script
// returned: a replica that finds otherwise logs an error.
func TestReplicasShareOnePromise(t *testing.T) {
	const replicas, submissions, callers = 8, 10_000, 32
	cfg := config.Default()
	cfg.Redis.URL, cfg.Redis.TimeoutMS = redistest.Start(t).URL(), 5000
	cfg.Listen, cfg.MetricsListen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Pools.Free.Limit = 0
	cfg.Classes = config.Classes{"summary": {Prefer: config.PaidOnly, DeadlineMS: 600_000}}
	must(t, cfg.Complete())
	log := &logs{}
	var clients []*client.Client
	transport := &http.Transport{MaxIdleConnsPerHost: callers}
	defer transport.CloseIdleConnections()
	for range replicas {
		api, err := app.StartAPI(app.Options{Config: cfg, Log: app.Logger(log, slog.LevelError)})
		must(t, err)
		defer func() { must(t, api.Stop(context.Background())) }()
		clients = append(clients, &client.Client{Base: "http://" + api.Addr(), HTTP: &http.Client{Transport: transport}})
	}
	// Two slots of a worker that lives and claims nothing: promises only add up.
	rdb, err := storetest.Client(cfg.Redis.URL, 5*time.Second)
	must(t, err)
	defer func() { must(t, rdb.Close()) }()
	store := storetest.New(rdb, storetest.Options{Prefix: cfg.Redis.Prefix, Timeout: 5 * time.Second})
	must(t, store.Beat(t.Context(), broker.Worker{ID: "w", Path: slackgate.Paid, Slots: 2}, time.Hour))
	before, err := store.State(t.Context(), [slackgate.NumPaths]broker.PoolPolicy{slackgate.Paid: {Limit: 2}})
	must(t, err)
	if before.Pools[slackgate.Paid].Capacity != 2 {
		t.Fatalf("capacity %d", before.Pools[slackgate.Paid].Capacity)
	}

	var mu sync.Mutex
	verdicts := map[slackgate.Reason]int{}
	var wg sync.WaitGroup
	began := time.Now()
	for n := range callers {
		wg.Go(func() {
			c := clients[n%replicas]
			for range submissions / callers {
				v, err := c.Submit(context.Background(), &client.Job{Text: "x"})
				reason := slackgate.Reason("error")
				var p *wire.Problem
				switch {
				case err == nil:
					reason = v.Reason
				case errors.As(err, &p):
					reason = slackgate.Reason(p.Reason)
				}
				mu.Lock()
				verdicts[reason]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	took := time.Since(began)

	// What one gate promises with all its workers free: as many as can start in
	// time, and, while the run goes on, those whose turn comes meanwhile.
	var l slackgate.Ladder
	l.Build(&slackgate.LadderInput{
		Capacity: 2, Belief: slackgate.FixedBelief(1200, 1200), DispatchMS: app.DispatchPolls * cfg.Worker.PollMS, ReserveMS: 2000,
	})
	job := slackgate.Job{ReserveMS: 2000}
	allowed := 0
	for l.NeedMS(allowed, &job) <= 598_000 {
		allowed++
	}
	most := allowed + 2*int(took.Seconds()/1.2+1)
	t.Logf("%d submissions in %v through %d replicas: %v; one gate allows %d", submissions, took, replicas, verdicts, allowed)
	if n := verdicts[slackgate.ReasonPaid]; n > most || n < allowed*9/10 {
		t.Errorf("%d promised; at most %d and at least nine tenths of %d can be", n, most, allowed)
	}
	if verdicts[slackgate.ReasonPaid]+verdicts[slackgate.ReasonNoSlack] != submissions/callers*callers {
		t.Errorf("verdicts %v do not add up", verdicts)
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	if log.buf.Len() > 0 {
		t.Errorf("errors were logged:\n%.2000s", log.buf.String())
	}
}
