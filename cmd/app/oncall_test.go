package app_test

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/broker/flag"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// Many people set one flag at once, through two replicas: the last write wins
// everywhere, and the audit trail is one unbroken story of who came after whom.
func TestFlagConflictingEdits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, config.Default(), nil)
		replicas := []*client.Client{w.client, w.second()}
		var wg sync.WaitGroup
		for n := range 20 {
			wg.Go(func() {
				_, err := replicas[n%2].SetFlag(t.Context(), flag.Reserve, &wire.FlagChange{
					Value: fmt.Sprint(3000 + n), Reason: "raise it", By: fmt.Sprintf("person-%d", n),
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		changes, err := w.client.Audit(t.Context(), 100)
		must(t, err)
		if len(changes) != 20 {
			t.Fatalf("%d changes of 20 in the audit trail", len(changes))
		}
		for i := range changes[:19] { // the newest first
			if changes[i].From != changes[i+1].To {
				t.Errorf("change %d is from %q, the one before it to %q", i, changes[i].From, changes[i+1].To)
			}
		}
		for n, c := range replicas {
			if f := shown(t, c, flag.Reserve); f.Value != changes[0].To || f.By != changes[0].By {
				t.Errorf("replica %d shows %+v; the last change was %+v", n, f, changes[0])
			}
		}
	})
}

// shown is what a replica shows of a flag for all classes.
func shown(t *testing.T, c *client.Client, name flag.Name) wire.FlagView {
	t.Helper()
	all, err := c.Flags(t.Context())
	must(t, err)
	for _, f := range all {
		if f.Name == name && f.Class == "" {
			return f
		}
	}
	t.Errorf("%s is not shown", name)
	return wire.FlagView{}
}

// Redis is gone while a flag is set: a 503 within its bound, nothing is
// changed, nothing stands in the audit trail, and the next try holds.
func TestFlagWhileStoreIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, config.Default(), nil)
		ctx := t.Context()
		set := func() error {
			_, err := w.client.SetFlag(ctx, flag.AdmitFree, &wire.FlagChange{Value: "0", Reason: "misses rise", By: "on-call"})
			return err
		}
		w.redis.SetError("LOADING Redis is loading the dataset in memory")
		begun := time.Now()
		err := set()
		if p, ok := errors.AsType[*wire.Problem](err); !ok || p.Status != http.StatusServiceUnavailable || time.Since(begun) > time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		w.redis.SetError("")
		f := shown(t, w.client, flag.AdmitFree)
		changes, err := w.client.Audit(ctx, 100)
		must(t, err)
		if f.Source == "flag" || len(changes) != 0 {
			t.Errorf("refused, and yet: %+v, %+v", f, changes)
		}
		must(t, set())
		changes, err = w.client.Audit(ctx, 100)
		must(t, err)
		if len(changes) != 1 || changes[0].By != "on-call" {
			t.Errorf("audit trail: %+v", changes)
		}
	})
}

// Free is drained in the middle of a flood, then paid, then both are resumed:
// every promise is accounted for, and nobody is promised what is closed.
func TestDrainDuringFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, labs := declared(slackgate.Predictive)
		cfg.Classes = config.Classes{"summary": {Prefer: config.FreeFirst}}
		w := start(t, cfg, labs)
		ctx := t.Context()
		var mu sync.Mutex
		paths := map[string]map[slackgate.Path]int{} // by phase
		phase := "open"
		var over atomic.Bool
		var wg sync.WaitGroup
		var ends, flood []*broker.Job
		wg.Go(func() {
			_, flood = w.offerAt(150, 200*time.Millisecond, func(int) *client.Job { return &client.Job{Text: document} })
		})
		// A second stream tells what the door says in each phase.
		for range 4 {
			wg.Go(func() {
				for !over.Load() {
					mu.Lock()
					now := phase
					mu.Unlock()
					v := w.submit(&client.Job{Text: document})
					mu.Lock()
					if now == phase { // it did not change meanwhile
						if paths[now] == nil {
							paths[now] = map[slackgate.Path]int{}
						}
						paths[now][v.Path]++
					}
					mu.Unlock()
					if v.Path != slackgate.Reject {
						wg.Go(func() { // the door is asked again meanwhile
							end := w.wait(v.JobID)
							mu.Lock()
							ends = append(ends, end)
							mu.Unlock()
						})
					}
					time.Sleep(300 * time.Millisecond)
				}
			})
		}
		order := func(name string, do func() error) {
			mu.Lock()
			phase = ""
			mu.Unlock()
			must(t, do())
			mu.Lock()
			phase = name
			mu.Unlock()
			time.Sleep(5 * time.Second)
		}
		why := &wire.Order{Reason: "drill"}
		time.Sleep(3 * time.Second)
		order("free drained", func() error { _, err := w.client.Drain(ctx, "free", "", why); return err })
		for {
			p, err := w.client.Pools(ctx)
			must(t, err)
			if p.Pools["free"].State == "drained" {
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
		order("both drained", func() error { _, err := w.client.Drain(ctx, "paid", "", why); return err })
		order("resumed", func() error {
			_, err := w.client.Resume(ctx, "paid", "", why)
			if err == nil {
				_, err = w.client.Resume(ctx, "free", "", why)
			}
			return err
		})
		over.Store(true)
		wg.Wait()
		t.Logf("admissions by phase: %v", paths)
		if n := paths["free drained"]; n[slackgate.Free] != 0 || n[slackgate.Paid] == 0 {
			t.Errorf("free drained: %v", n)
		}
		if n := paths["both drained"]; n[slackgate.Free]+n[slackgate.Paid] != 0 || n[slackgate.Reject] == 0 {
			t.Errorf("both drained: %v", n)
		}
		if n := paths["resumed"]; n[slackgate.Free]+n[slackgate.Paid] == 0 {
			t.Errorf("resumed: %v", n)
		}
		ends = append(ends, flood...)
		for _, v := range ends {
			if v.Outcome != broker.OutcomeUsable && v.Outcome != broker.OutcomeExpired {
				t.Errorf("job %s: %s (%s)", v.ID, v.Outcome, v.Cause)
			}
		}
		w.balance(ends, 0)
	})
}
