package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"leeway/broker"
	"leeway/broker/flag"
	"leeway/broker/ledger"
	"leeway/broker/store"
	"leeway/broker/store/storetest"
	"leeway/broker/ticket"
	"leeway/slackgate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watched is a store that counts its calls and can be told to misbehave.
type watched struct {
	Store
	mu     sync.Mutex // guards what follows
	admits [][]string // ids of each call
	states int
	pause  chan struct{} // calls of Admit wait until it is closed
	alter  func(*broker.OfferResults)
	err    error
	slow   time.Duration // what a call takes that ends in err
	sealed error         // of Writable

	delay     time.Duration    // of State
	failAdmit error            // of Admit alone; nothing reaches the store
	stale     bool             // Admit finds the caller gone
	told      map[string]int64 // refusals of the paid pool that the last Admit carried
}

func (w *watched) Writable(context.Context) error { return w.sealed }

func (w *watched) AdmitInTurn(ctx context.Context, flags *flag.Table, p [slackgate.NumPaths]broker.PoolPolicy, offers []broker.Offer, turn func() error) (broker.OfferResults, error) {
	if err := turn(); err != nil {
		return broker.OfferResults{}, err
	}
	w.mu.Lock()
	var ids []string
	for i := range offers {
		ids = append(ids, offers[i].Job.ID)
	}
	w.admits = append(w.admits, ids)
	pause, alter, err, slow := w.pause, w.alter, w.err, w.slow
	w.told = p[slackgate.Paid].Refused
	failAdmit, stale := w.failAdmit, w.stale
	w.mu.Unlock()
	if failAdmit != nil || stale {
		return broker.OfferResults{Stale: stale}, failAdmit
	}
	if pause != nil {
		<-pause
	}
	if err != nil {
		time.Sleep(slow) // virtual
		return broker.OfferResults{}, err
	}
	got, err := w.Store.AdmitInTurn(ctx, flags, p, offers, atOnce)
	if alter != nil {
		alter(&got)
	}
	return got, err
}

func (w *watched) State(ctx context.Context, p [slackgate.NumPaths]broker.PoolPolicy) (*broker.GateState, error) {
	w.mu.Lock()
	w.states++
	err, slow, delay := w.err, w.slow, w.delay
	w.mu.Unlock()
	time.Sleep(delay) // virtual
	if err != nil {
		time.Sleep(slow) // virtual
		return nil, err
	}
	return w.Store.State(ctx, p)
}

// seen are the observer's decisions.
type seen struct {
	mu       sync.Mutex
	verdicts []broker.Verdict
}

func (s *seen) Decided(_ *broker.Submission, v *broker.Verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verdicts = append(s.verdicts, *v)
}

type bench struct {
	*Admitter
	t       *testing.T
	store   store.Shard
	watched *watched
	seen    *seen
	log     *bytes.Buffer
	rule    slackgate.Rule
	// minReserveMS is Settings.MinReserveMS, and holdMS how long calls take.
	minReserveMS, holdMS int64
	flags                struct {
		table     *flag.Table
		refreshes int
	}
	ctx  context.Context
	stop func()
}

// inBubble runs f in virtual time with an admitter that runs on an embedded
// Redis with a worker in each pool.
func inBubble(t *testing.T, rule slackgate.Rule, f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		rdb := storetest.Dial(func(context.Context, string, string) (net.Conn, error) { return m.Dial() })
		b := &bench{t: t, store: storetest.New(rdb, storetest.Options{Prefix: "t"}), seen: &seen{}, log: &bytes.Buffer{}, rule: rule, holdMS: 1000}
		b.flags.table = flag.NewTable(0, nil)
		b.watched = &watched{Store: b.store}
		b.Admitter = New(Options{
			Store: b.watched, Tickets: ticket.New(rdb, "t", 250*time.Millisecond, time.Hour), Settings: b.settings, Observer: b.seen, RefreshFlags: b.refreshFlags,
			Log: slog.New(slog.NewJSONHandler(b.log, nil)),
		})
		for _, path := range slackgate.Paths {
			if err := b.store.Beat(context.Background(), broker.Worker{ID: path.String(), Path: path, Slots: 8}, 24*time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := b.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		b.ctx = ctx
		b.stop = func() { cancel(); wg.Wait() }
		defer func() {
			b.stop()
			_ = rdb.Close()
			m.Close()
		}()
		f(b)
	})
}

