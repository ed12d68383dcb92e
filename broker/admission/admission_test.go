package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
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
	flags   struct {
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
		b := &bench{t: t, store: storetest.New(rdb, storetest.Options{Prefix: "t"}), seen: &seen{}, log: &bytes.Buffer{}, rule: rule}
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
		HorizonMS: 3600_000,
	}
	for _, path := range slackgate.Paths {
		s.Pools[path] = broker.PoolPolicy{Limit: 8, FirstByteP95MS: 1000}
		s.Beliefs[path] = slackgate.FixedBelief(1000, 1000)
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

func TestRescue(t *testing.T) {
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
				return c
			}
			c := claim("j", 15_000)
			took, err := b.Rescue(b.ctx, c)
			if v, _ := b.store.Get(b.ctx, "j"); !took || err != nil || v.Path != slackgate.Paid || v.State != broker.StateWaiting {
				t.Errorf("%v, %v: %+v", took, err, v)
			}
			if p, _ := b.Tickets.Pending(b.ctx, slackgate.Paid); p != 1 {
				t.Errorf("%d tickets", p)
			}
			if took, err := b.Rescue(b.ctx, c); took || err != nil {
				t.Errorf("a void claim: %v, %v", took, err)
			}
			// Too late for paid too: the claim stands, and no miss is booked on
			// path reject for a job that is on record.
			c = claim("k", 5000)
			time.Sleep(3 * time.Second)
			if took, err := b.Rescue(b.ctx, c); took || err != nil {
				t.Errorf("without slack: %v, %v", took, err)
			}
			if rows, _ := b.store.MissRows(b.ctx, &ledger.Filter{}, "", 10); len(rows.Rows) != 0 {
				t.Errorf("misses %+v", rows.Rows)
			}
			if lease, err := b.store.Renew(b.ctx, c, time.Minute); lease != broker.LeaseHeld || err != nil {
				t.Errorf("%v, %v", lease, err)
			}
			b.watched.err = broker.ErrUnavailable
			b.view.Store(nil)
			if took, err := b.Rescue(b.ctx, c); took || !errors.Is(err, broker.ErrUnavailable) {
				t.Errorf("without a store: %v, %v", took, err)
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

// Flags that change faster than they can be read are a 503, not a loop.
func TestFlagsThatNeverSettle(t *testing.T) {
	inBubble(t, slackgate.Seed, func(b *bench) {
		b.watched.alter = func(a *broker.OfferResults) { *a = broker.OfferResults{NowMS: a.NowMS, FlagsChanged: true} }
		if v, err := b.Submit(b.ctx, b.job("j", 15_000)); !errors.Is(err, broker.ErrUnavailable) || v.Reason != slackgate.ReasonGateUnavailable {
			t.Errorf("%+v, %v", v, err)
		}
		if n := len(b.calls()); n != flagTries {
			t.Errorf("%d tries", n)
		}
	})
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
