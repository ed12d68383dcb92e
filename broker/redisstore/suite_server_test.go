//go:build server

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/rehearsal/redistest"
	"leeway/slackgate"
)

func TestStoreOverRedis(t *testing.T) {
	srv := redistest.Start(t)
	for _, b := range behaviours {
		t.Run(b.name, func(t *testing.T) { b.run(t, newHarness(t, srv.URL()).fresh()) })
	}
}

// A deployment's keys are on one of a Cluster's masters, whichever: its name
// decides. The store does there what it does on one server.
func TestStoreOverCluster(t *testing.T) {
	cluster := redistest.StartCluster(t, 3)
	holders := map[*redistest.Server]bool{}
	for _, b := range behaviours {
		t.Run(b.name, func(t *testing.T) {
			h := newHarness(t, cluster.URL()).fresh()
			holders[cluster.Holder(t, h.prefix)] = true
			b.run(t, h)
		})
	}
	if len(holders) != len(cluster.Masters) {
		t.Errorf("deployments came to %d of %d masters", len(holders), len(cluster.Masters))
	}
}

// Eight submitters with clients of their own, four workers and a sweeper on one
// Redis: the bound holds at every instant, and what is on record at the end
// explains every decision.
func TestEightSubmittersNeverExceedTheBound(t *testing.T) {
	const submitters, each, limit = 8, 250, 12
	srv := redistest.Start(t)
	h := newHarness(t, srv.URL())
	h.live(limit, 0)
	policy := slackgate.Policy{Rule: slackgate.Seed, FreeQueueAgeCutMS: 0}
	pools := openPools()
	pools[slackgate.Paid].Limit = limit
	pools[slackgate.Free].Closed = true
	known := slackgate.Snapshot{}
	known.Pools[slackgate.Paid] = slackgate.PoolState{Limit: limit, FirstByteP95MS: 1200}
	known.Pools[slackgate.Free] = slackgate.PoolState{Limit: 1000, FirstByteP95MS: 4000}

	var mu sync.Mutex // guards verdicts
	verdicts := map[string]slackgate.Path{}
	working, stop := context.WithCancel(bg)
	var workers, submitting sync.WaitGroup
	for range 4 {
		other := h.another()
		workers.Go(func() {
			for working.Err() == nil {
				c, _, err := other.Claim(bg, slackgate.Paid, limit, time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				if c == nil {
					continue
				}
				if _, err := other.Finish(bg, c, usable("x")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for s := range submitters {
		other := h.another()
		submitting.Go(func() {
			for i := 0; i < each; {
				var offers []broker.Offer
				for range 1 + (s+i)%3 { // calls of one, two and three offers
					j := testJob(fmt.Sprintf("s%d-%d", s, i), 600_000)
					offers = append(offers, broker.Offer{Job: j, LeftMS: 600_000, ReserveMS: 2000, Bounds: slackgate.Bounds(&known, j.Gate(0, j.ReserveMS), policy, 598_000)})
					i++
				}
				got, err := other.Admit(bg, pools, offers)
				if err != nil || got.Stale {
					t.Errorf("%+v, %v", got, err)
					return
				}
				mu.Lock()
				for k := range got.Jobs {
					a := &got.Jobs[k]
					p := &a.Pools[slackgate.Paid]
					res := slackgate.Decide(&slackgate.Snapshot{Pools: a.Pools}, offers[k].Job.Gate(got.NowMS+600_000, 2000), policy, got.NowMS)
					if res.Path != a.Path || p.InFlight() > limit || (a.Path == slackgate.Paid) != (p.InFlight() < limit) {
						t.Errorf("%s with %d in flight of %d; the rule says %s", a.Path, p.InFlight(), limit, res.Path)
					}
					verdicts[offers[k].Job.ID] = a.Path
				}
				mu.Unlock()
			}
		})
	}
	submitting.Wait()
	stop()
	workers.Wait()

	admitted := 0
	for id, path := range verdicts {
		_, err := h.Get(bg, id)
		if (path == slackgate.Paid) != (err == nil) {
			t.Errorf("%s was told %s, its record says %v", id, path, err)
		}
		if path == slackgate.Paid {
			admitted++
		}
	}
	tot := h.totals()
	if len(verdicts) < submitters*each || int64(admitted) != tot["admitted:paid"] || admitted == 0 || admitted == len(verdicts) {
		t.Errorf("%d submissions, %d told that they are in, %d on record", len(verdicts), admitted, tot["admitted:paid"])
	}
	h.balanced()
	t.Logf("%d submissions, %d admitted, %d refused", len(verdicts), admitted, len(verdicts)-admitted)
}

// faultTimeout is the default bound of a call; margin is what a loaded machine
// may add.
const (
	faultTimeout = 250 * time.Millisecond
	margin       = 2 * time.Second
)

// calls are one of each kind, on a store whose Redis is not well.
func (h *harness) calls(c *broker.Claim) map[string]func() error {
	row := h.attempt(c, 9, 1, 1)
	return map[string]func() error{
		"admit": func() error {
			got, err := h.Admit(bg, openPools(), []broker.Offer{offerTo(slackgate.Paid, testJob("new", 60_000))})
			if err == nil && got.Stale {
				return fmt.Errorf("%w: stale", broker.ErrUnavailable)
			}
			return err
		},
		"state":    func() error { _, err := h.State(bg, openPools()); return err },
		"claim":    func() error { _, _, err := h.Claim(bg, slackgate.Paid, 10, time.Minute); return err },
		"renew":    func() error { _, err := h.Renew(bg, c, time.Minute); return err },
		"open":     func() error { return h.OpenSpend(bg, c, &row) },
		"settle":   func() error { return h.Settle(bg, row) },
		"finish":   func() error { _, err := h.Finish(bg, c, usable("x")); return err },
		"handback": func() error { return h.Handback(bg, c) },
		"cancel":   func() error { _, err := h.Cancel(bg, "waiting"); return err },
		"sweep":    func() error { _, err := h.Sweep(bg); return err },
		"beat":     func() error { return h.Beat(bg, broker.Worker{ID: "w", Path: slackgate.Paid, Slots: 1}, time.Minute) },
		"leave":    func() error { return h.Leave(bg, broker.Worker{ID: "w", Path: slackgate.Paid, Slots: 1}) },
		"get":      func() error { _, err := h.Get(bg, "waiting"); return err },
		"purge":    func() error { return h.Purge(bg, "waiting") },
		"waiting":  func() error { _, err := h.Waiting(bg, slackgate.Paid); return err },
		"smallest": func() error { _, _, err := h.SmallestSlackMS(bg, slackgate.Paid); return err },
		"totals":   func() error { _, err := h.Totals(bg); return err },
		"spend":    func() error { _, err := h.SpendRows(bg, &ledger.Filter{}, "", 1); return err },
		"misses":   func() error { _, err := h.MissRows(bg, &ledger.Filter{}, "", 1); return err },
		"rows":     func() error { _, err := h.OpenSpendRows(bg); return err },
		"clock":    func() error { return h.SyncClock(bg) },
	}
}

// sick prepares a store on a healthy Redis: one job waiting, one claimed.
func sick(t *testing.T, srv *redistest.Server) (*harness, *broker.Claim) {
	t.Helper()
	h := newHarnessWith(t, srv.URL(), Options{Prefix: "sick", Timeout: faultTimeout})
	h.live(10, 10)
	h.put(slackgate.Paid, testJob("running", 600_000))
	c := h.claim(slackgate.Paid)
	h.put(slackgate.Paid, testJob("waiting", 600_000))
	return h, c
}

// unavailable makes calls and checks that each ends in time with the one
// sentinel.
func (h *harness) unavailable(t *testing.T, c *broker.Claim, only ...string) {
	t.Helper()
	calls := h.calls(c)
	if len(only) == 0 {
		for name := range calls {
			only = append(only, name)
		}
	}
	var longest time.Duration
	for _, name := range only {
		start := time.Now()
		err := calls[name]()
		took := time.Since(start)
		longest = max(longest, took)
		if !errors.Is(err, broker.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", name, err)
		}
		if took > margin {
			t.Errorf("%s took %v, the bound is %v", name, took, faultTimeout)
		}
	}
	t.Logf("%d calls, the longest took %v (bound %v)", len(only), longest.Round(time.Millisecond), faultTimeout)
}

// unharmed checks that nothing was done behind a caller's back and that the
// same store goes on.
func (h *harness) unharmed(t *testing.T, c *broker.Claim) {
	t.Helper()
	for h.SyncClock(bg) != nil { // until connections work again
	}
	if _, err := h.Get(bg, "new"); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("a submission that was told 503 is on record: %v", err)
	}
	if v, err := h.Get(bg, "waiting"); err != nil || v.State != broker.StateWaiting {
		t.Errorf("the waiting job: %+v, %v", v, err)
	}
	if o, err := h.finish(c, usable("x")); err != nil || o != broker.OutcomeUsable {
		t.Errorf("finish afterwards: %s, %v", o, err)
	}
	if again := h.claim(slackgate.Paid); again.ID != "waiting" {
		t.Errorf("claimed %s", again.ID)
	}
	h.balanced()
}

// readers and writers that change nothing, whenever Redis runs them: a paused
// server carries out later what it was sent.
var harmless = []string{"admit", "state", "renew", "get", "waiting", "smallest", "totals", "spend", "misses", "rows", "clock", "settle"}

func TestRedisPaused(t *testing.T) {
	srv := redistest.Start(t)
	h, c := sick(t, srv)
	srv.Pause()
	h.unavailable(t, c, harmless...)
	srv.Resume()
	h.unharmed(t, c)
}

// With the server paused every other call is bounded too; what comes of them
// when it goes on is not looked at.
func TestRedisPausedEveryCall(t *testing.T) {
	srv := redistest.Start(t)
	h, c := sick(t, srv)
	srv.Pause()
	h.unavailable(t, c)
	srv.Resume()
}

func TestRedisDeadThenBack(t *testing.T) {
	srv := redistest.Start(t, "--appendfsync", "always")
	h, c := sick(t, srv)
	srv.Kill()
	h.unavailable(t, c)
	srv.Run()
	h.unharmed(t, c)
}

func TestRedisFull(t *testing.T) {
	srv := redistest.Start(t)
	h, c := sick(t, srv)
	h.openAttempt(c, 1)
	h.must(h.rdb.ConfigSet(bg, "maxmemory", "1").Err())
	h.unavailable(t, c, "admit")
	// Nor does it where the script looks at a producer's unfinished jobs first.
	limited := offerTo(slackgate.Paid, testJob("limited", 600_000))
	limited.Quota = slackgate.Quota{MaxInFlight: 100}
	if got, err := h.Admit(bg, openPools(), []broker.Offer{limited}); broker.TroubleOf(err) != broker.TroubleFull {
		t.Errorf("a limited producer's job on a full Redis: %+v, %v", got, err)
	}
	// Nothing new comes in, but readers still read, workers still live, and
	// what was admitted comes to its end: an attempt is booked, the sweep mends
	// and the outcome is written.
	h.openAttempt(c, 2)
	if _, err := h.Sweep(bg); err != nil {
		t.Errorf("sweep on a full Redis: %v", err)
	}
	h.must(h.Beat(bg, broker.Worker{ID: "w", Path: slackgate.Paid, Slots: 1}, time.Minute))
	if v, err := h.Get(bg, "waiting"); err != nil || v.State != broker.StateWaiting {
		t.Errorf("%+v, %v", v, err)
	}
	if o, err := h.finish(c, usable("x"), h.attempt(c, 1, 10, 20), h.attempt(c, 2, 10, 20)); err != nil || o != broker.OutcomeUsable {
		t.Errorf("finish on a full Redis: %s, %v", o, err)
	}
	h.must(h.rdb.ConfigSet(bg, "maxmemory", "0").Err())
	h.unharmed(t, c)
}

func TestRedisReadOnly(t *testing.T) {
	srv := redistest.Start(t)
	h, c := sick(t, srv)
	// A replica of nobody who answers, as a master is after a failover.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	h.must(err)
	defer l.Close()
	host, port, _ := net.SplitHostPort(l.Addr().String())
	h.must(h.rdb.SlaveOf(bg, host, port).Err())
	h.unavailable(t, c, "admit", "claim", "open", "finish", "handback", "cancel", "beat", "leave", "purge")
	h.must(h.rdb.SlaveOf(bg, "NO", "ONE").Err())
	h.unharmed(t, c)
}

// A store that cannot be reached at all, and one that does not speak Redis.
func TestNoRedisThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := newHarnessWith(t, "redis://"+l.Addr().String()+"/0", Options{Prefix: "x", Timeout: faultTimeout})
	c := &broker.Claim{Spec: testJob("j", 1000).Spec, Path: slackgate.Paid, Fence: 1}
	h.unavailable(t, c, "admit", "state", "finish", "get") // accepts by the kernel, answers never
	_ = l.Close()
	h.unavailable(t, c, "admit", "state", "finish", "get") // refuses
}