func (b *bench) refreshFlags(ctx context.Context) (err error) {
	b.flags.refreshes++
	table, err := b.store.Flags(ctx)
	if err == nil {
		b.flags.table = table
	}
	return err
}

func (b *bench) settings() Settings {
	s := Settings{
		Flags: b.flags.table,
		Class: func(name string) ClassSettings {
			v := b.flags.table.Apply(flag.Values{AdmitPaid: true, AdmitFree: true, Policy: b.rule}, name, b.store.NowMS())
			return ClassSettings{
				Policy:    slackgate.Policy{Rule: v.Policy, FreeQueueAgeCutMS: slackgate.Unbounded},
				Closed:    [slackgate.NumPaths]bool{slackgate.Paid: !v.AdmitPaid, slackgate.Free: !v.AdmitFree},
				ReserveMS: v.ReserveMS,
			}
		},
		MinReserveMS: b.minReserveMS,
		HorizonMS:    3600_000,
	}
	for _, path := range slackgate.Paths {
		s.Pools[path] = broker.PoolPolicy{Limit: 8, FirstByteP95MS: 1000}
		s.Beliefs[path] = slackgate.FixedBelief(1000, b.holdMS)
	}
	return s
}

func (b *bench) job(id string, deadlineMS int64) *broker.Submission {
	return &broker.Submission{
		Spec: broker.Spec{
			ID: id, Class: "c", Text: "x", Prefer: [2]slackgate.Path{slackgate.Paid},
		},
		DeadlineInMS: deadlineMS, ReserveMS: 2000, ReceivedAt: time.Now(),
	}
}

func (b *bench) calls() [][]string {
	b.watched.mu.Lock()
	defer b.watched.mu.Unlock()
	return b.watched.admits
}

// The rule and the script are made to disagree: the script's word stands, as
// the promise is on record, and the log says so.
func TestDisagreementIsLogged(t *testing.T) {
	inBubble(t, slackgate.Seed, func(b *bench) {
		b.watched.alter = func(a *broker.OfferResults) { a.Jobs[0].Pools[slackgate.Paid].Running = 100 }
		v, err := b.Submit(b.ctx, b.job("in", 15_000))
		if err != nil || v.Path != slackgate.Paid || v.Reason != slackgate.ReasonPaid {
			t.Errorf("%+v, %v", v, err)
		}
		b.watched.alter = func(a *broker.OfferResults) { a.Jobs[0].Path = slackgate.Reject }
		v, err = b.Submit(b.ctx, b.job("out", 15_000))
		if err != nil || v.Admitted() || v.Reason != slackgate.ReasonGateUnavailable {
			t.Errorf("%+v, %v", v, err)
		}
		if n := bytes.Count(b.log.Bytes(), []byte(errDisagree.Error())); n != 2 {
			t.Errorf("%d disagreements logged: %s", n, b.log)
		}
	})
}

func TestStoreAway(t *testing.T) {
	for _, rule := range []slackgate.Rule{slackgate.Seed, slackgate.Predictive} {
		inBubble(t, rule, func(b *bench) {
			b.watched.err = fmt.Errorf("%w: away", broker.ErrUnavailable)
			v, err := b.Submit(b.ctx, b.job("j", 15_000))
			if !errors.Is(err, broker.ErrUnavailable) || v.Admitted() || v.Reason != slackgate.ReasonGateUnavailable || v.SlackMS != 13_000 {
				t.Errorf("%+v, %v", v, err)
			}
			if v, _, err := b.DryRun(b.ctx, b.job("j", 15_000)); !errors.Is(err, broker.ErrUnavailable) || v.Reason != slackgate.ReasonGateUnavailable {
				t.Errorf("dry run %+v, %v", v, err)
			}
			b.watched.err = nil
			b.watched.alter = func(a *broker.OfferResults) { *a = broker.OfferResults{NowMS: a.NowMS, Stale: true} }
			if v, err := b.Submit(b.ctx, b.job("j", 15_000)); !errors.Is(err, broker.ErrUnavailable) || v.Reason != slackgate.ReasonGateUnavailable {
				t.Errorf("stale: %+v, %v", v, err)
			}
		})
	}
}

// Where no worker lives because the store takes no heartbeats, the store is what
// is named.
func TestPoolsDownForWantOfWrites(t *testing.T) {
	inBubble(t, slackgate.Predictive, func(b *bench) {
		time.Sleep(25 * time.Hour) // no heartbeat since
		if v, err := b.Submit(b.ctx, b.job("a", 15_000)); err != nil || v.Reason != slackgate.ReasonPoolDown {
			t.Errorf("%+v, %v", v, err)
		}
		b.watched.sealed = &broker.StoreError{Trouble: broker.TroubleReadOnly, Err: errors.New("READONLY")}
		if v, err := b.Submit(b.ctx, b.job("b", 15_000)); broker.TroubleOf(err) != broker.TroubleReadOnly || v.Reason != slackgate.ReasonGateUnavailable {
			t.Errorf("%+v, %v", v, err)
		}
	})
}

// The view is read when it is older than TrustFor, and kept fresh by Refresh.
func TestViewIsFresh(t *testing.T) {
	inBubble(t, slackgate.Predictive, func(b *bench) {
		submit := func(states int) {
			t.Helper()
			if v, err := b.Submit(b.ctx, b.job(fmt.Sprint(time.Now().UnixNano()), 600_000)); err != nil || !v.Admitted() {
				t.Fatalf("%+v, %v", v, err)
			}
			if b.watched.states != states {
				t.Errorf("%d reads of the state, want %d", b.watched.states, states)
			}
		}
		submit(1)
		submit(1)
		time.Sleep(TrustFor - time.Millisecond)
		submit(1)
		time.Sleep(time.Millisecond)
		submit(2)
		ctx, cancel := context.WithCancel(b.ctx)
		var wg sync.WaitGroup
		wg.Go(func() { _ = b.Refresh(ctx) })
		time.Sleep(10*RefreshEvery + time.Millisecond)
		submit(12)
		cancel()
		wg.Wait()
	})
}

// A job is decided on workers, ladders and flags of one moment, however lately the
// state was read: a worker that is back serves at once, one that has gone promises
// nothing more, and a smaller reserve is reckoned with as soon as it holds.
func TestDecidedOnOneMoment(t *testing.T) {
	inBubble(t, slackgate.Predictive, func(b *bench) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		submit := func(id string, deadlineMS int64, want slackgate.Reason) {
			t.Helper()
			if v, err := b.Submit(b.ctx, b.job(id, deadlineMS)); err != nil || v.Reason != want {
				t.Errorf("%s: %+v, %v; want %s", id, v, err, want)
			}
		}
		see := func() {
			t.Helper()
			_, err := b.refresh(b.ctx)
			must(err)
		}
		first, second := broker.Worker{ID: "first", Path: slackgate.Paid, Slots: 2}, broker.Worker{ID: "second", Path: slackgate.Paid, Slots: 2}
		must(b.store.Leave(b.ctx, broker.Worker{ID: "paid", Path: slackgate.Paid, Slots: 8}))
		see()
		submit("the worker is away", 15_000, slackgate.ReasonPoolDown)
		see()
		must(b.store.Beat(b.ctx, first, time.Hour))
		submit("a worker is back", 3200, slackgate.ReasonPaid)
		see()
		submit("on its second slot", 3200, slackgate.ReasonPaid)
		must(b.store.Beat(b.ctx, second, time.Hour))
		submit("on another's slot", 3200, slackgate.ReasonPaid)
		see()
		must(b.store.Leave(b.ctx, second))
		submit("the other has gone", 3200, slackgate.ReasonNoSlack)

		b.minReserveMS, b.holdMS = 5000, 2000
		see()
		b.minReserveMS = 2000
		submit("with a smaller reserve", 15_000, slackgate.ReasonPaid)
		if bytes.Contains(b.log.Bytes(), []byte(errDisagree.Error())) {
			t.Errorf("log %s", b.log)
		}
	})
}

// Time spent in this process comes off the slack, and only durations are taken
// from its clock.
func TestTimeBeforeTheGateCounts(t *testing.T) {
	inBubble(t, slackgate.Seed, func(b *bench) {
		j := b.job("j", 15_000)
		time.Sleep(3 * time.Second)
		v, err := b.Submit(b.ctx, j)
		if err != nil || v.SlackMS != 10_000 || v.DeadlineAtMS-v.NowMS != 12_000 {
			t.Errorf("%+v, %v", v, err)
		}
		j = b.job("k", 15_000)
		time.Sleep(13 * time.Second)
		if v, err = b.Submit(b.ctx, j); err != nil || v.Reason != slackgate.ReasonDeadline || v.SlackMS != 0 {
			t.Errorf("%+v, %v", v, err)
		}
		var line map[string]any
		if err := json.Unmarshal(b.log.Bytes(), &line); err != nil || line["elapsed_ms"] != 13_000.0 || line["job_id"] != "k" {
			t.Errorf("log %s: %v", b.log, err)
		}
		if rows, err := b.store.MissRows(b.ctx, &ledger.Filter{}, "", 10); err != nil || len(rows.Rows) != 1 {
			t.Errorf("%+v, %v", rows, err)
		}
	})
}

func TestReofferClaimed(t *testing.T) {
	for _, rule := range []slackgate.Rule{slackgate.Seed, slackgate.Predictive} {
		inBubble(t, rule, func(b *bench) {
			claim := func(id string, deadlineMS int64) *broker.Claim {
				t.Helper()
				j := b.job(id, deadlineMS)
				j.Prefer = [2]slackgate.Path{slackgate.Free}
				if v, err := b.Submit(b.ctx, j); err != nil || v.Path != slackgate.Free {
					t.Fatalf("%+v, %v", v, err)
				}
				c, _, err := b.store.Claim(b.ctx, slackgate.Free, 8, time.Minute)
				if err != nil || c == nil {
					t.Fatal(c, err)
				}
				c.Prefer[1] = slackgate.Paid
				return c
			}
			c := claim("j", 15_000)
			took, err := b.ReofferClaimed(b.ctx, c)
			if v, _ := b.store.Get(b.ctx, "j"); !took || err != nil || v.Path != slackgate.Paid || v.State != broker.StateWaiting {
				t.Errorf("%v, %v: %+v", took, err, v)
			}
			if p, _ := b.Tickets.Pending(b.ctx, slackgate.Paid); p != 1 {
				t.Errorf("%d tickets", p)
			}
			if took, err := b.ReofferClaimed(b.ctx, c); took || err != nil {
				t.Errorf("a void claim: %v, %v", took, err)
			}
			// Too late for paid too: the claim stands, and no miss is booked on
			// path reject for a job that is on record.
			c = claim("k", 5000)
			time.Sleep(3 * time.Second)
			if took, err := b.ReofferClaimed(b.ctx, c); took || err != nil {
				t.Errorf("without slack: %v, %v", took, err)
			}
			if rows, _ := b.store.MissRows(b.ctx, &ledger.Filter{}, "", 10); len(rows.Rows) != 0 {
				t.Errorf("misses %+v", rows.Rows)
			}
			if lease, err := b.store.Renew(b.ctx, c, time.Minute); lease != broker.LeaseHeld || err != nil {
				t.Errorf("%v, %v", lease, err)
			}
			// A class that allows no other pool is not offered to one.
			d := *c
			d.Prefer = [2]slackgate.Path{slackgate.Free}
			if took, err := b.ReofferClaimed(b.ctx, &d); took || err != nil {
				t.Errorf("free only: %v, %v", took, err)
			}
			b.watched.err = broker.ErrUnavailable
			b.view.Store(nil)
			if took, err := b.ReofferClaimed(b.ctx, c); took || !errors.Is(err, broker.ErrUnavailable) {
				t.Errorf("without a store: %v, %v", took, err)
			}
		})
	}
}

// What waits in a pool without capacity goes to the other one under its own
// deadline, waits for the pool to come back, or is revoked and told.
func TestReoffer(t *testing.T) {
	for _, rule := range []slackgate.Rule{slackgate.Seed, slackgate.Predictive} {
		inBubble(t, rule, func(b *bench) {
			put := func(id string, deadlineMS int64, prefer ...slackgate.Path) *broker.Job {
				t.Helper()
				j := b.job(id, deadlineMS)
				j.Prefer = [2]slackgate.Path{}
				copy(j.Prefer[:], prefer)
				if v, err := b.Submit(b.ctx, j); err != nil || v.Path != slackgate.Free {
					t.Fatalf("%+v, %v", v, err)
				}
				job, err := b.store.Get(b.ctx, id)
				if err != nil {
					t.Fatal(err)
				}
				return job
			}
			// The first byte takes 1,000 ms, the pool is back in 3,000, the reserve is 2,000.
			jobs := []*broker.Job{
				put("waits", 6000, slackgate.Free), put("short", 5999, slackgate.Free),
				put("moves", 9000, slackgate.Free), put("moves too", 5000, slackgate.Free),
			}
			for _, j := range jobs[2:] {
				j.Prefer[1] = slackgate.Paid
			}
			moved, ended, err := b.Reoffer(b.ctx, slackgate.Free, jobs[2:3], false)
			if moved != 1 || ended != 0 || err != nil {
				t.Errorf("drained: %d moved, %d revoked, %v", moved, ended, err)
			}
			if moved, ended, err = b.Reoffer(b.ctx, slackgate.Free, jobs[:2], false); moved != 0 || ended != 0 || err != nil {
				t.Errorf("drained, free only: %d moved, %d revoked, %v", moved, ended, err)
			}
			for _, want := range []int{1, 0} { // the second time there is nothing left to do
				if moved, ended, err = b.Reoffer(b.ctx, slackgate.Free, jobs, true); moved != want || ended != want || err != nil {
					t.Errorf("lost: %d moved, %d revoked, %v; want %d of each", moved, ended, err, want)
				}
			}
			for i, want := range []broker.Job{
				{Path: slackgate.Free, State: broker.StateWaiting},
				{Path: slackgate.Free, State: broker.StateDone, Outcome: broker.OutcomeRevoked, Cause: broker.CauseCapacityLost},
				{Path: slackgate.Paid, State: broker.StateWaiting},
				{Path: slackgate.Paid, State: broker.StateWaiting},
			} {
				v, err := b.store.Get(b.ctx, jobs[i].ID)
				if err != nil {
					t.Fatal(err)
				}
				got := broker.Job{Path: v.Path, State: v.State, Outcome: v.Outcome, Cause: v.Cause}
				if diff := cmp.Diff(want, got); diff != "" || v.DeadlineAtMS != jobs[i].DeadlineAtMS {
					t.Errorf("%s, due at %d and before at %d: %s", v.ID, v.DeadlineAtMS, jobs[i].DeadlineAtMS, diff)
				}
			}
			if n := strings.Count(b.log.String(), `"outcome":"revoked"`); n != 1 {
				t.Errorf("%d lines of the revoked job: %s", n, b.log)
			}
			if rows, err := b.store.MissRows(b.ctx, &ledger.Filter{}, "", 10); err != nil || len(rows.Rows) != 1 || rows.Rows[0].Outcome != broker.OutcomeRevoked {
				t.Errorf("%+v, %v", rows, err)
			}
			if n, _ := b.Tickets.Pending(b.ctx, slackgate.Paid); n != 2 {
				t.Errorf("%d tickets", n)
			}
		})
	}
}

// A flag set through another replica holds for the next decision here, and one
// that expires does so on the store's clock.
func TestFlagsHoldForTheNextDecision(t *testing.T) {
	for _, rule := range []slackgate.Rule{slackgate.Seed, slackgate.Predictive} {
		inBubble(t, rule, func(b *bench) {
			submit := func(id string, want slackgate.Reason) {
				t.Helper()
				if v, err := b.Submit(b.ctx, b.job(id, 15_000)); err != nil || v.Reason != want {
					t.Errorf("%s: %s, %v; want %s", id, v.Reason, err, want)
				}
			}
			set := func(n flag.Name, class, value string, hold time.Duration) {
				t.Helper()
				if err := b.store.SetFlag(b.ctx, n, class, value, "somebody", "a test", hold); err != nil {
					t.Fatal(err)
				}
			}
			submit("a", slackgate.ReasonPaid)
			if b.flags.refreshes != 0 {
				t.Errorf("flags read %d times though none is set", b.flags.refreshes)
			}
			set(flag.AdmitPaid, "", "0", 0)
			submit("b", slackgate.ReasonClosed)
			submit("c", slackgate.ReasonClosed)
			if b.flags.refreshes != 1 {
				t.Errorf("flags read %d times for one change", b.flags.refreshes)
			}
			set(flag.AdmitPaid, "c", "1", 0) // closing wins over an opening for the class
			submit("d", slackgate.ReasonClosed)
			set(flag.AdmitPaid, "c", "0", time.Minute) // for the job's class, for a while
			set(flag.AdmitPaid, "", "", 0)
			submit("e", slackgate.ReasonClosed)
			time.Sleep(time.Minute)
			submit("f", slackgate.ReasonPaid)
			// The reserve's floor comes off the slack of the next job.
			set(flag.Reserve, "", "15000", 0)
			submit("g", slackgate.ReasonDeadline)
			if v, _, err := b.DryRun(b.ctx, b.job("dry", 15_000)); err != nil || v.Reason != slackgate.ReasonDeadline || v.ReserveMS != 15_000 {
				t.Errorf("dry run %+v, %v", v, err)
			}
			if bytes.Contains(b.log.Bytes(), []byte(errDisagree.Error())) {
				t.Errorf("log %s", b.log)
			}
		})
	}
}

// Flags and workers that change faster than they can be read are a 503, not a loop.
func TestFlagsThatNeverSettle(t *testing.T) {
	for _, changed := range []broker.OfferResults{{FlagsChanged: true}, {WorkersChanged: true}} {
		inBubble(t, slackgate.Predictive, func(b *bench) {
			b.watched.alter = func(a *broker.OfferResults) { *a = changed }
			if v, err := b.Submit(b.ctx, b.job("j", 15_000)); !errors.Is(err, broker.ErrUnavailable) || v.Reason != slackgate.ReasonGateUnavailable {
				t.Errorf("%+v, %v", v, err)
			}
			if n := len(b.calls()); n != tries {
				t.Errorf("%d tries", n)
			}
		})
	}
}

func TestDryRunPromisesNothing(t *testing.T) {
	for _, rule := range []slackgate.Rule{slackgate.Seed, slackgate.Predictive} {
		inBubble(t, rule, func(b *bench) {
			v, st, err := b.DryRun(b.ctx, b.job("j", 15_000))
			if err != nil || v.Path != slackgate.Paid || st.Pools[slackgate.Paid].Capacity != 8 {
				t.Errorf("%+v, %v", v, err)
			}
			if st, err := b.store.State(b.ctx, b.settings().Pools); err != nil || st.Pools[slackgate.Paid].InFlight() != 0 {
				t.Errorf("%+v, %v", st, err)
			}
			if len(b.seen.verdicts) != 0 || b.log.Len() != 0 {
				t.Error("a dry run was counted or logged")
			}
		})
	}
}
